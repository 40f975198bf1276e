"""The common form of everything that can be exported.

`ortolan.export.source` builds it from a checkpoint of a family, any transformers model, or a user's
own module. The steps of an export know nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor, nn

from ortolan.export.options import Device
from ortolan.modeling.families.reader import ConfigKeys
from ortolan.modeling.layers.cache import LayerCache
from ortolan.modeling.weights import Weights
from ortolan.runtime.bundle.kinds import KINDS, ModelKind
from ortolan.runtime.bundle.manifest import Graph, Output, Source, Speech, State, StateType, Tokens
from ortolan.runtime.bundle.parts import (
    MTP,
    SOUND,
    TEXT,
    VISION,
    Comparison,
    Dictation,
    Features,
    HiddenStates,
)
from ortolan.runtime.bundle.sound_sources import ChunkedSource
from ortolan.runtime.inputs.tokenizer import Tokenizer

Trace = Callable[[str, Graph, torch.dtype], ir.Model]
"""Traces the graph of a role, with weights, activations and states of one type.

Initializers are named after weights and tables and have no data, or hold data of their own."""

Forward = Callable[[Tensor | None, Tensor | None], Tensor]
"""Runs the PyTorch model without a cache on one input.

Takes a source `(T,)`, a source with token types `(2, T)`, pixels `(C, Y, X)`, a spectrogram
`(M, A)` or a wave `(W,)`; or vectors of images `(F, E)` for a decoder that reads them, or states
`(S, E)` for a head; and ids `(S,)` of the decoder; None for an input that the model does not have.
Returns logits `(S, V)`, states `(T, E)`, labels `(L,)` or an embedding `(E,)`.
"""

Original = Callable[[Tensor | None, Tensor | None, Tensor], Tensor]
"""Runs the live model that was given, or a user's reference, on an input of `Forward`.

The last argument is the output of `Forward`, which must be the same but for rounding."""

Cached = Callable[[Tensor], Sequence[LayerCache]]
"""Computes keys and values `(1, K, S, D)` of every layer that caches them, after ids `(S,)`."""


def _accept() -> None:
    """Ortolan's own code needs no check."""


NO_KEYS = ConfigKeys(read=(), ignored=(), accepted=())
"""Config keys of a model without a config.json."""


Companion = Path | bytes
"""A file to copy into a bundle, or the content of one that Ortolan completes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exportable:
    """A model to export.

    Attributes:
        kind: in the manifest (`ortolan.runtime.bundle.kinds.KINDS`).
        model_type: name of the architecture in the manifest.
        context_length: longest context in tokens; for images, the number of vectors.
        vocab_size: of the decoder, or of the encoder's texts; 1 for images; with CTC, the number of
            symbols.
        source_vocab_size: of the encoder's texts; `vocab_size` where it has none.
        module: its parameters lie on `meta` and are named as in `weights`.
        forward: calls `module` (see `ortolan.export.streamed`).
        trace: traces one graph.
        states: of the decoder, for a type of activations.
        maps: names of the attention maps, in the order of the layers.
        weights: of the module.
        is_quantized: the source stores weights in fewer than 16 bits.
        tables: computed tensors, by the names of initializers.
        sha256: hashes everything that decides what the model computes; reads all weights.
        folder: of the checkpoint; None for a live module.
        companions: files for the bundle, by name.
        tokens: special ids; none for an encoder of images.
        tokenizer: None where the model takes only ids, or images.
        takes: input of the encoder; None for a decoder-only model.
        gives: output of an encoder-only model; None for other kinds.
        original: the live model that this was read from, or a user's reference; its outputs are the
            reference of the certificate.
        cached: computes the KV cache of a decoder-only model, in the order of `states`.
        takes_one: the decoder reads its tokens one by one (docs/adr/0026).
        takes_one_on: devices where it does, for want of a kernel over many tokens.
        keys: which keys of config.json were read, ignored and accepted.
        left_out: parts of the checkpoint for other inputs than text.
        is_own: a user's own module; its probes span the whole context.
        reach: context of the trained model, where it may differ from `context_length`.
        switches_after: longest text, in tokens, before the trained model changes its rotary
            frequencies; None where they never change.
        check: rejects, before any work, a module that contradicts its states.
        features: vectors of images or sounds that the decoder reads; None if it reads text alone.
        media: the encoder that computes them, which becomes a bundle in the bundle.
        hidden: states of every token that its graphs return, if they do.
        head: predicts further tokens from them, and becomes a bundle in the bundle.
        speech: tokens with which the decoder transcribes, if it has them.
        dictation: how a decoder that reads sounds transcribes, if it does.
        comparison: how an encoder of images compares them with texts; None if it does not.
        texts: the encoder of the texts, which becomes a bundle in the bundle.
        notes: warnings before the export.
        repository: `org/name@commit` of a checkpoint in the cache of the Hugging Face Hub.
    """

    kind: str
    model_type: str
    context_length: int
    vocab_size: int
    source_vocab_size: int
    module: nn.Module
    forward: Forward
    trace: Trace
    states: Callable[[StateType], tuple[State, ...]]
    maps: tuple[str, ...]
    weights: Weights
    tables: Mapping[str, Tensor]
    sha256: Callable[[], str]
    folder: Path | None
    companions: Mapping[str, Companion]
    tokens: Tokens
    tokenizer: Tokenizer | None
    takes: Source | None
    gives: Output | None
    is_quantized: bool = False
    original: Original | None = None
    cached: Cached | None = None
    takes_one: bool = False
    takes_one_on: frozenset[Device] = frozenset()
    keys: ConfigKeys = NO_KEYS
    left_out: tuple[str, ...] = ()
    is_own: bool = False
    reach: int | None = None
    switches_after: int | None = None
    check: Callable[[], object] = _accept
    features: Features | None = None
    media: "Exportable | None" = None
    hidden: HiddenStates | None = None
    head: "Exportable | None" = None
    speech: Speech | None = None
    dictation: Dictation | None = None
    comparison: Comparison | None = None
    texts: "Exportable | None" = None
    notes: tuple[str, ...] = ()
    repository: str | None = None

    @property
    def parts(self) -> Mapping[str, "Exportable"]:
        """Models that become bundles in the bundle, by the names of their folders."""
        of_sounds = self.media is not None and isinstance(self.media.takes, ChunkedSource)
        parts = {SOUND if of_sounds else VISION: self.media, MTP: self.head, TEXT: self.texts}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def output(self) -> str:
        """Name of the output that its certificate compares (`runtime.bundle.kinds.OUTPUTS`)."""
        return "logits" if self.gives is None else self.gives.kind

    @property
    def min_call_tokens(self) -> int:
        """Most tokens that one call must take: vectors that see each other, or 1."""
        features = self.features
        return 1 if features is None or features.attention == "causal" else features.vectors

    @property
    def sides(self) -> ModelKind:
        """Whether it has an encoder, a decoder, or both."""
        return KINDS[self.kind]


def content_of(companion: Companion) -> bytes:
    """The content of a file for a bundle."""
    return companion if isinstance(companion, bytes) else companion.read_bytes()
