"""A model run a layer at a time, so that only one layer's weights are in memory.

Shape letters: S tokens of a text, T tokens of a source, E model width, V vocabulary, L labels.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ortolan.export.source.exportable import Exportable
from ortolan.modeling.checkpoint.folder import empty_model
from ortolan.modeling.config import ModelConfig, PatchInput
from ortolan.modeling.layers.attention import CrossAttention
from ortolan.modeling.layers.block import Block
from ortolan.modeling.layers.cache import LayerCache
from ortolan.modeling.layers.heads import LanguageModel
from ortolan.modeling.models.stack import Stack, TransformerModel
from ortolan.modeling.models.transformer import DecoderModel, EncoderModel
from ortolan.modeling.weights import EMBEDDING, HEAD, Weights, read_weight

CHUNK_ROWS = 4096
"""Rows of the embedding or the head in memory at once."""

_BIAS = "position_bias.weight"


class LogitsProduct(NamedTuple):
    """The product that gives logits, by the names of its weights in the model.

    Attributes:
        weight: `(V, E)`.
        bias: `(V,)`, if there is one.
        scale: multiplies what enters it.
    """

    weight: str
    bias: str | None
    scale: float


class Layers:
    """One stack of a model, and the weights to run it with.

    Args:
        model: a module without weights.
        weights: of the model.
        prefix: of the names of the stack's weights, such as `encoder.`.

    Attributes:
        stack: of the model, without weights.
        is_encoder: it takes texts or images whole.
        weights: of the model.
        prefix: of the names of its weights.
    """

    def __init__(self, model: TransformerModel, weights: Weights, prefix: str) -> None:
        self.stack = cast(Stack, model.get_submodule(prefix.removesuffix(".")))
        self.is_encoder = isinstance(self.stack, EncoderModel)
        self.prefix = prefix
        self.weights = weights
        self._tied = model.tied
        # Every layer shares the biases of the first: a few numbers for each head.
        self._shared = {
            f"stack.{_BIAS}": self._read(_BIAS)
            for name, _ in self.stack.named_parameters()
            if name == _BIAS
        }

    def __len__(self) -> int:
        """How many layers."""
        return len(self.stack.blocks)

    def name(self, name: str) -> str:
        """The name in the model of a weight of the stack."""
        full = f"{self.prefix}{name}"
        return self._tied.get(full, full)

    def place(self, index: int) -> str:
        """The prefix of the names of a layer's weights."""
        return f"{self.prefix}blocks.{index}."

    def embed(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The input of the first layer, `(S, E)` for each text of ids `(S,)` or each image."""
        config = getattr(self.stack.config, "input", None)
        state = self._embedding_state(max(len(each) for each in inputs))
        rows: Sequence[Tensor] = inputs
        if not isinstance(config, PatchInput):
            used, places = torch.unique(torch.cat(list(inputs)), return_inverse=True)
            state[EMBEDDING] = _gather_rows(self.weights, self.name(EMBEDDING), used)
            rows = places.split([len(ids) for ids in inputs])
        call = _Embed(self.stack)
        given = {f"stack.{name}": value for name, value in state.items()}
        return [torch.func.functional_call(call, given, (each[None],))[0] for each in rows]

    def read(self, index: int) -> dict[str, Tensor]:
        """The parameters of a layer, in float32, by their names below `place`."""
        return self._below(f"blocks.{index}.")

    def run(
        self,
        index: int,
        layer: Mapping[str, Tensor],
        streams: Sequence[Tensor],
        sources: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """One layer over every stream `(S, E)`.

        Args:
            index: of the layer.
            layer: what `read` gives.
            streams: what enters it.
            sources: what each attends to, `(T, E)`; its keys and values are computed here.
        """
        call = _Layer(self.stack, index)
        given = {f"stack.blocks.{index}.{name}": value for name, value in layer.items()}
        attended = [None] * len(streams) if sources is None else [each[None] for each in sources]
        return [
            torch.func.functional_call(call, self._shared | given, (x_SE[None], source))[0]
            for x_SE, source in zip(streams, attended, strict=True)
        ]

    def run_final_norm(self, x_SE: Tensor) -> Tensor:
        """The input of the head, `(S, E)`."""
        state = self._below("final_norm.")
        out_SE: Tensor = torch.func.functional_call(self.stack.final_norm, state, (x_SE,))
        return out_SE

    def run_transform(self, x_SE: Tensor) -> Tensor:
        """The input of the last product of an encoder's language model, `(S, E)`."""
        head = self.stack.head
        if not isinstance(head, LanguageModel) or head.transform is None:
            return x_SE
        parts = ("transform.", "norm.")
        state = {
            f"head.{part}{name}": value
            for part in parts
            for name, value in self._below(f"head.{part}").items()
        }
        out_SE: Tensor = torch.func.functional_call(_Transform(head), state, (x_SE,))
        return out_SE

    def run_pooled_head(self, x_SE: Tensor) -> Tensor:
        """The output of a classifier or an embedding for one text or image, `(L,)` or `(E,)`."""
        head = cast(nn.Module, self.stack.head)
        state = self._below("head.")
        out_BL: Tensor = torch.func.functional_call(head, state, (x_SE[None], None))
        return out_BL[0]

    def logits_product(self) -> LogitsProduct | None:
        """The product that gives logits; None where there is none."""
        stack = self.stack
        match stack:
            case DecoderModel(head=head, head_bias=bias):
                weight = EMBEDDING if head is None else HEAD
                name = None if bias is None else self.name("head_bias")
                return LogitsProduct(self.name(weight), name, stack.config.head_scale)
            case EncoderModel(head=LanguageModel(weight=weight, bias=bias)):
                name = None if bias is None else self.name("head.bias")
                return LogitsProduct(self.name(EMBEDDING if weight is None else HEAD), name, 1.0)
            case _:
                return None

    def _embedding_state(self, longest: int) -> dict[str, Tensor]:
        """The weights of `embed` except the table of the tokens; small ones whole."""
        state: dict[str, Tensor] = {}
        for name, parameter in self.stack.named_parameters():
            first = name.partition(".")[0]
            match name:
                case "embedding.weight":
                    continue
                case "position_embedding.weight":
                    # Rows that no token reads, those of an offset, come before the others.
                    spare = len(parameter) - self.stack.config.context_length
                    rows = len(parameter) if self._has_patches() else spare + longest
                    state[name] = self.weights.rows(self.name(name), 0, rows).float()
                case "type_embedding.weight":
                    state[name] = self.weights.rows(self.name(name), 0, 1).float()
                case _ if first in ("embedding", "embedding_norm"):
                    state[name] = self._read(name)
        return state

    def _has_patches(self) -> bool:
        return isinstance(getattr(self.stack.config, "input", None), PatchInput)

    def _below(self, prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): self._read(name)
            for name, _ in self.stack.named_parameters()
            if name.startswith(prefix)
        }

    def _read(self, name: str) -> Tensor:
        return read_weight(self.weights, self.name(name))


