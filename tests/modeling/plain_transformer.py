"""A plain transformer in float64: one sequence, one head and one token at a time.

Written from the published formulas, without masks, batches or caches.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ortolan.modeling.config import (
    AlibiPositions,
    AttentionConfig,
    BlockConfig,
    ConcatenatedPositions,
    LearnedPositions,
    NormConfig,
    Positions,
    RelativeBiasPositions,
    RelativeKeyPositions,
    RotaryPositions,
    SinusoidalPositions,
    StackConfig,
)

Array = NDArray[np.float64]


class Weights:
    """Weights of a module below a prefix, in float64. A missing bias is zero."""

    def __init__(self, module: nn.Module, prefix: str = "") -> None:
        self._module, self._prefix = module, prefix
        named = module.named_parameters(remove_duplicate=False)
        self._values = {
            name.removeprefix(prefix): value.detach().double().numpy()
            for name, value in named
            if name.startswith(prefix)
        }

    def below(self, prefix: str) -> "Weights":
        return Weights(self._module, f"{self._prefix}{prefix}.")

    def __getitem__(self, name: str) -> Array:
        return self._values[name]

    def linear(self, name: str, x: Array) -> Array:
        bias: Array | float = self._values.get(f"{name}.bias", 0.0)
        out: Array = self[f"{name}.weight"] @ x + bias
        return out


def stack(weights: Weights, config: StackConfig, ids: Sequence[int], source: Array | None) -> Array:
    """Outputs `(S, E)` of a stack for one sequence, after the final norm."""
    x = [vector(weights, config, i, position) for position, i in enumerate(ids)]
    if config.embedding_norm:
        x = [norm(weights, "embedding_norm", config.embedding_norm, row) for row in x]
    for number, block in enumerate(config.blocks):
        x = layer(weights.below(f"blocks.{number}"), weights, config, block, x, source)
    if config.final_norm:
        x = [norm(weights, "final_norm", config.final_norm, row) for row in x]
    return np.stack(x)


def vector(weights: Weights, config: StackConfig, i: int, position: int) -> Array:
    """Input of the first block for one token."""
    token: Array = weights["embedding.weight"][i] * config.embedding_scale
    match config.positions:
        case LearnedPositions(offset=offset):
            row: Array = weights["position_embedding.weight"][position + offset]
            return token + row
        case SinusoidalPositions(layout=layout):
            return token + sinusoid(position, len(token), layout)
        case ConcatenatedPositions(table=LearnedPositions(offset=offset)):
            learned = weights["position_embedding.weight"][position + offset]
            return np.concatenate([token, learned])
        case ConcatenatedPositions(dim=dim, table=SinusoidalPositions(layout=layout)):
            return np.concatenate([token, sinusoid(position, dim, layout)])
        case _:
            return token


def sinusoid(position: int, width: int, layout: str) -> Array:
    """Vaswani et al. 2017, section 3.5: PE(pos, 2i) and PE(pos, 2i + 1)."""
    pairs = [position / 10_000 ** (2 * i / width) for i in range(width // 2)]
    if layout == "halves":
        return np.array([math.sin(a) for a in pairs] + [math.cos(a) for a in pairs])
    return np.array([f(a) for a in pairs for f in (math.sin, math.cos)])


def norm(weights: Weights, name: str, config: NormConfig, x: Array) -> Array:
    weight = weights[f"{name}.weight"] if config.scale else np.ones(len(x))
    if config.kind == "rms":
        return weight * x / math.sqrt(np.mean(x**2) + config.eps)
    centred = x - np.mean(x)
    scaled: Array = weight * centred / math.sqrt(np.mean(centred**2) + config.eps)
    return scaled + (weights[f"{name}.bias"] if config.bias else 0.0)


def layer(
    weights: Weights,
    shared: Weights,
    config: StackConfig,
    block: BlockConfig,
    x: list[Array],
    source: Array | None,
) -> list[Array]:
    """Outputs of one block for a whole sequence."""

    def attend(rows: list[Array]) -> list[Array]:
        head = Head(
            weights.below("attention"),
            shared,
            block.attention.rotary or config.positions,
            block.attention,
        )
        return [head.read(now, rows) for now in range(len(rows))]

    def cross(rows: list[Array]) -> list[Array]:
        assert source is not None
        assert block.cross_attention is not None
        below = weights.below("cross_attention")
        return [cross_attention(below, block.cross_attention, row, source) for row in rows]

    def mix(rows: list[Array]) -> list[Array]:
        return [feed_forward(weights, block, row) for row in rows]

    def normed_by(name: str) -> list[Array]:
        return [norm(weights, f"{name}_norm", block.norm, row) for row in x]

    if block.placement in ("parallel", "parallel_norms"):
        own = "attention" if block.placement == "parallel" else "feed_forward"
        both = zip(x, attend(normed_by("attention")), mix(normed_by(own)), strict=True)
        return [a + b + c for a, b, c in both]

    sublayers: list[tuple[str, Callable[[list[Array]], list[Array]]]] = [
        ("attention", attend),
        *([("cross_attention", cross)] if block.cross_attention else []),
        ("feed_forward", mix),
    ]
    for name, sublayer in sublayers:

        def normed(rows: list[Array], name: str = f"{name}_norm") -> list[Array]:
            if name == "attention_norm" and not block.attention_norm:
                return rows
            return [norm(weights, name, block.norm, row) for row in rows]

        if block.placement == "pre":
            x = added(x, sublayer(normed(x)), block)
        elif block.placement == "post":
            x = normed(added(x, sublayer(x), block))
        elif block.placement == "inner_post":
            x = added(x, normed(sublayer(x)), block)
        elif block.placement == "sandwich":
            x = added(x, normed(sublayer(normed(x)), f"{name}_post_norm"), block)
        else:
            x = normed(x)
            x = added(x, sublayer(x), block)
    return x


def added(x: list[Array], change: list[Array], block: BlockConfig) -> list[Array]:
    return [a + block.residual_scale * b for a, b in zip(x, change, strict=True)]


class Head:
    """Self-attention of one layer, head by head."""

    def __init__(
        self, weights: Weights, shared: Weights, positions: Positions, spec: AttentionConfig
    ) -> None:
        self.weights, self.shared, self.positions, self.spec = weights, shared, positions, spec

    def read(self, now: int, rows: list[Array]) -> Array:
        """Attention output of the token at `now`."""
        spec = self.spec
        packed = [self.weights.linear("qkv", row) for row in rows]
        if spec.clip is not None:
            packed = [np.clip(row, -spec.clip, spec.clip) for row in packed]
        keys_at = spec.num_heads * spec.head_dim
        values_at = keys_at + spec.num_kv_heads * spec.head_dim
        heads = []
        for h in range(spec.num_heads):
            group = h // (spec.num_heads // spec.num_kv_heads)
            query = self.prepared("query", packed[now][:keys_at], h, now)
            keys = [
                self.prepared("key", row[keys_at:values_at], group, then)
                for then, row in enumerate(packed)
            ]
            values = [cut(row, values_at, group, spec.value_width) for row in packed]
            positions = range(now + 1 if spec.causal else len(rows))
            if spec.sliding_window is not None:
                positions = positions[
                    max(0, now + 1 - spec.sliding_window) : now + spec.sliding_window
                ]
            scores = [self.score(h, query, now, keys[then], then) for then in positions]
            visible = [values[then] for then in positions]
            if spec.sinks:
                scores.append(float(self.weights["sinks"][h]))
                visible.append(np.zeros(spec.value_width))
            heads.append(average(scores, visible))
        if spec.out_norm:
            heads = [norm(self.weights, "out_norm", spec.out_norm, np.concatenate(heads))]
        return readout(self.weights, spec, heads)

    def prepared(self, name: str, row: Array, h: int, position: int) -> Array:
        """The query or key of one head, after its norm and rotation."""
        spec, kind = self.spec, self.spec.query_key_norm
        width = len(row) if spec.norm_over == "all" else spec.head_dim

        def normed(x: Array) -> Array:
            parts = np.split(x, len(x) // width)
            assert kind is not None
            return np.concatenate([norm(self.weights, f"{name}_norm", kind, x) for x in parts])

        if kind and not spec.norm_after_rotary:
            row = normed(row)
        heads = np.split(row, len(row) // spec.head_dim)
        row = np.concatenate([self.rotate_at(x, position) for x in heads])
        if kind and spec.norm_after_rotary:
            row = normed(row)
        return cut(row, 0, h, spec.head_dim)

    def rotate_at(self, x: Array, position: int) -> Array:
        match self.positions:
            case RotaryPositions() as rotary:
                return rotate(x, position, rotary)
            case _:
                return x

    def score(self, h: int, query: Array, now: int, key: Array, then: int) -> float:
        spec, extra = self.spec, 0.0
        match self.positions:
            case RelativeKeyPositions(max_distance=most):
                # Shaw et al. 2018, equation 4: x_i W^Q (x_j W^K + a^K_ij)^T.
                distance = max(-most, min(most, then - now))
                key = key + self.weights["relative_key.weight"][distance + most]
            case RelativeBiasPositions(buckets=buckets, max_distance=most):
                number = bucket(then - now, buckets, most, causal=spec.causal)
                extra = float(self.shared["position_bias.weight"][number, h])
            case AlibiPositions(scale=scale):
                # Press et al. 2022, section 3, for a power of two.
                extra = -abs(now - then) * 2 ** (-8 * (h + 1) / spec.num_heads) * scale
        return capped(spec.scale * float(query @ key), spec.softcap) + extra


def cross_attention(weights: Weights, spec: AttentionConfig, row: Array, source: Array) -> Array:
    query = weights.linear("q", row)
    packed = [weights.linear("kv", other) for other in source]
    heads = []
    for h in range(spec.num_heads):
        group = h // (spec.num_heads // spec.num_kv_heads)
        keys = [cut(other, 0, group, spec.head_dim) for other in packed]
        values_at = spec.num_kv_heads * spec.head_dim
        values = [cut(other, values_at, group, spec.value_width) for other in packed]
        mine = cut(query, 0, h, spec.head_dim)
        scores = [capped(spec.scale * float(mine @ key), spec.softcap) for key in keys]
        heads.append(average(scores, values))
    return readout(weights, spec, heads)


def cut(row: Array, start: int, number: int, width: int) -> Array:
    return row[start + number * width : start + (number + 1) * width]


def capped(score: float, softcap: float | None) -> float:
    return score if softcap is None else softcap * math.tanh(score / softcap)


def average(scores: list[float], values: list[Array]) -> Array:
    """Mean of the values, weighted by the softmax of the scores."""
    powers = [math.exp(score) for score in scores]
    total: Array = sum(
        (p / sum(powers) * v for p, v in zip(powers, values, strict=True)), np.zeros_like(values[0])
    )
    return total


def readout(weights: Weights, spec: AttentionConfig, heads: list[Array]) -> Array:
    if spec.readout == "sum":
        return sum(heads[1:], heads[0])
    return weights.linear("out", np.concatenate(heads))


def rotate(x: Array, position: int, rotary: RotaryPositions) -> Array:
    """Su et al. 2021: rotates pairs of channels, as complex numbers, by an angle."""
    x, half = x.copy(), rotary.dim // 2
    for i in range(half):
        one, other = (2 * i, 2 * i + 1) if rotary.interleaved else (i, i + half)
        angle = position * rotary.theta ** (-2 * i / rotary.dim)
        number = complex(x[one], x[other]) * complex(math.cos(angle), math.sin(angle))
        x[one], x[other] = number.real, number.imag
    return x


def bucket(distance: int, buckets: int, most: int, *, causal: bool) -> int:
    """Raffel et al. 2020, section 2.1, for a key `distance` tokens after the query."""
    if causal:
        first, side, away = 0, buckets, max(0, -distance)
    else:
        first, side, away = (buckets // 2 if distance > 0 else 0), buckets // 2, abs(distance)
    exact = side // 2
    if away < exact:
        return first + away
    growth = math.log(away / exact) / math.log(most / exact)
    return first + min(side - 1, exact + int(growth * (side - exact)))


def xielu(right: float, left: float) -> Callable[[float], float]:
    """Huang and Schlag 2024, section 3, with both parameters before their softplus."""
    bend_right, bend_left = math.log1p(math.exp(right)), 0.5 + math.log1p(math.exp(left))

    def activation(x: float) -> float:
        curve = bend_right * x**2 if x > 0 else bend_left * (math.expm1(x) - x)
        return curve + 0.5 * x

    return activation


ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


def feed_forward(weights: Weights, block: BlockConfig, row: Array) -> Array:
    below, config = weights.below("feed_forward"), block.dense
    if config.activation == "xielu":
        activation = xielu(*(float(below[f"activation.{side}"][0]) for side in ("right", "left")))
    else:
        activation = ACTIVATIONS[config.activation]
    act = np.vectorize(activation, otypes=[np.float64])
    if config.kind == "gated":
        hidden = act(below.linear("gate", row)) * below.linear("up", row)
    else:
        hidden = act(below.linear("up", row))
    if config.hidden_layers == 2:
        hidden = act(below.linear("middle", hidden))
    if config.inner_norm:
        hidden = norm(below, "inner_norm", config.inner_norm, hidden)
    return below.linear("down", hidden)
