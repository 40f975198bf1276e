"""Position tables: rotary, sinusoidal, ALiBi and relative buckets.

`ops.py` applies the rotation, `scores.py` adds the contribution of distances.

Shape letters: P positions (the context), R rotated channels per head, E model width,
H heads, M distances in a table, B batch, S tokens, T tokens attended to, A axes.
"""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.config import (
    AlibiPositions,
    DynamicNTKScaling,
    EncoderConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    PatchInput,
    RelativeBiasPositions,
    RotaryPositions,
    SinusoidalPositions,
    StackConfig,
    YarnScaling,
)
from ortolan.modeling.config.positions import AXES
from ortolan.modeling.layers.nodes import Rotary


def tables(config: StackConfig) -> dict[str, Tensor]:
    """Fixed tables of a stack, by the names of their buffers.

    `rotary_cos` and `rotary_sin` are `(P, R/2)`, with a number appended for further rotary
    positions (`rotary_names`); `rotary_axes` is `(3, R/2)`, where tokens come with positions.
    `position_table` is `(P, E)`, `alibi_slopes` `(H,)`, and `alibi_table` `(H, P)`. All are float32
    except `relative_buckets`, int64 `(M,)`. Learned positions are a weight instead.
    """
    named: dict[str, Tensor] = {}
    source = config.input if isinstance(config, EncoderConfig) else None
    image = source if isinstance(source, PatchInput) else None
    for place, rotary in enumerate(config.rotaries):
        pair = rotary_tables(rotary, config.context_length, image)
        named |= dict(zip(rotary_names(place), pair, strict=True))
        if rotary.reads_axes:
            named[axes_name(place)] = axes_table(rotary.axes)
    return named | _stack_tables(config)


def rotary_names(place: int) -> tuple[str, str]:
    """Buffer names of cosines and sines, by index into `rotaries`."""
    suffix = f"_{place}" if place else ""
    return f"rotary_cos{suffix}", f"rotary_sin{suffix}"


def axes_name(place: int) -> str:
    """Buffer name of the axes of rotary positions, by index into `rotaries`."""
    return f"rotary_axes_{place}" if place else "rotary_axes"


def axes_table(axes: Sequence[int]) -> Tensor:
    """1 where an axis rotates a pair of channels, else 0: `(3, R/2)`."""
    return F.one_hot(torch.tensor(axes), AXES).T.float()


def by_axes(rotary: Rotary, axes_AR: Tensor, positions_BSA: Tensor) -> Rotary:
    """Angles `(B, S, R/2)` of tokens with a position on each axis of `axes_table`."""
    cos, sin = ((F.embedding(positions_BSA, table) * axes_AR).sum(2) for table in rotary[:2])
    return rotary._replace(cos=cos, sin=sin)


def image_positions(ids_BS: Tensor, token: int, grids: Sequence[tuple[int, int]]) -> Tensor:
    """Positions of texts with images, int64 `(B, S, 3)` (Wang et al. 2024, "Qwen2-VL", 2.1).

    A token of text has one position on all axes. The vectors of an image are at one time, and the
    text after it goes on where its longer side ends. `token` stands for a vector, and `grids` has
    the rows and columns of vectors of each image.
    """
    counts = int((ids_BS == token).sum()), sum(rows * columns for rows, columns in grids)
    if counts[0] != counts[1]:
        raise ValueError(
            f"grids: expected {counts[0]} vectors, one for each placeholder, got {counts[1]}. "
            "Give the rows and columns of each image."
        )
    left, all_positions = iter(grids), []
    for ids in ids_BS.tolist():
        positions: list[tuple[int, ...]] = []
        start = place = 0
        while place < len(ids):
            if ids[place] != token:
                positions.append((start,) * AXES)
                start, place = start + 1, place + 1
                continue
            rows, columns = next(left)
            places = itertools.product(range(rows), range(columns))
            positions += [(start, start + y, start + x) for y, x in places]
            start, place = start + max(rows, columns), place + rows * columns
        all_positions.append(positions)
    return torch.tensor(all_positions, device=ids_BS.device)


def _stack_tables(config: StackConfig) -> dict[str, Tensor]:
    """Tables that all layers of a stack share."""
    match config.positions:
        case SinusoidalPositions() as positions:
            table = sinusoidal_table(config.context_length, config.hidden_size, positions)
            return {"position_table": table}
        case AlibiPositions(rounded=True, scale=scale):
            heads = config.attentions[0].num_heads
            table = rounded_alibi(heads, config.context_length) * scale
            return {"alibi_table": table}
        case AlibiPositions(scale=scale):
            slopes = alibi_slopes(config.attentions[0].num_heads)
            return {"alibi_slopes": torch.tensor(slopes) * scale}
        case RelativeBiasPositions() as positions:
            causal = config.attentions[0].causal
            return {"relative_buckets": relative_buckets(positions, causal=causal)}
        case _:
            return {}


def relative_index(positions_BS: Tensor, keys: int, most: int) -> Tensor:
    """Distance from each query to keys 0, 1, ... as a row of a distance table, int64 `(B, S, T)`.

    It is 0 for a key `most` or more before the query, `2 * most` for one as far after it.
    """
    slots_T = torch.arange(keys, device=positions_BS.device)
    return (slots_T - positions_BS[..., None]).clamp(-most, most) + most


