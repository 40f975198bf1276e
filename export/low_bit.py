"""Low-bit weights: the settings of `Int8` and `Int4`, with no default left open."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from ortolan.export.errors import OptionError, not_among
from ortolan.export.options import (
    GROUP_SIZES,
    METHODS,
    Device,
    Effort,
    GroupSize,
    HeadBits,
    Int4,
    Int8,
    Method,
)
from ortolan.export.scheme import Scheme
from ortolan.runtime.bundle.kinds import KINDS

GROUP_SIZE: GroupSize = 128
LARGE_GROUP_SIZE: GroupSize = 256
"""Default group sizes; the second for blocks below a 4-bit head, where calibration makes up for
larger groups (docs/adr/0005)."""

NARROW_GROUP_SIZE: GroupSize = 32
"""Default group size of short 4-bit rows, which lose most by larger groups (docs/adr/0005)."""

MAX_GROUP_SIZE: Mapping[Device, GroupSize] = {
    "cpu": 256,
    "cuda": 128,
    "webgpu": 256,
    "web": 256,
}
"""Largest group size that a device has kernels for."""

CALIBRATED_HEAD_BITS: HeadBits = 4
HEAD_BITS: HeadBits = 8
"""Default bits of an int4 head and embedding, calibrated and not (docs/adr/0005)."""

CACHE_SEQUENCES = 32
"""Maximum number of inputs that an int8 cache is fitted to."""


class EffortSettings(NamedTuple):
    """What an effort stands for; see `quantize.tune` for the training of scales.

    `keeps_8_bits` in weights that lose most by rounding (`Quantization.sensitive`).
    """

    method: Method
    sequences: int
    trains_scales: bool = False
    keeps_8_bits: bool = False


EFFORTS: Mapping[Literal[4, 8], Mapping[Effort, EffortSettings]] = {
    4: {
        "quick": EffortSettings("rtn", 16, keeps_8_bits=True),
        "normal": EffortSettings("gptq", 16),
        "best": EffortSettings("gptq", 32, trains_scales=True),
    },
    8: {
        "quick": EffortSettings("rtn", 16),
        "normal": EffortSettings("rtn", 16),
        "best": EffortSettings("gptq", 32),
    },
}
"""By the bits of the weights (docs/adr/0039)."""

CHEAPER: Mapping[Effort, Effort] = {"best": "normal", "normal": "quick"}
"""The next effort that takes less time."""

Reuse = Literal["all", "plain", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How weights become integers.

    Attributes:
        scheme: format of the products in blocks.
        head: format of the head and the embedding, which may share a table.
        sensitive: format of the products in narrow blocks that lose most by rounding, while other
            short rows get zero points; None for that of `scheme` (`schemes.assign_schemes`).
        options: of the command line that chose another method than calibration.
        narrow_group: group size of 4-bit rows shorter than `schemes.NARROW`; None for that of
            `scheme` or `head`.
        shrink_groups: use smaller groups where the last one of a row would be mostly padding.
        exclude: patterns of weights that stay floats (`fnmatch`).
        trains_scales: whether scales are trained after calibration (`quantize.tune`).
        reuse_head_bits: largest width in which codes of a stored head are reused.
        reuse: which low-bit weights of the checkpoint are copied instead of rounded again; `plain`
            leaves out those with a minimum per group, which need more nodes.
    """

    scheme: Scheme
    head: Scheme
    method: Method
    sensitive: Scheme | None = None
    options: tuple[str, ...] = ()
    narrow_group: GroupSize | None = None
    shrink_groups: bool = False
    exclude: tuple[str, ...] = ()
    calibration_sequences: int = CACHE_SEQUENCES
    trains_scales: bool = False
    reuse_head_bits: int = 4
    reuse: Reuse = "all"


def quantization_of(kind: str, weights: Int8 | Int4, device: Device) -> Quantization:
    """The settings of low-bit weights.

    A calibrated decoder has a 4-bit head, all others one of 8 bits.
    """
    if weights.effort not in get_args(Effort):
        raise not_among("effort", weights.effort, get_args(Effort))
    work = EFFORTS[weights.bits][weights.effort]
    sequences = weights.calibration_sequences
    sequences = work.sequences if sequences is None else sequences
    if sequences < 1:
        raise OptionError(f"calibration_sequences must be at least 1 (got {sequences}).")
    method = weights.method or work.method
    if method not in METHODS:
        raise not_among("method", method, METHODS)
    chosen = [] if weights.method is None else [f"--method {method}"]
    chosen += ["--effort quick"] if weights.effort == "quick" else []
    head_bits = weights.head_bits
    if head_bits is None:
        # A decoder reads its head for every token; an encoder gains no speed by fewer bits.
        has_small_head = method == "gptq" and KINDS[kind].has_decoder
        head_bits = CALIBRATED_HEAD_BITS if has_small_head else HEAD_BITS
    if head_bits not in get_args(HeadBits):
        raise not_among("head_bits", head_bits, get_args(HeadBits))
    block_group = LARGE_GROUP_SIZE if head_bits == CALIBRATED_HEAD_BITS else GROUP_SIZE
    scheme = Scheme(
        bits=weights.bits,
        group=_group_size(device, weights.group_size, block_group),
        symmetric=not weights.asymmetric,
    )
    # An 8-bit head on 4-bit blocks gains nothing by smaller groups.
    head_group = weights.group_size if head_bits == weights.bits else None
    is_default = weights.group_size is None
    return Quantization(
        scheme=scheme,
        head=replace(scheme, bits=head_bits, group=_group_size(device, head_group, GROUP_SIZE)),
        method=method,
        sensitive=replace(scheme, bits=8) if work.keeps_8_bits and not weights.method else None,
        options=tuple(chosen),
        narrow_group=NARROW_GROUP_SIZE if is_default and weights.bits == 4 else None,
        shrink_groups=is_default,
        exclude=tuple(weights.exclude),
        calibration_sequences=sequences,
        trains_scales=work.trains_scales,
        reuse_head_bits=HEAD_BITS if weights.head_bits is None else head_bits,
        # A user who sets a method wants its codes.
        reuse="all" if weights.method is None else "none",
    )


def _group_size(device: Device, value: GroupSize | None, default: GroupSize) -> GroupSize:
    """The chosen size, or the default as far as the device has kernels for it."""
    largest = MAX_GROUP_SIZE[device]
    if value is None:
        return min(largest, default)
    if value not in GROUP_SIZES:
        raise not_among("group_size", value, GROUP_SIZES)
    if value > largest:
        raise OptionError(
            f"group_size must be at most {largest} (got {value}): {device} has no kernel for "
            "larger groups."
        )
    return value
