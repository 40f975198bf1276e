"""`State`: everything that a module carries across tokens, for training, running and exporting it.

A user's module has `forward(ids, state)` and uses the state for everything that crosses tokens:
`attend` for attention, `recall` and `keep` for tensors that every step replaces, `extend` for
tensors that grow with every token, `convolve` for causal convolutions, `recur` for linear
attention. With `State.whole()`, these are plain PyTorch over whole sequences, and gradients flow.
With a `CachedState`, they continue sequences; while `torch.onnx.export` traces, attention becomes
one node.

Shape letters: B batch, S new tokens, T tokens so far, E width, C channels, W taps of a convolution,
H query heads, K key/value heads, D head width, U value width, P rows of rotary tables, R rotated
channels per head.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.layers import ops
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.layers.convolution import convolve
from ortolan.modeling.layers.nodes import Rotary
from ortolan.modeling.layers.ops import Heads
from ortolan.modeling.layers.recurrence import Recurrence, recur

KeysAndValues = tuple[Tensor, Tensor]
"""New keys `(B, S, K * D)` and values `(B, S, K * U)`."""


class How(NamedTuple):
    """How a layer attends, apart from its queries, keys and values."""

    spec: AttentionConfig
    rotary: Rotary | None
    sinks: Tensor | None


class State(ABC):
    """State that a module carries across tokens; train with `State.whole()`.

    Attributes:
        layers: attention of each layer that had keys in this forward pass, by its number.
        takes_one: the module asked for its tokens one by one.
        recalled: shape for one sequence of each recalled tensor, by name.
    """

    @staticmethod
    def whole() -> "WholeState":
        """The state for whole sequences from their first token, without a cache."""
        return WholeState()

    @abstractmethod
    def positions(self, ids: Tensor) -> Tensor:
        """Positions of the new tokens `(B, S)`, int64 `(B, S)` or `(1, S)`."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        scale: float | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal softmax attention to all tokens so far: `(B, H, S, U)`.

        Args:
            layer: number that identifies these keys and values, the same at every step.
            query: `(B, H, S, D)`.
            key: `(B, K, S, D)`, where K divides H. Without a key and a value, the query attends to
                those passed for `layer` before in this forward pass.
            value: `(B, K, S, U)`. The cache stores keys and values at the larger of both widths.
            scale: scale of the scores; `D ** -0.5` by default.
            rotary: cosines and sines `(P, R/2)` of all positions, to rotate the first R channels of
                queries and keys in halves; or a `Rotary`.
            window: number of latest tokens to attend to, the current one included; all by default.
            softcap: see `AttentionConfig`.
            sinks: `(H,)`; per head, a logit that draws attention away from the tokens.

        Raises:
            ConfigError: heads or widths do not match, or the layer has no keys.
        """
        if (key is None) != (value is None):
            raise ConfigError("attend: pass both a key and a value, or neither.")
        kv_heads, width, value_width = self._keys_of(layer, query, key, value)
        widest = max(width, value_width)
        spec = AttentionConfig(
            num_heads=query.shape[1],
            num_kv_heads=kv_heads,
            head_dim=widest,
            scale=query.shape[3] ** -0.5 if scale is None else scale,
            sliding_window=window,
            softcap=softcap,
        )
        # The kernels need values as wide as keys. Zero channels change no score.
        own = None
        if key is not None and value is not None:
            self.layers[layer] = spec
            own = _joined(key, widest), _joined(value, widest)
        how = How(spec, None if rotary is None else Rotary(*rotary), sinks)
        out_BSX = self._attend(layer, _joined(query, widest), own, how)
        out_BHSD = torch.unflatten(out_BSX, -1, (spec.num_heads, -1)).transpose(1, 2)
        return out_BHSD if value_width == widest else out_BHSD[..., :value_width]

    def _keys_of(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None
    ) -> tuple[int, int, int]:
        """Heads of the keys of a layer, their width, and that of its values."""
        if key is None or value is None:
            heads, width, value_width = self._keys.get(layer, (0, 0, 0))
            if width != query.shape[3]:
                found = f"keys of {width} channels" if heads else "none"
                raise ConfigError(
                    f"attend: layer {layer} needs keys of {query.shape[3]} channels from earlier "
                    f"in this forward pass (got {found}). Pass a key and a value."
                )
            return heads, width, value_width
        if layer in self._keys:
            raise ConfigError(
                f"attend: layer {layer} already has keys and values in this forward pass. Leave "
                "key and value out to share them, or use another layer number."
            )
        if query.shape[3] != key.shape[3]:
            raise ConfigError(
                f"attend: queries and keys must be equally wide (got {query.shape[3]} and "
                f"{key.shape[3]} channels). Project them to one width."
            )
        self._keys[layer] = key.shape[1], key.shape[3], value.shape[3]
        return self._keys[layer]

    def select(self, x: Tensor) -> Tensor:
        """Select from `(B, S, E)` the positions whose logits are needed, before the head.

        Optional: otherwise logits are computed for all new tokens and selected afterwards.
        """
        return x

    def recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor `(B, *shape)` that the previous step kept; zeros at the start of a sequence.

        Args:
            name: any name, the same at every step.
            shape: shape for one sequence.
            like: a tensor `(B, ...)` that sets batch size, dtype and device.

        Raises:
            ConfigError: it was already kept in this forward pass, or has another shape.
        """
        if name in self._kept_now:
            raise ConfigError(
                f"recall: state {name!r} was already kept in this forward pass; recall returns "
                "what the previous step kept. Call recall once, before the loop over the tokens, "
                "and keep once, after it. Layers need states with different names."
            )
        if self.recalled.setdefault(name, tuple(shape)) != tuple(shape):
            raise ConfigError(
                f"recall: state {name!r} has the shape {self.recalled[name]} for one sequence "
                f"(got {tuple(shape)}). Use another name for another state."
            )
        return self._recall(name, tuple(shape), like)

    def keep(self, name: str, value: Tensor) -> None:
        """Keep a tensor for the next step, `(B, *shape)` as in `recall`."""
        shape = self.recalled.get(name)
        if shape is not None and tuple(value.shape[1:]) != shape:
            raise ConfigError(
                f"keep: state {name!r} was recalled as (batch, {', '.join(map(str, shape))}) (got "
                f"{tuple(value.shape)}). Keep one tensor of that shape, not one for each token."
            )
        self._kept_now.add(name)
        self._keep(name, value)

    def extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of all tokens so far, for attention whose scores are not dot products.

        Args:
            name: any name, the same at every step; once per forward pass.
            x: vectors of the new tokens, `(B, S, E)`.

        Returns:
            `(B, T, E)`, and a mask, bool `(B, S, T)` or `(1, S, T)`: True at the new token and at
            those before it. The other vectors are undefined.

        Raises:
            ConfigError: it was already extended in this forward pass.
        """
        if name in self._extended_now:
            raise ConfigError(
                f"extend: state {name!r} was already extended in this forward pass. Use another "
                "name, such as one with the number of the layer."
            )
        self._extended_now.add(name)
        return self._extend(name, x)

    def tokens(self, x: Tensor) -> Sequence[Tensor]:
        """The new tokens of `(B, S, ...)` one by one, `(B, ...)` each.

        For modules in which a token needs the result of the one before it. The bundle then reads
        prompts token by token.
        """
        self.takes_one = True
        return x.unbind(1)

    def convolve(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Causal convolution per channel, over all tokens so far: `(B, C, S)`.

        Args:
            name: name of the state it keeps, `(B, C, W - 1)`.
            x: `(B, C, S)`.
            weight: `(C, W)`; the last tap belongs to the current token.
            bias: `(C,)`.
        """
        channels, taps = weight.shape
        before = self.recall(name, (channels, taps - 1), x)
        out, after = convolve(x, weight[:, None], bias, before)
        self.keep(name, after)
        return out

    def recur(
        self,
        name: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        decay: Tensor | None = None,
        rate: Tensor | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """Linear attention to all tokens, with a decay, the delta rule, or both: `(B, H, S, U)`.

        Args:
            name: name of the state it keeps, `(B, H, D, U)`.
            query: `(B, K, S, D)`, where K divides H; H / K adjacent value heads share each.
            key: `(B, K, S, D)`.
            value: `(B, H, S, U)`.
            decay: see `Recurrence`, with heads before tokens.
            rate: see `Recurrence`, with heads before tokens.
            scale: multiplies the queries.
        """
        before = self.recall(name, (value.shape[1], key.shape[3], value.shape[3]), value)
        out, after = recur(Recurrence(query, key, value, decay, rate, scale).turned(), before)
        self.keep(name, after)
        return out.transpose(1, 2)

    def __init__(self) -> None:
        self.layers: dict[int, AttentionConfig] = {}
        self.takes_one = False
        self._keys: dict[int, tuple[int, int, int]] = {}  # heads, and widths of keys and values
        self.recalled: dict[str, tuple[int, ...]] = {}
        self._kept_now: set[str] = set()
        self._extended_now: set[str] = set()

    @abstractmethod
    def _recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """See `recall`."""

    @abstractmethod
    def _keep(self, name: str, value: Tensor) -> None:
        """See `keep`."""

    @abstractmethod
    def _extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `extend`."""

    @abstractmethod
    def _attend(self, layer: int, query: Tensor, own: KeysAndValues | None, how: How) -> Tensor:
        """Attention to all keys, own ones or those of `layer` in this pass: `(B, S, H * U)`."""


class WholeState(State):
    """Whole sequences in plain PyTorch, for training and as the reference of an export.

    Attributes:
        kept: shape `(B, ...)` of each kept tensor, by name.
        extended: shape `(B, S, E)` of each tensor that grows, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heads: dict[int, tuple[KeysAndValues, Rotary | None]] = {}
        self.kept: dict[str, tuple[int, ...]] = {}
        self.extended: dict[str, tuple[int, ...]] = {}

    def positions(self, ids: Tensor) -> Tensor:
        """0, 1, ... `(1, S)`."""
        return torch.arange(ids.shape[1], device=ids.device)[None]

    def _recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        # nothing comes before a whole sequence
        return like.new_zeros(like.shape[0], *shape)

    def _keep(self, name: str, value: Tensor) -> None:
        # the shape alone: a whole sequence has no next step
        self.kept[name] = tuple(value.shape)

    def _extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        self.extended[name] = tuple(x.shape)
        return x, torch.ones(1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()

    def _attend(self, layer: int, query: Tensor, own: KeysAndValues | None, how: How) -> Tensor:
        if own is not None:
            self._heads[layer] = own, how.rotary
        keys_and_values, turned = self._heads[layer]
        if (turned is None) != (how.rotary is None):
            raise ConfigError(
                "attend: queries must be rotated like the shared keys. Pass both the same rotary "
                "tables, or rotate both beforehand."
            )
        heads = Heads(query, *keys_and_values)
        return ops.attention(heads, how.rotary, spec=how.spec, sinks=how.sinks)


class CachedState(State):
    """Sequences to continue: in PyTorch, or as nodes of a graph while it is traced.

    Args:
        step: lengths after this step.
        caches: keys and values of each layer so far, by its number.
        memory: tensors that the previous step kept, `(B, ...)` each, by name.
        rows: new tokens whose logits are needed, `(B, R)`; None for all.
        sequences: buffers of tensors that grow, `(B, capacity, E)` each, by name.

    Attributes:
        has_selected: the module called `select`, or had nothing to select.
    """

    def __init__(
        self,
        step: StepLengths,
        caches: Mapping[int, LayerCache],
        memory: Mapping[str, Tensor],
        rows: Tensor | None = None,
        sequences: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._step, self._rows = step, rows
        self._caches, self._memory, self._sequences = caches, memory, sequences or {}
        self.presents: dict[int, LayerCache] = {}
        self.kept: dict[str, Tensor] = {}
        self.extended: dict[str, Tensor] = {}
        self.has_selected = rows is None

    def positions(self, ids: Tensor) -> Tensor:
        """Positions after those of the cache, `(B, S)`."""
        return self._step.positions(ids.shape[1])

    def select(self, x: Tensor) -> Tensor:
        """The rows whose logits are needed, `(B, R, E)`."""
        self.has_selected = True
        return x if self._rows is None else ops.select(x, self._rows)

    def _recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        before = self._memory[name]
        if tuple(before.shape[1:]) != shape:
            raise ConfigError(
                f"recall: state {name!r} was kept as {tuple(before.shape[1:])} for one sequence "
                f"(now {shape}). Its shape must not depend on the number of tokens."
            )
        return before

    def _keep(self, name: str, value: Tensor) -> None:
        self.kept[name] = value

    def _extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        before_BCE = self._sequences[name]
        positions_BS = self._step.positions(x.shape[1])
        after_BCE = self.extended[name] = ops.extended(before_BCE, x, positions_BS)
        reach = self._step.reach(before_BCE.shape[1])
        return after_BCE[:, :reach], torch.arange(reach, device=x.device) <= positions_BS[..., None]

    def _attend(self, layer: int, query: Tensor, own: KeysAndValues | None, how: How) -> Tensor:
        spec, rotary, sinks = how
        if own is None:
            present = self.presents[layer]
            return ops.shared_attention(query, present, self._step, rotary, spec=spec, sinks=sinks)
        heads, past = Heads(query, *own), self._caches[layer]
        out, self.presents[layer] = ops.cached_attention(
            heads, past, self._step, rotary, spec=spec, sinks=sinks
        )
        return out


def _joined(x_BNSD: Tensor, width: int) -> Tensor:
    missing = width - x_BNSD.shape[3]
    return (F.pad(x_BNSD, (0, missing)) if missing else x_BNSD).transpose(1, 2).flatten(2)