def relative_buckets(positions: RelativeBiasPositions, *, causal: bool) -> Tensor:
    """Bucket of every row of `relative_index`, int64 `(2 * max_distance + 1,)`.

    A table, because the bounds of the buckets depend on how a logarithm is rounded: this way
    every runtime uses PyTorch's rounding.

    Source: Raffel et al. 2020, section 2.1; `_relative_position_bucket` of Mesh TensorFlow.
    """
    most = positions.max_distance
    offset = torch.arange(-most, most + 1)
    # 1. Split by side. A causal stack sees one side only; the other becomes bucket 0.
    count = positions.buckets if causal else positions.buckets // 2
    side = torch.zeros_like(offset) if causal else (offset > 0).long() * count
    distance = -offset.clamp(max=0) if causal else offset.abs()
    # 2. Half of the buckets hold one distance each; the others grow geometrically.
    exact = count // 2
    # Distance 0 is always exact, so clamping its logarithm changes nothing.
    ratio = (distance.clamp(min=1).float() / exact).log() / math.log(most / exact)
    wide = exact + (ratio * (count - exact)).long()
    return side + torch.where(distance < exact, distance, wide.clamp(max=count - 1))


def alibi_slopes(heads: int) -> list[float]:
    """Slopes by which the scores of each head fall with distance (Press et al. 2022, section 3).

    For a power of two, a geometric series. Otherwise the series of the power below, then every
    other slope of the power above, as in the paper's code.
    """
    power = 1 << (heads.bit_length() - 1)
    series = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return series + between[: heads - power]


def rounded_alibi(heads: int, length: int) -> Tensor:
    """ALiBi rounded to bfloat16: score added to the key at each position, `(heads, length)`.

    Rounding makes distant keys share a value, as in the published models.
    """
    slopes_H = torch.tensor(alibi_slopes(heads)).bfloat16()
    return (slopes_H[:, None] * torch.arange(length).bfloat16()).float()


def sinusoidal_table(length: int, width: int, positions: SinusoidalPositions) -> Tensor:
    """Sinusoidal table `(length, width)`, all sines before all cosines."""
    steps = width // 2 - 1 if positions.endpoint else width / 2
    frequencies = 10_000.0 ** -(torch.arange((width + 1) // 2, dtype=torch.float64) / steps)
    rows = torch.arange(positions.offset, positions.offset + length, dtype=torch.float64)
    angles = rows[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()[:, : width // 2]), 1).float()


def rotary_tables(
    positions: RotaryPositions, length: int, image: PatchInput | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, `(length, R/2)` each; centers of patches are those of `image`."""
    frequencies = rotary_frequencies(positions, length)
    if positions.centers and image is not None:
        angles_PR = center_places(image, positions.axes) * frequencies
    else:
        angles_PR = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    if positions.backward:
        angles_PR = -angles_PR
    match positions.scaling:
        case YarnScaling(attention_factor=factor) | LongRopeScaling(attention_factor=factor):
            return angles_PR.cos() * factor, angles_PR.sin() * factor
        case _:
            return angles_PR.cos(), angles_PR.sin()


def center_places(image: PatchInput, axes: Sequence[int]) -> Tensor:
    """Radians at frequency 1 by which a position rotates each pair of channels, `(P, R/2)`.

    The vectors before the patches are not rotated.
    """
    rows, columns = (2 * (torch.arange(count) + 0.5) / count - 1 for count in image.grid)
    places = torch.meshgrid(torch.zeros(1), rows, columns, indexing="ij")
    angles_PR = 2 * math.pi * torch.stack(places, -1).flatten(0, 2)[:, list(axes)]
    return F.pad(angles_PR, (0, 0, image.tokens, 0))


def rotary_frequencies(positions: RotaryPositions, length: int) -> Tensor:
    """Radians per position of each channel pair, `(R/2,)`, for a context of `length` tokens."""
    match positions.scaling:
        case None if positions.axial:
            before = [positions.axes[:i].count(axis) for i, axis in enumerate(positions.axes)]
            counts = [positions.axes.count(axis) for axis in positions.axes]
            return 1.0 / positions.theta ** (torch.tensor(before) / torch.tensor(counts))
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
        case LongRopeScaling() as scaling:
            short = length <= scaling.original_context
            factors = torch.tensor(scaling.short_factors if short else scaling.long_factors)
            exponents = torch.arange(0, positions.dim, 2, dtype=torch.int64).float()
            return 1.0 / (factors * positions.theta ** (exponents / positions.dim))


def _inverse_frequencies(dim: int, theta: float) -> Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return 1.0 / theta**exponents


def _dynamic_ntk(positions: RotaryPositions, scaling: DynamicNTKScaling, length: int) -> Tensor:
    """NTK scaling: raise the base until the longest wavelength covers `length`."""
    longest = max(length, scaling.original_context)
    stretch = scaling.factor * longest / scaling.original_context - (scaling.factor - 1)
    theta = positions.theta * stretch ** (positions.dim / (positions.dim - 2))
    return _inverse_frequencies(positions.dim, theta)


def _llama3(positions: RotaryPositions, scaling: Llama3Scaling) -> Tensor:
    """Divide frequencies of long wavelengths, keep those of short ones, and blend in between."""
    frequencies = _inverse_frequencies(positions.dim, positions.theta)
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_context / wavelengths
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - ramp) * frequencies / scaling.factor + ramp * frequencies
    divided = torch.where(ramp < 0, frequencies / scaling.factor, blended)
    return torch.where(ramp > 1, frequencies, divided)


def _yarn(positions: RotaryPositions, scaling: YarnScaling) -> Tensor:
    """Keep channels that turn often, interpolate those that never complete a turn."""
    dim, frequencies = positions.dim, _inverse_frequencies(positions.dim, positions.theta)

    def channel_of(turns: float) -> float:
        wavelength = scaling.original_context / (turns * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(positions.theta))

    low, high = channel_of(scaling.beta_fast), channel_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    # Equal bounds would divide by zero; the published code widens them by 0.001.
    width = (high - low) or 0.001
    interpolated = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return frequencies / scaling.factor * interpolated + frequencies * (1 - interpolated)
