"""What a source has to give to be exported, whoever wrote it.

`ortolan.export.source` makes it of a checkpoint of a family, of any model of transformers, and of
a user's own module; the steps of an export know nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor, nn

from ortolan.modeling.families.reader import ConfigKeys
from ortolan.modeling.layers.cache import LayerCache
from ortolan.modeling.weights import Weights
from ortolan.runtime.bundle.kinds import KINDS, ModelKind
from ortolan.runtime.bundle.manifest import (
    Graph,
    ImageSource,
    Output,
    State,
    StateType,
    TextSource,
    Tokens,
)
from ortolan.runtime.inputs.tokenizer import Tokenizer

Trace = Callable[[str, Graph, torch.dtype], ir.Model]
"""The graph of a role, as torch writes it: initializers carry names of weights and tables, and no
data, or data of their own; weights, activations and states have the given type."""

Forward = Callable[[Tensor | None, Tensor | None], Tensor]
"""What PyTorch computes without a cache for one input: a source `(T,)` or pixels `(C, Y, X)`, and
ids `(S,)` of a decoder, None where the model takes no such thing.

Logits `(S, V)`, states `(T, E)`, labels `(L,)` or an embedding `(E,)`.
"""

Cached = Callable[[Tensor], Sequence[LayerCache]]
"""Keys and values `(1, K, S, D)` of every layer that has some, as a cache holds them after ids
`(S,)`."""


def _accept() -> None:
    """Code that is known needs no check."""


NO_KEYS = ConfigKeys(read=(), ignored=(), accepted=())
"""Of a model without a config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exportable:
    """A model to export.

    Attributes:
        kind: in the manifest (`ortolan.runtime.bundle.kinds.KINDS`).
        model_type: where it comes from, as the manifest names it.
        context_length: tokens of the decoder or of the encoder that have to fit; for images, the
            vectors that one becomes.
        vocab_size: ids of the decoder, or of the encoder's texts; 1 for images.
        source_vocab_size: ids of the encoder's texts; as `vocab_size` where there are none.
        module: without memory for its parameters, which have the names of `weights`.
        forward: calls `module` (see `ortolan.export.streamed`).
        trace: its graphs.
        states: of its decoder, in the type of the activations.
        maps: names of its maps of attention, in the order of the layers.
        weights: of the module.
        tables: computed tensors, by the names of initializers.
        sha256: a hash over everything that decides what it computes, which is read for it.
        folder: of the checkpoint; None for a live module.
        companions: files to copy into the bundle, by name.
        tokens: ids with a meaning; none for an encoder of images.
        tokenizer: reads texts; None where the model takes only ids, or images.
        takes: what the encoder takes; None for a decoder by itself.
        gives: what an encoder by itself gives; None for the other kinds.
        cached: what its decoder caches, in the order of the states; None with an encoder.
        takes_one: its decoder reads its tokens one by one (docs/adr/0026).
        keys: what became of the keys of its config.json; none of a live module.
        left_out: towers of the checkpoint for other inputs than texts.
        is_own: a user's own module, whose probes reach over the whole context.
        reach: tokens that the trained model takes; None where nothing else than `context_length`
            is known.
        switches_after: tokens of the longest text before the trained model takes other rotary
            frequencies; None where they are the same for texts of all lengths.
        check: refuses, before any work, a module that cannot be what its states say.
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
    companions: Mapping[str, Path]
    tokens: Tokens
    tokenizer: Tokenizer | None
    takes: TextSource | ImageSource | None
    gives: Output | None
    cached: Cached | None = None
    takes_one: bool = False
    keys: ConfigKeys = NO_KEYS
    left_out: tuple[str, ...] = ()
    is_own: bool = False
    reach: int | None = None
    switches_after: int | None = None
    check: Callable[[], object] = _accept

    @property
    def output(self) -> str:
        """What its certificate compares, by name (`runtime.bundle.kinds.OUTPUTS`)."""
        return "logits" if self.gives is None else self.gives.kind

    @property
    def sides(self) -> ModelKind:
        """Whether it has an encoder, a decoder, or both."""
        return KINDS[self.kind]
