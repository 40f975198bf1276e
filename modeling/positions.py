"""Where a token stands: the tables that every kind of position needs.

Knows angles and tables. Does not know attention: `ops.py` applies the rotation.

Shape letters: P positions (the context), R rotated channels of a head, E model width.
"""

import math

import torch
from torch import Tensor

from ortolan.modeling.config import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    RotaryPositions,
    SinusoidalPositions,
    TransformerConfig,
    YarnScaling,
)


def tables(config: TransformerConfig) -> dict[str, Tensor]:
    """The fixed tables of a model, by the name of the buffer that holds each, float32.

    `rotary_cos` and `rotary_sin` are `(P, R/2)`; `position_table` is `(P, E)`. A model without
    fixed tables has none: learned positions are a weight.
    """
    match config.positions:
        case RotaryPositions() as positions:
            cos, sin = rotary_tables(positions, config.context_length)
            return {"rotary_cos": cos, "rotary_sin": sin}
        case SinusoidalPositions(layout=layout):
            table = sinusoidal_table(config.context_length, config.hidden_size, layout)
            return {"position_table": table}
        case _:
            return {}


def sinusoidal_table(length: int, width: int, layout: str) -> Tensor:
    """The table of Vaswani et al. 2017, section 3.5: `(length, width)`."""
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    pair = (angles.sin(), angles.cos()[:, : width // 2])
    if layout == "halves":
        return torch.cat(pair, 1).float()
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = pair
    return table.float()


def rotary_tables(positions: RotaryPositions, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, `(length, R/2)` each."""
    frequencies = rotary_frequencies(positions, length)
    angles_PR = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    match positions.scaling:
        case YarnScaling(attention_factor=factor):
            return angles_PR.cos() * factor, angles_PR.sin() * factor
        case _:
            return angles_PR.cos(), angles_PR.sin()


def rotary_frequencies(positions: RotaryPositions, length: int) -> Tensor:
    """Radians per position of each channel pair, `(R/2,)`, for a context of `length`."""
    match positions.scaling:
        case None:
            return _inverse_frequencies(positions.dim, positions.theta)
        case LinearScaling(factor=factor):
            return _inverse_frequencies(positions.dim, positions.theta) / factor
        case DynamicNTKScaling() as scaling:
            return _dynamic_ntk(positions, scaling, length)
        case Llama3Scaling() as scaling:
            return _llama3(positions, scaling)
        case YarnScaling() as scaling:
            return _yarn(positions, scaling)


def _inverse_frequencies(dim: int, theta: float) -> Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return 1.0 / theta**exponents


def _dynamic_ntk(positions: RotaryPositions, scaling: DynamicNTKScaling, length: int) -> Tensor:
    """The base grows so that the longest wavelength covers `length`."""
    longest = max(length, scaling.original_context)
    stretch = scaling.factor * longest / scaling.original_context - (scaling.factor - 1)
    theta = positions.theta * stretch ** (positions.dim / (positions.dim - 2))
    return _inverse_frequencies(positions.dim, theta)


def _llama3(positions: RotaryPositions, scaling: Llama3Scaling) -> Tensor:
    """Wavelengths above original / low are divided, below original / high kept."""
    frequencies = _inverse_frequencies(positions.dim, positions.theta)
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_context / wavelengths
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - ramp) * frequencies / scaling.factor + ramp * frequencies
    divided = torch.where(ramp < 0, frequencies / scaling.factor, blended)
    return torch.where(ramp > 1, frequencies, divided)


def _yarn(positions: RotaryPositions, scaling: YarnScaling) -> Tensor:
    """Channels that turn often are kept, those that never complete a turn are interpolated."""
    dim, frequencies = positions.dim, _inverse_frequencies(positions.dim, positions.theta)

    def channel_of(turns: float) -> float:
        wavelength = scaling.original_context / (turns * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(positions.theta))

    low, high = channel_of(scaling.beta_fast), channel_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    # Equal bounds would divide by zero; the published code widens them by this much.
    width = (high - low) or 0.001
    interpolated = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return frequencies / scaling.factor * interpolated + frequencies * (1 - interpolated)
