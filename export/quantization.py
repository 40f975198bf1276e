"""How weights are stored in few bits, with every default filled in."""

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from ortolan.export.errors import OptionError, not_among
from ortolan.export.options import Device
from ortolan.export.precision import METHODS, Auto, GroupSize, HeadBits, Int4, Int8, Method
from ortolan.export.quantize.blocks import Scheme
from ortolan.export.quantize.plan import Quantization
from ortolan.runtime.bundle.kinds import KINDS

GROUP_SIZE: GroupSize = 128
FEWEST_BYTES_GROUP_SIZE: GroupSize = 256
"""Values that share a scale; in blocks below a head of 4 bits the second: fewer bytes to read, and
calibration makes up for it (docs/adr/0005).

By default, rows that it does not divide take a smaller one if that is shorter.
"""

NARROW_GROUP_SIZE: GroupSize = 32
"""Of short rows in 4 bits, by default: small models lose most by them (docs/adr/0005)."""

LARGEST_GROUPS: Mapping[Device, GroupSize] = {"cpu": 256, "cuda": 128}
"""That kernels of a device take."""

CALIBRATED_HEAD_BITS: HeadBits = 4
HEAD_BITS: HeadBits = 8
"""Of int4's head and embedding, where they are calibrated and where not (docs/adr/0005)."""


def quantization_of(kind: str, weights: Int8 | Int4, device: Device) -> Quantization:
    """How weights are stored.

    By default, int4 is found by gptq, with a head of 4 bits (8 in an encoder, and by any other
    method); int8, which leaves nothing to calibrate, by rtn.

    Args:
        kind: of the model.
        weights: what was asked for.
        device: that the graphs are made for.

    Raises:
        OptionError: names the option, what was expected and what was got.
    """
    if weights.calibration_sequences < 1:
        raise OptionError(
            f"calibration sequences: expected at least 1, got {weights.calibration_sequences}."
        )
    method = _method(weights)
    head_bits = weights.head_bits
    if head_bits is None:
        # A decoder reads its head for every token; an encoder gains no speed by fewer bits.
        has_small_head = method == "gptq" and KINDS[kind].has_decoder
        head_bits = CALIBRATED_HEAD_BITS if has_small_head else HEAD_BITS
    if head_bits not in get_args(HeadBits):
        raise not_among("head bits", head_bits, get_args(HeadBits))
    blocks = FEWEST_BYTES_GROUP_SIZE if head_bits == CALIBRATED_HEAD_BITS else GROUP_SIZE
    scheme = Scheme(
        bits=weights.bits,
        group=_group_size(device, weights.group_size, blocks),
        symmetric=not weights.asymmetric,
    )
    # Beside blocks of 4 bits, smaller groups gain nothing in a head of 8.
    given = weights.group_size if head_bits == weights.bits else None
    head_group = _group_size(device, given, GROUP_SIZE)
    return Quantization(
        scheme=scheme,
        head=replace(scheme, bits=head_bits, group=head_group),
        method=method,
        narrow=_narrow(weights),
        fits=weights.group_size is None,
        exclude=tuple(weights.exclude),
        calibration_sequences=weights.calibration_sequences,
        tunes=_tunes(weights, kind, method),
        kept_head_bits=HEAD_BITS if weights.head_bits is None else head_bits,
        # Who names a method wants its codes.
        keeps="all" if weights.method is None else "none",
    )


def smallest(auto: Auto) -> Int4:
    """The fewest bytes that bits are chosen from."""
    return Int4(
        head_bits=CALIBRATED_HEAD_BITS,
        asymmetric=auto.asymmetric,
        exclude=auto.exclude,
        calibration_sequences=auto.calibration_sequences,
    )


def _narrow(weights: Int8 | Int4) -> GroupSize | None:
    """The groups of short rows, where they differ from others."""
    return NARROW_GROUP_SIZE if weights.group_size is None and weights.bits == 4 else None


def _tunes(weights: Int8 | Int4, kind: str, method: Method) -> bool:
    """Whether scales are trained."""
    wanted = isinstance(weights, Int4) and weights.tune
    if wanted and (method != "gptq" or not KINDS[kind].has_decoder):
        raise OptionError(
            f"tune: expected a decoder whose weights are found by gptq, got a {kind} and {method}. "
            "Leave it out."
        )
    return wanted


def _group_size(device: Device, given: GroupSize | None, default: GroupSize) -> GroupSize:
    """The given size, or the default as far as the device has kernels for it."""
    largest = LARGEST_GROUPS[device]
    if given is None:
        return min(largest, default)
    if given > largest:
        raise OptionError(
            f"group size: expected at most {largest} for the device {device}, which has no kernel "
            f"for larger groups, got {given}. Leave it out, or choose a smaller one."
        )
    return given


def _method(weights: Int8 | Int4) -> Method:
    """The given method, or the best; 8 bits leave nothing to calibrate."""
    method = weights.method
    if method is None:
        return "rtn" if weights.bits == 8 else "gptq"
    if method not in METHODS:
        raise not_among("method", method, METHODS)
    return method