def stacks(model: Exportable) -> list[Layers]:
    """The stacks of a model in the order in which they run."""
    module = _skeleton(model.config, model.tables)
    return [Layers(module, model.weights, prefix) for prefix in model.sides.stacks]


def _skeleton(config: ModelConfig, tables: Mapping[str, Tensor]) -> TransformerModel:
    """A model without weights, but with its tables by their names in it."""
    module = empty_model(config)
    for name, table in tables.items():
        place, _, buffer = name.rpartition(".")
        module.get_submodule(place).register_buffer(buffer, table, persistent=False)
    return module


class _Embed(nn.Module):
    """The part before the blocks, as a module that can be called with a few rows of a table."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack

    def forward(self, inputs: Tensor) -> Tensor:
        stack, added = self.stack, None
        length = inputs.shape[1]
        if isinstance(stack, EncoderModel):
            if stack.type_embedding is not None:
                added = stack.type_embedding.weight[:1][None]
            if isinstance(stack.config.input, PatchInput):
                length = stack.config.input.length
        return stack.embed(inputs, torch.arange(length)[None], added)


class _Layer(nn.Module):
    """One block with what the stack adds to its scores and the keys and values of its source."""

    def __init__(self, stack: Stack, index: int) -> None:
        super().__init__()
        self.stack = stack
        self.index = index

    def forward(self, x_BSE: Tensor, source_BTE: Tensor | None) -> Tensor:
        block = cast(Block, self.stack.blocks[self.index])
        length = x_BSE.shape[1]
        relative = self.stack.relative(torch.arange(length)[None], length)
        states: LayerCache | None = None
        if source_BTE is not None:
            states = cast(CrossAttention, block.cross_attention).states(source_BTE)
        out: Tensor = block(x_BSE, self.stack.rotary(self.index), relative, source=states)
        return out


class _Transform(nn.Module):
    """The layer before the last product of an encoder's language model."""

    def __init__(self, head: LanguageModel) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        head = self.head
        out: Tensor = head.norm(head.activation(cast(nn.Module, head.transform)(x)))
        return out


def _gather_rows(weights: Weights, name: str, indices: Tensor) -> Tensor:
    """Some rows of a large table, float32; `indices` are sorted."""
    rows, width = weights.shape(name)
    gathered = torch.empty(len(indices), width)
    for start in range(0, rows, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, rows)
        inside = (indices >= start) & (indices < stop)
        if bool(inside.any()):
            gathered[inside] = weights.rows(name, start, stop)[indices[inside] - start].float()
    return gathered
