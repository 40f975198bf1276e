"""The common form of everything that can be exported.

`ortolan.export.source` builds it from a checkpoint of a family, any transformers model, or a user's
own module. The steps of an export know nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor, nn

from ortolan.export.options import Device
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.modeling.families.reader import ConfigKeys
from ortolan.modeling.layers.cache import LayerCache
from ortolan.modeling.weights import Weights
from ortolan.runtime.bundle.kinds import KINDS, ModelKind
from ortolan.runtime.bundle.manifest import Graph, Output, Source, Speech, State, StateType, Tokens
from ortolan.runtime.bundle.parts import Comparison, Dictation, Features, HiddenStates
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


NO_KEYS = ConfigKeys(read=(), ignored=(), accepted=())
"""Config keys of a model without a config.json."""

Companion = Path | bytes
"""A file to copy into a bundle, or the content of one that Ortolan completes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a model comes from.

    Attributes:
        sha256: hashes everything that decides what the model computes; reads all weights.
        folder: of the checkpoint; None for a live module.
        left_out: parts of the checkpoint for other inputs than text.
        is_quantized: it stores weights in fewer than 16 bits.
        repository: `org/name@commit` of a checkpoint in the cache of the Hugging Face Hub.
    """

    model_type: str
    sha256: Callable[[], str]
    folder: Path | None = None
    keys: ConfigKeys = NO_KEYS
    left_out: tuple[str, ...] = ()
    is_quantized: bool = False
    repository: str | None = None

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint, model_type: str, keys: ConfigKeys) -> "Origin":
        """The origin of a model that was read from a checkpoint."""
        return cls(
            model_type=model_type,
            sha256=cache(checkpoint.sha256),
            folder=checkpoint.folder,
            keys=keys,
            left_out=checkpoint.left_out,
            is_quantized=checkpoint.is_quantized,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exportable:
    """A model to export.

    Attributes:
        kind: one of `ortolan.runtime.bundle.kinds.KINDS`.
        origin: where it comes from.
        context_length: longest context in tokens; for images, the number of vectors.
        vocab_size: of the decoder, or of the encoder's texts; 1 for images; with CTC, the number of
            symbols.
        source_vocab_size: of the encoder's texts; `vocab_size` where it has none.
        module: its parameters lie on `meta` and are named as in `weights`.
        forward: calls `module` (see `ortolan.export.streamed`).
        weights: trained tensors by name, read when asked for.
        tables: computed tensors, by the names of initializers.
        trace: makes the graph of a role.
        states: of the decoder, for a type of activations.
        maps: names of the attention maps, in the order of the layers.
        companions: further files of the bundle by name, such as tokenizer.json.
        tokens: special ids; none for an encoder of images.
        tokenizer: None where the model reads only ids, or images.
        source: input of the encoder; None for a decoder-only model.
        output: of an encoder-only model; None for other kinds.
        original: the live model that this was read from, or a user's reference; its outputs are the
            reference of the certificate.
        cached: computes the KV cache of a decoder-only model, in the order of `states`.
        takes_one: the decoder reads its tokens one by one (docs/adr/0026).
        takes_one_on: devices where it does, for want of a kernel over many tokens.
        switches_after: longest text, in tokens, before the trained model changes its rotary
            frequencies; None where they never change.
        check: rejects, before any work, a user's own module that contradicts its states.
        features: vectors of images or sounds that the decoder reads; None if it reads text alone.
        hidden: states of every token that its graphs return, if they do.
        comparison: how an encoder of images compares them with texts; None if it does not.
        speech: tokens with which the decoder transcribes, as in Whisper; None for other models.
        dictation: how a decoder that reads sounds writes down what it hears; None if it does not.
        parts: models that become bundles in the bundle, by the names of their folders: the encoder
            that computes `features`, the head that reads `hidden`, the texts of `comparison`.
        notes: warnings before the export.
    """

    kind: str
    origin: Origin
    context_length: int
    vocab_size: int
    source_vocab_size: int
    module: nn.Module
    forward: Forward
    weights: Weights
    tables: Mapping[str, Tensor]
    trace: Trace
    states: Callable[[StateType], tuple[State, ...]]
    maps: tuple[str, ...] = ()
    companions: Mapping[str, Companion]
    tokens: Tokens
    tokenizer: Tokenizer | None
    source: Source | None = None
    output: Output | None = None
    original: Original | None = None
    cached: Cached | None = None
    takes_one: bool = False
    takes_one_on: frozenset[Device] = frozenset()
    switches_after: int | None = None
    check: Callable[[], object] | None = None
    features: Features | None = None
    hidden: HiddenStates | None = None
    comparison: Comparison | None = None
    speech: Speech | None = None
    dictation: Dictation | None = None
    parts: Mapping[str, "Exportable"] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def output_kind(self) -> str:
        """Name of the output that its certificate compares (`runtime.bundle.kinds.OUTPUTS`)."""
        return "logits" if self.output is None else self.output.kind

    @property
    def min_call_tokens(self) -> int:
        """Tokens that a call has to have room for: all vectors that see each other, or 1."""
        features = self.features
        return 1 if features is None or features.attention == "causal" else features.vectors

    @property
    def sides(self) -> ModelKind:
        """Whether it has an encoder, a decoder, or both."""
        return KINDS[self.kind]


def content_of(companion: Companion) -> bytes:
    """The content of a file for a bundle."""
    return companion if isinstance(companion, bytes) else companion.read_bytes()
