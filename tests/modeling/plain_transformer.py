"""A plain transformer in float64: one sequence, one head and one token at a time.

Written from the published formulas, without masks, batches or caches, for what no family of
transformers has: relative keys, concatenated positions, summed heads and MLPs of two layers. The
rest is compared with transformers in families/.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    ConcatenatedPositions,
    LearnedPositions,
    Positions,
    RelativeKeyPositions,
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
    for number, block in enumerate(config.blocks):
        x = layer(weights.below(f"blocks.{number}"), config.positions, block, x, source)
    return np.stack([norm(weights, "final_norm", 1e-3, row) for row in x])


def vector(weights: Weights, config: StackConfig, i: int, position: int) -> Array:
    """Input of the first block for one token."""
    token: Array = weights["embedding.weight"][i]
    match config.positions:
        case LearnedPositions(offset=offset):
            row: Array = weights["position_embedding.weight"][position + offset]
            return token + row
        case ConcatenatedPositions(table=LearnedPositions(offset=offset)):
            learned = weights["position_embedding.weight"][position + offset]
            return np.concatenate([token, learned])
        case ConcatenatedPositions(dim=dim, table=SinusoidalPositions()):
            # Vaswani et al. 2017, section 3.5: PE(pos, 2i) and PE(pos, 2i + 1).
            pairs = [position / 10_000 ** (2 * i / dim) for i in range(dim // 2)]
            waves = np.array([f(angle) for angle in pairs for f in (math.sin, math.cos)])
            return np.concatenate([token, waves])
        case _:
            return token


def norm(weights: Weights, name: str, eps: float, x: Array) -> Array:
    centred = x - np.mean(x)
    scaled: Array = weights[f"{name}.weight"] * centred / math.sqrt(np.mean(centred**2) + eps)
    return scaled + weights[f"{name}.bias"]


def layer(
    weights: Weights, positions: Positions, block: BlockConfig, x: list[Array], source: Array | None
) -> list[Array]:
    """Outputs of one block for a whole sequence."""

    def attend(rows: list[Array]) -> list[Array]:
        below = weights.below("attention")
        return [attention(below, positions, block.attention, now, rows) for now in range(len(rows))]

    def cross(rows: list[Array]) -> list[Array]:
        assert source is not None
        assert block.cross_attention is not None
        below = weights.below("cross_attention")
        return [cross_attention(below, block.cross_attention, row, source) for row in rows]

    def mix(rows: list[Array]) -> list[Array]:
        return [feed_forward(weights.below("feed_forward"), block, row) for row in rows]

    sublayers: list[tuple[str, Callable[[list[Array]], list[Array]]]] = [
        ("attention", attend),
        *([("cross_attention", cross)] if block.cross_attention else []),
        ("feed_forward", mix),
    ]
    for name, sublayer in sublayers:
        normed = [norm(weights, f"{name}_norm", block.norm.eps, row) for row in x]
        kept = normed if block.placement == "pre_residual" else x
        x = [a + b for a, b in zip(kept, sublayer(normed), strict=True)]
    return x


def attention(
    weights: Weights, positions: Positions, spec: AttentionConfig, now: int, rows: list[Array]
) -> Array:
    """Attention output of the token at `now`."""
    packed = [weights.linear("qkv", row) for row in rows]
    keys_at = spec.num_heads * spec.head_dim
    values_at = keys_at + spec.num_kv_heads * spec.head_dim
    visible = range(now + 1 if spec.causal else len(rows))
    if spec.sliding_window is not None:
        visible = visible[max(0, now + 1 - spec.sliding_window) : now + spec.sliding_window]
    heads = []
    for h in range(spec.num_heads):
        group = h // (spec.num_heads // spec.num_kv_heads)
        query = cut(packed[now], 0, h, spec.head_dim)
        scores = []
        for then in visible:
            key = cut(packed[then], keys_at, group, spec.head_dim)
            if isinstance(positions, RelativeKeyPositions):
                # Shaw et al. 2018, equation 4: x_i W^Q (x_j W^K + a^K_ij)^T.
                most = positions.max_distance
                distance = max(-most, min(most, then - now))
                key = key + weights["relative_key.weight"][distance + most]
            scores.append(capped(spec.scale * float(query @ key), spec.softcap))
        values = [cut(packed[then], values_at, group, spec.value_width) for then in visible]
        heads.append(average(scores, values))
    return readout(weights, spec, heads)


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


def feed_forward(below: Weights, block: BlockConfig, row: Array) -> Array:
    activations: dict[str, Callable[[float], float]] = {
        "relu": lambda x: max(x, 0.0),
        "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    }
    act = np.vectorize(activations[block.dense.activation], otypes=[np.float64])
    hidden = act(below.linear("up", row))
    if block.dense.hidden_layers == 2:
        hidden = act(below.linear("middle", hidden))
    return below.linear("down", hidden)
