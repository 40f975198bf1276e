"""How a bundle stores weights: what `ortolan.export(precision=...)` takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

PrecisionName = Literal["fp32", "fp16", "bf16", "int8", "int4"]
Method = Literal["rtn", "hqq", "gptq"]
StoredMethod = Literal["rtn", "hqq", "gptq", "tuned", "kept"]
GroupSize = Literal[32, 64, 128, 256]
HeadBits = Literal[4, 8]

METHODS: tuple[Method, ...] = get_args(Method)
GROUP_SIZES: tuple[GroupSize, ...] = get_args(GroupSize)

CALIBRATION_SEQUENCES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Integers:
    """What `Int8` and `Int4` have in common.

    Weights that a checkpoint stores in as few bits, in a form that kernels take, are kept as they
    are, whatever the groups; unless a method is named.
    """

    method: Method | None = None
    group_size: GroupSize | None = None
    asymmetric: bool = False
    exclude: Sequence[str] = ()
    calibration_sequences: int = CALIBRATION_SEQUENCES


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8(_Integers):
    """Weights of 8 bits in groups that share a scale.

    Attributes:
        method: how the integers are found: `rtn` (the default) rounds to the nearest, `hqq` fits
            the weight, `gptq` fits what the weight computes on calibration data, which the model
            writes itself where none is given.
        group_size: values that share a scale; 128 by default.
        asymmetric: store a zero point for each group as well.
        exclude: patterns of weights that stay floats, such as `blocks.0.*`.
        calibration_sequences: texts of 256 tokens, images, or eight pairs each, that `gptq`
            calibrates on at most.
    """

    name: ClassVar[PrecisionName] = "int8"
    bits: ClassVar[Literal[4, 8]] = 8
    head_bits: ClassVar[HeadBits] = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4(_Integers):
    """Weights of 4 bits in groups that share a scale.

    Attributes:
        method: as for `Int8`; `gptq` by default.
        group_size: values that share a scale; 128 by default, 256 in blocks below a head of 4 bits,
            32 in rows of less than 2048 columns. A head of 8 bits keeps its own.
        head_bits: of the head and the embedding; by default 4 in a decoder by `gptq`, else 8.
        asymmetric: store a zero point for each group as well.
        exclude: patterns of weights that stay floats, such as `blocks.0.*`.
        calibration_sequences: as for `Int8`.
        tune: train the scales end to end as well, until a decoder predicts what the trained model
            does; takes minutes for 100M parameters, and memory for all codes.
    """

    name: ClassVar[PrecisionName] = "int4"
    bits: ClassVar[Literal[4, 8]] = 4
    head_bits: HeadBits | None = None
    tune: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """Weights of 4 or 8 bits, each by its measured effect on the output.

    One of the two bounds is given.

    Attributes:
        max_kl: mean KL divergence from the trained model, in nats: the fewest bytes that keep it.
        target_size: bytes of the file of weights: what is nearest to the trained model within them.
        asymmetric: as for `Int4`.
        exclude: as for `Int4`.
        calibration_sequences: as for `Int4`.
    """

    name: ClassVar[PrecisionName] = "int4"
    max_kl: float | None = None
    target_size: int | None = None
    asymmetric: bool = False
    exclude: Sequence[str] = ()
    calibration_sequences: int = CALIBRATION_SEQUENCES


Precision = PrecisionName | Int8 | Int4 | Auto
"""A name stands for the default values: `"int4"` for `Int4()`."""
