"""What a module is given beside its ids, so that it can be trained, run and exported as it is.

A module of the user's own has `forward(ids, state)` and asks the state for everything that reaches
across tokens: `attend` for attention, `recall` and `keep` for what is replaced at every step,
`extend` for what grows by every token, `convolve` for a causal convolution, `recur` for linear
attention. Given `State.whole()`, these are plain PyTorch over a whole text, and gradients flow.
Given a `CachedState`, they continue texts; while `torch.onnx.export` traces, an attention becomes
one node.

Shape letters: B batch, S new tokens, T tokens so far, E width, C channels, W taps of a convolution,
H query heads, K key/value heads, D head width, U value width, P rows of rotary tables, R channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.layers import ops
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.layers.convolution import convolve
from ortolan.modeling.layers.ops import Heads, Rotary
from ortolan.modeling.layers.recurrence import Recurrence, recur


class State(ABC):
    """What reaches across tokens; see `whole` for the one to train with.

    Attributes:
        layers: the attention of each layer that had keys in this forward, by its number.
        takes_one: the module has asked for its tokens one by one.
    """

    @staticmethod
    def whole() -> "WholeState":
        """The state of texts from their first token to their last, without a cache."""
        return WholeState()

    @abstractmethod
    def positions(self, ids: Tensor) -> Tensor:
        """The position of each new token of `(B, S)`, int64 `(B, S)` or `(1, S)`."""

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
        """Causal softmax attention to the text so far.

        Args:
            layer: any number, the same at every step; whose keys and values these are.
            query: `(B, H, S, D)`.
            key: `(B, K, S, D)`, K a divisor of H; without a key and a value, the query attends to
                those that `layer` got before in this forward.
            value: `(B, K, S, U)`. The cache holds keys and values as wide as the wider of them.
            scale: of the scores; `D ** -0.5` by default.
            rotary: cosines and sines `(P, R/2)` of every position, by which the halves of the first
                R channels of queries and keys are turned here; or a `Rotary`.
            window: tokens that each attends to, itself included; all before it by default.
            softcap: see `AttentionConfig`.
            sinks: `(H,)`; a logit of each head that takes attention away from the tokens.

        Returns:
            `(B, H, S, U)`.

        Raises:
            ConfigError: heads or widths that do not belong together, or a layer without keys.
        """
        if (key is None) != (value is None):
            raise ConfigError("attend: expected a key and a value, or neither, got one. Give both.")
        turn = None if rotary is None else Rotary(*rotary)
        if key is None or value is None:
            spec, widths = self._shared_spec(layer, query), self._widths[layer]
        else:
            spec, widths = self._own_spec(layer, query, key, value), (key.shape[3], value.shape[3])
        spec = replace(
            spec,
            scale=query.shape[3] ** -0.5 if scale is None else scale,
            sliding_window=window,
            softcap=softcap,
        )
        # The kernels take values as wide as keys. Channels of zeros change no score.
        query_BSX = _joined(query, spec.head_dim)
        if key is None or value is None:
            out_BSX = self._attend_shared(layer, query_BSX, turn, sinks, spec)
        else:
            self.layers[layer], self._widths[layer] = spec, widths
            heads = Heads(query_BSX, _joined(key, spec.head_dim), _joined(value, spec.head_dim))
            out_BSX = self._attend(layer, heads, turn, sinks, spec)
        out_BHSD = torch.unflatten(out_BSX, -1, (spec.num_heads, -1)).transpose(1, 2)
        return out_BHSD if widths[1] == spec.head_dim else out_BHSD[..., : widths[1]]

    def _own_spec(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> AttentionConfig:
        if layer in self.layers:
            raise ConfigError(
                f"attend: expected one key and value of layer {layer} in a forward, got others. "
                "Leave them out to share those that it has, or give it a number of its own."
            )
        width, widest = key.shape[3], max(key.shape[3], value.shape[3])
        if query.shape[3] != width:
            raise ConfigError(
                f"attend: expected keys as wide as queries, got queries of {query.shape[3]} and "
                f"keys of {width} channels. Project them to one width."
            )
        return AttentionConfig(
            num_heads=query.shape[1], num_kv_heads=key.shape[1], head_dim=widest, scale=1.0
        )

    def _shared_spec(self, layer: int, query: Tensor) -> AttentionConfig:
        shared, (width, _) = self.layers.get(layer), self._widths.get(layer, (0, 0))
        if shared is None or width != query.shape[3]:
            got = "none" if shared is None else f"keys of {width} channels"
            raise ConfigError(
                f"attend: expected keys of {query.shape[3]} channels that layer {layer} had before "
                f"in this forward, got {got}. Give a key and a value."
            )
        return replace(shared, num_heads=query.shape[1])

    def select(self, x: Tensor) -> Tensor:
        """What enters the last product, `(B, S, E)`, at the positions whose logits are asked for.

        A module need not call it; without it, logits are computed for every new token and those
        that nobody asked for are left out.
        """
        return x

    @abstractmethod
    def recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor `(B, *shape)` that the step before kept; zeros at the start of a text.

        Args:
            name: any, the same at every step.
            shape: of one text's.
            like: any tensor `(B, ...)`; the result has its B, its type and its device.
        """

    @abstractmethod
    def keep(self, name: str, value: Tensor) -> None:
        """Keep a tensor `(B, *shape)` for the next step; see `recall`."""

    @abstractmethod
    def extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of all tokens so far, for attention whose scores are not products.

        Args:
            name: any, the same at every step, and once in a forward.
            x: those of the new tokens, `(B, S, E)`.

        Returns:
            `(B, T, E)`, and bool `(B, S, T)` or `(1, S, T)`: which of them are a new token's own or
            before it. The others hold no meaning.
        """

    def tokens(self, x: Tensor) -> Sequence[Tensor]:
        """The new tokens of `(B, S, ...)` one by one, `(B, ...)` each.

        For a module in which each needs what was computed for the one before it. Its bundle takes
        prompts token by token.
        """
        self.takes_one = True
        return x.unbind(1)

    def convolve(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A causal convolution of each channel with its own taps, over the text so far.

        Args:
            name: of the state that it keeps, `(B, C, W - 1)`.
            x: `(B, C, S)`.
            weight: `(C, W)`; the last tap is the token's own.
            bias: `(C,)`.

        Returns:
            `(B, C, S)`.
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
        """Linear attention over the text so far, with a decay, the delta rule, or both.

        Args:
            name: of the state that it keeps, `(B, H, D, U)`.
            query: `(B, K, S, D)`, K a divisor of H; as many heads in turn share each.
            key: `(B, K, S, D)`.
            value: `(B, H, S, U)`.
            decay: see `Recurrence`.
            rate: see `Recurrence`.
            scale: of the queries.

        Returns:
            `(B, H, S, U)`.
        """
        before = self.recall(name, (value.shape[1], key.shape[3], value.shape[3]), value)
        out, after = recur(Recurrence(query, key, value, decay, rate, scale).turned(), before)
        self.keep(name, after)
        return out.transpose(1, 2)

    def __init__(self) -> None:
        self.layers: dict[int, AttentionConfig] = {}
        self.takes_one = False
        self._widths: dict[int, tuple[int, int]] = {}  # of keys and values

    @abstractmethod
    def _attend(
        self,
        layer: int,
        heads: Heads,
        rotary: Rotary | None,
        sinks: Tensor | None,
        spec: AttentionConfig,
    ) -> Tensor:
        """Attention to all keys, those of the new tokens among them, `(B, S, H * U)`."""

    @abstractmethod
    def _attend_shared(
        self,
        layer: int,
        query_BSX: Tensor,
        rotary: Rotary | None,
        sinks: Tensor | None,
        spec: AttentionConfig,
    ) -> Tensor:
        """Attention to the keys of a layer that has those of the new tokens already."""


class WholeState(State):
    """Whole texts: plain PyTorch, for training and as the reference of what was exported.

    Attributes:
        kept: the shape `(B, ...)` of each tensor that was kept, by name.
        extended: the shape `(B, S, E)` of what grew, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heads: dict[int, tuple[Heads, Rotary | None]] = {}
        self.kept: dict[str, tuple[int, ...]] = {}
        self.extended: dict[str, tuple[int, ...]] = {}

    def positions(self, ids: Tensor) -> Tensor:
        """0, 1, ... `(1, S)`."""
        return torch.arange(ids.shape[1], device=ids.device)[None]

    def recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Zeros: a whole text has nothing before it."""
        return like.new_zeros(like.shape[0], *shape)

    def keep(self, name: str, value: Tensor) -> None:
        """Remember nothing but the shape: a whole text has no next step."""
        self.kept[name] = tuple(value.shape)

    def extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """The new ones are all there are."""
        self.extended[name] = tuple(x.shape)
        return x, torch.ones(1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()

    def _attend(
        self,
        layer: int,
        heads: Heads,
        rotary: Rotary | None,
        sinks: Tensor | None,
        spec: AttentionConfig,
    ) -> Tensor:
        self._heads[layer] = heads, rotary
        return ops.attention(heads, rotary, spec=spec, sinks=sinks)

    def _attend_shared(
        self,
        layer: int,
        query_BSX: Tensor,
        rotary: Rotary | None,
        sinks: Tensor | None,
        spec: AttentionConfig,
    ) -> Tensor:
        heads, turned = self._heads[layer]
        if (turned is None) != (rotary is None):
            raise ConfigError(
                "attend: expected queries that are turned as the shared keys are, got others. "
                "Give both the same rotary tables, or turn both before."
            )
        return ops.attention(heads._replace(query=query_BSX), rotary, spec=spec, sinks=sinks)


class CachedState(State):
    """Texts that are continued: eager, or as the nodes of a graph while it is traced.

    Args:
        step: lengths after this step.
        caches: keys and values of each layer so far, by its number.
        memory: what the step before kept, `(B, ...)` each, by name.
        rows: new tokens whose logits are asked for, `(B, R)`; all where None.
        sequences: buffers of what grows, `(B, capacity, E)` each, by name.

    Attributes:
        presents: the extended keys and values.
        kept: what this step kept.
        extended: the buffers, with the new tokens in them.
        has_selected: the module has left out the other rows.
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
        self._step = step
        self._rows = rows
        self._caches = caches
        self._memory = memory
        self._sequences = sequences or {}
        self.extended: dict[str, Tensor] = {}
        self.presents: dict[int, LayerCache] = {}
        self.kept: dict[str, Tensor] = {}
        self.has_selected = rows is None

    def positions(self, ids: Tensor) -> Tensor:
        """After those of the cache, `(B, S)`."""
        return self._step.positions(ids.shape[1])

    def select(self, x: Tensor) -> Tensor:
        """The rows that are asked for, `(B, R, E)`."""
        self.has_selected = True
        return x if self._rows is None else ops.select(x, self._rows)

    def recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """What the step before kept."""
        return self._memory[name]

    def keep(self, name: str, value: Tensor) -> None:
        """Keep a tensor for the next step."""
        self.kept[name] = value

    def extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the buffer, the new ones in their places."""
        before_BCE = self._sequences[name]
        positions_BS = self._step.positions(x.shape[1])
        after_BCE = self.extended[name] = ops.extended(before_BCE, x, positions_BS)
        reach = self._step.reach(before_BCE.shape[1])
        return after_BCE[:, :reach], torch.arange(reach, device=x.device) <= positions_BS[..., None]

    def _attend(
        self,
        layer: int,
        heads: Heads,
        rotary: Rotary | None,
        sinks: Tensor | None,
        spec: AttentionConfig,
    ) -> Tensor:
        out, self.presents[layer] = ops.cached_attention(
            heads, self._caches[layer], self._step, rotary, spec=spec, sinks=sinks
        )
        return out

    def _attend_shared(
        self,
        layer: int,
        query_BSX: Tensor,
        rotary: Rotary | None,
        sinks: Tensor | None,
        spec: AttentionConfig,
    ) -> Tensor:
        return ops.shared_attention(
            query_BSX, self.presents[layer], self._step, rotary, spec=spec, sinks=sinks
        )


def _joined(x_BNSD: Tensor, width: int) -> Tensor:
    missing = width - x_BNSD.shape[3]
    return (F.pad(x_BNSD, (0, missing)) if missing else x_BNSD).transpose(1, 2).flatten(2)
