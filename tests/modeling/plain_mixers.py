"""Mixers with a memory of fixed size in NumPy, token by token and head by head.

Written from the formulas of the papers that the configs name, independently of the layers.

Shape letters: S tokens, E model width, C channels, W taps.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ortolan.modeling.config import (
    GatedDeltaConfig,
    LinearRecurrenceConfig,
    Mixer,
    ShortConvConfig,
    StateSpaceConfig,
)

Array = NDArray[np.float64]
Named = Mapping[str, Array]


def weights_of(layer: nn.Module) -> dict[str, Array]:
    """The weights of a layer in float64, by name."""
    return {name: p.detach().double().numpy() for name, p in layer.named_parameters()}


def mixed(config: Mixer, named: Named, x_SE: Array) -> Array:
    """Output of a mixer for a sequence, `(S, E)`."""
    match config:
        case ShortConvConfig():
            return _short_conv(config, named, x_SE)
        case GatedDeltaConfig():
            return _gated_delta(config, named, x_SE)
        case StateSpaceConfig():
            return _state_space(config, named, x_SE)
        case LinearRecurrenceConfig():
            return _linear_recurrence(config, named, x_SE)
        case _:
            raise TypeError(f"no plain form of {type(config).__name__}")


def _linear(named: Named, name: str, x: Array) -> Array:
    out: Array = x @ named[f"{name}.weight"].T + named.get(f"{name}.bias", 0.0)
    return out


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


def _rms(x: Array, eps: float) -> Array:
    out: Array = x / np.sqrt(np.mean(x * x) + eps)
    return out


def _convolved(named: Named, x_SC: Array) -> Array:
    """Convolution of the channels over each token and the W - 1 tokens before it."""
    weight_CW, out = named["conv.weight"][:, 0], np.zeros_like(x_SC)
    taps = weight_CW.shape[1]
    for token in range(len(x_SC)):
        for back in range(min(taps, token + 1)):
            out[token] += weight_CW[:, taps - 1 - back] * x_SC[token - back]
    return out + named.get("conv.bias", 0.0)


def _short_conv(config: ShortConvConfig, named: Named, x_SE: Array) -> Array:
    before, after, x = np.split(_linear(named, "project", x_SE), 3, axis=-1)
    return _linear(named, "out", after * _convolved(named, before * x))


def _gated_delta(config: GatedDeltaConfig, named: Named, x_SE: Array) -> Array:
    keys, values = config.num_key_heads * config.key_dim, config.num_heads * config.value_dim
    ends = np.cumsum([config.mixed, values, config.num_heads])
    qkv, gate, rate, step = np.split(_linear(named, "project", x_SE), ends, axis=-1)
    query, key, value = np.split(_silu(_convolved(named, qkv)), [keys, 2 * keys], axis=-1)
    out = np.zeros_like(gate)
    for head in range(config.num_heads):
        shared = head * config.num_key_heads // config.num_heads
        of_key = slice(shared * config.key_dim, (shared + 1) * config.key_dim)
        of_value = slice(head * config.value_dim, (head + 1) * config.value_dim)
        memory = np.zeros((config.key_dim, config.value_dim))
        for token in range(len(x_SE)):
            q, k = query[token, of_key], key[token, of_key]
            q, k = (x / np.sqrt(x @ x + 1e-6) for x in (q, k))
            b = _sigmoid(rate[token, head])
            a = np.exp(
                -np.exp(named["decay"][head])
                * _softplus(step[token, head] + named["step_bias"][head])
            )
            identity = np.eye(config.key_dim)
            # Equation 10 of the paper, transposed.
            memory = a * (identity - b * np.outer(k, k)) @ memory
            memory = memory + b * np.outer(k, value[token, of_value])
            read = _rms(memory.T @ q / np.sqrt(config.key_dim), config.norm.eps)
            out[token, of_value] = read * named["norm.weight"] * _silu(gate[token, of_value])
    return _linear(named, "out", out)


def _state_space(config: StateSpaceConfig, named: Named, x_SE: Array) -> Array:
    inner, state_dim = config.channels, config.state_dim
    shared = config.groups * state_dim
    projected = _linear(named, "project", x_SE)
    if config.step_rank is None:
        gate, entering, step = np.split(projected, [inner, inner + config.mixed], axis=-1)
        convolved = _silu(_convolved(named, entering))
        x, key, query = np.split(convolved, [inner, inner + shared], axis=-1)
        step = _softplus(step + named["step_bias"])
        if config.steps is not None:
            step = np.clip(step, *config.steps)
    else:
        entering, gate = np.split(projected, 2, axis=-1)
        x = _silu(_convolved(named, entering))
        rank, key, query = np.split(
            _linear(named, "select", x), [config.step_rank, config.step_rank + state_dim], axis=-1
        )
        if config.inner_norm is not None:
            eps = config.inner_norm.eps
            rank, key, query = (
                np.stack([_rms(row, eps) for row in rows]) for rows in (rank, key, query)
            )
        step = _softplus(_linear(named, "step_size", rank))
    out = np.zeros_like(x)
    for channel in range(inner):
        head = channel // config.head_dim
        group = head * config.groups // config.num_heads
        part = slice(group * state_dim, (group + 1) * state_dim)
        rates, memory = -np.exp(named["decay"][head]), np.zeros(state_dim)
        for token in range(len(x_SE)):
            dt, value = step[token, head], x[token, channel]
            memory = np.exp(dt * rates) * memory + dt * key[token, part] * value
            out[token, channel] = memory @ query[token, part] + named["skip"][head] * value
    out = out * _silu(gate)
    if config.norm is not None:
        parts = np.split(out, config.groups, axis=-1)
        normed = [np.stack([_rms(row, config.norm.eps) for row in part]) for part in parts]
        out = np.concatenate(normed, axis=-1) * named["norm.weight"]
    return _linear(named, "out", out)


def _linear_recurrence(config: LinearRecurrenceConfig, named: Named, x_SE: Array) -> Array:
    x = _convolved(named, _linear(named, "enter", x_SE))
    blocks = np.split(x, config.num_heads, axis=-1)
    gates = {
        name: _sigmoid(
            np.concatenate(
                [
                    block @ named[f"{name}.weight"][place] + named[f"{name}.bias"][place]
                    for place, block in enumerate(blocks)
                ],
                axis=-1,
            )
        )
        for name in ("input_gate", "recurrence_gate")
    }
    memory, out = np.zeros(config.channels), np.zeros_like(x)
    for token in range(len(x)):
        a = np.exp(-8 * gates["recurrence_gate"][token] * _softplus(named["decay"]))
        scale: Any = 1.0 if token == 0 else np.sqrt(1 - a * a)
        memory = a * memory + scale * gates["input_gate"][token] * x[token]
        out[token] = memory
    gate = _linear(named, "gate", x_SE)
    bent = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    return _linear(named, "out", out * bent)
