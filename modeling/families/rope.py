"""Reads and writes the rotary positions of Hugging Face configs.

Old configs have `rope_theta` and `rope_scaling`; since transformers 5 both are in
`rope_parameters`.
"""

import math
from collections.abc import Mapping

from ortolan.modeling.config import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RotaryPositions,
    RotaryScaling,
    YarnScaling,
)
from ortolan.modeling.config.positions import AXES
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.reader import ROTARY_SECTIONS, ConfigReader

KINDS = ("default", "linear", "dynamic", "llama3", "longrope", "su", "yarn")
"""Published names of scalings; `su` is the name of LongRoPE in the first Phi-3."""


def read_rotary(
    hf: ConfigReader,
    *,
    head_dim: int,
    context_length: int,
    theta: float = 10_000.0,
    fraction: float | None = None,
    interleaved: bool = False,
    backward: bool = False,
    names: tuple[str, str] = ("rope_theta", "partial_rotary_factor"),
) -> RotaryPositions:
    """The rotary positions that a config describes.

    Args:
        hf: the config.
        head_dim: channels of a head.
        context_length: longest context in tokens.
        theta: default base of the wavelengths.
        fraction: default share of a head's channels that is rotated; None if all always are.
        interleaved: neighbouring channels are rotated together.
        backward: rotated the other way.
        names: keys of base and share outside `rope_parameters`.

    Raises:
        ConfigError: a value that cannot be, or that transformers ignores.
    """
    # If a config has both, the second stays unread, which is an error.
    rope = hf.nested("rope_scaling") or hf.nested("rope_parameters") or ConfigReader({})
    # Keys next to the scaling are the defaults of those in it.
    theta = rope.get("rope_theta", float, hf.get(names[0], float, theta))
    part = hf.get(names[1], float, 1.0 if fraction is None else fraction)
    hf.skip("rope_theta", "partial_rotary_factor")  # as transformers does
    part = rope.get("partial_rotary_factor", float, part)
    if not 0 < part <= 1:
        raise ConfigError(
            f"{hf.name}: partial_rotary_factor must be above 0 and up to 1 (got {part}). "
            "Correct it."
        )
    dim = int(head_dim * part)
    if fraction is None and dim != head_dim:
        raise ConfigError(
            f"{hf.name}: partial_rotary_factor must rotate all {head_dim} channels of a head "
            f"(got {dim}). transformers ignores it here; remove it."
        )
    return RotaryPositions(
        dim=dim,
        theta=theta,
        # A length next to the scaling takes precedence over the one in it.
        scaling=_read_scaling(
            rope, context_length, hf.size("original_max_position_embeddings", None)
        ),
        interleaved=interleaved,
        backward=backward,
        axes=_axes(hf, dim // 2),
    )


def _axes(hf: ConfigReader, pairs: int) -> tuple[int, ...]:
    """Axis of each pair of channels, for a model that reads images; empty for one of text.

    Pairs of time, row and column alternate, until rows and columns have theirs.
    """
    sections = hf.get(ROTARY_SECTIONS, list, None)
    if sections is None:
        return ()
    if len(sections) != AXES or not all(type(n) is int and n >= 0 for n in sections):
        raise ConfigError(
            f"{hf.name}: mrope_section must be {AXES} numbers (got {sections!r:.80}). Correct it."
        )
    axes = (pair % AXES if pair < AXES * sections[pair % AXES] else 0 for pair in range(pairs))
    return tuple(axes)


def read_rotaries(
    hf: ConfigReader,
    kinds: Mapping[str, tuple[str, float]],
    *,
    head_dim: int,
    context_length: int,
) -> dict[str, RotaryPositions]:
    """The rotary positions of each kind of layer.

    Since transformers 5, `rope_parameters` has an object for each kind. Before, each kind had a key
    for its base, and a scaling was for the first kind alone.
    """
    scaling, parameters = hf.nested("rope_scaling"), hf.nested("rope_parameters")
    rotaries = {}
    for place, (kind, (key, default)) in enumerate(kinds.items()):
        own = parameters.nested(kind) if parameters else scaling if place == 0 else None
        rope = own or ConfigReader({})
        theta = rope.get("rope_theta", float, hf.get(key, float, default))
        rotaries[kind] = RotaryPositions(
            dim=head_dim, theta=theta, scaling=_read_scaling(rope, context_length)
        )
    return rotaries


def _read_scaling(
    rope: ConfigReader, context_length: int, original_context: int | None = None
) -> RotaryScaling | None:
    kind = rope.get("rope_type", str, None) or rope.get("type", str, "default")
    rope.skip("type")
    if kind not in KINDS:
        raise ConfigError(
            f"rope_scaling: rope_type must be one of {', '.join(KINDS)} (got {kind!r}). "
            "This checkpoint cannot be loaded faithfully."
        )
    if kind == "default":
        return None
    original = rope.size("original_max_position_embeddings", context_length)
    original = original_context or original
    if kind in ("longrope", "su"):
        return _read_longrope(rope, context_length, original)
    factor = rope.get("factor", float)
    if kind == "linear":
        return LinearScaling(factor=factor)
    if kind == "dynamic":
        # transformers ignores the original length here.
        return DynamicNTKScaling(factor=factor, original_context=context_length)
    if kind == "llama3":
        return Llama3Scaling(
            factor=factor,
            low_freq_factor=rope.get("low_freq_factor", float),
            high_freq_factor=rope.get("high_freq_factor", float),
            original_context=original,
        )
    return YarnScaling(
        factor=factor,
        original_context=original,
        attention_factor=_yarn_attention_factor(rope, factor),
        beta_fast=rope.get("beta_fast", float, 32.0),
        beta_slow=rope.get("beta_slow", float, 1.0),
        truncate=rope.get("truncate", bool, True),
    )


def _read_longrope(rope: ConfigReader, context_length: int, original: int) -> LongRopeScaling:
    """Both lists of factors; the default magnitude is the paper's recommendation."""
    if original < 2:
        raise ConfigError(
            f"rope_scaling: original_max_position_embeddings must be at least 2 (got {original}). "
            "Correct it."
        )
    stretch = rope.get("factor", float, context_length / original)
    recommended = 1.0
    if stretch > 1:
        recommended = math.sqrt(1 + math.log(stretch) / math.log(original))
    return LongRopeScaling(
        short_factors=rope.numbers("short_factor"),
        long_factors=rope.numbers("long_factor"),
        original_context=original,
        attention_factor=rope.get("attention_factor", float, recommended),
    )


def _yarn_attention_factor(rope: ConfigReader, factor: float) -> float:
    """The config's value, or the paper's recommendation."""

    def recommended(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    explicit = rope.get("attention_factor", float, None)
    numerator = rope.get("mscale", float, None)
    denominator = rope.get("mscale_all_dim", float, None)
    if explicit is not None:
        return explicit
    if numerator and denominator:
        return recommended(numerator) / recommended(denominator)
    return recommended(1.0)


def write_rotary(positions: RotaryPositions, *, head_dim: int) -> dict[str, object]:
    """The keys `rope_theta` and `rope_scaling`, which every version of transformers reads."""
    keys: dict[str, object] = {"rope_theta": positions.theta}
    if positions.dim != head_dim:
        keys["partial_rotary_factor"] = positions.dim / head_dim
    match positions.scaling:
        case LinearScaling() as scaling:
            keys["rope_scaling"] = {"rope_type": "linear", "factor": scaling.factor}
        case DynamicNTKScaling() as scaling:
            keys["rope_scaling"] = {"rope_type": "dynamic", "factor": scaling.factor}
            # This kind stretches from the config's own length on.
            keys["max_position_embeddings"] = scaling.original_context
        case Llama3Scaling() as scaling:
            keys["rope_scaling"] = {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_context,
            }
        case YarnScaling() as scaling:
            keys["rope_scaling"] = {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "attention_factor": scaling.attention_factor,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "truncate": scaling.truncate,
                "original_max_position_embeddings": scaling.original_context,
            }
        case None:
            keys["rope_scaling"] = None
    return keys
