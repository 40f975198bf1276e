"""The user's choices: `precision` and `options` of `ortolan.export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

Device = Literal["cpu", "cuda", "webgpu", "web"]
PrecisionName = Literal["fp32", "fp16", "bf16", "int8", "int4"]
Method = Literal["rtn", "gptq"]
Effort = Literal["quick", "normal", "best"]
GroupSize = Literal[32, 64, 128, 256]
HeadBits = Literal[4, 8]
Graphs = Literal["unified", "split"]
Attention = Literal["fused", "portable"]
Cache = Literal["float", "int8"]
PrefillPrecision = Literal["float", "int8"]
Proof = Literal["quick", "full"]
Via = Literal["family", "transformers"]
WitnessTopic = Literal[
    "special tokens", "texts", "offsets", "chats", "vocabulary", "inputs", "image inputs",
    "sound inputs", "logits", "outputs", "images", "sounds", "media vectors", "embeddings",
    "labels", "entities", "answers", "blanks", "completions", "media prompts", "transcripts",
]  # fmt: skip

METHODS: tuple[Method, ...] = get_args(Method)
GROUP_SIZES: tuple[GroupSize, ...] = get_args(GroupSize)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Integers:
    """Fields that `Int8` and `Int4` share.

    Low-bit weights of the checkpoint are copied, whatever their group size, unless `method` is set.
    """

    effort: Effort = "normal"
    method: Method | None = None
    group_size: GroupSize | None = None
    asymmetric: bool = False
    exclude: Sequence[str] = ()
    calibration_sequences: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8(_Integers):
    """8-bit weights with one scale per group.

    Attributes:
        effort: time to spend; the default of `method` and `calibration_sequences`. `quick` and
            `normal` round to nearest, `best` calibrates.
        method: `rtn` rounds to the nearest code, `gptq` fits the outputs on calibration data.
        group_size: values that share a scale; 128 by default.
        asymmetric: store a zero point per group as well.
        exclude: patterns of weights that stay floats, such as `blocks.0.*`.
        calibration_sequences: maximum number of inputs for `gptq`: texts of 256 tokens, images, or
            groups of eight pairs.
    """

    name: ClassVar[PrecisionName] = "int8"
    bits: ClassVar[Literal[4, 8]] = 8
    head_bits: ClassVar[HeadBits] = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4(_Integers):
    """4-bit weights with one scale per group.

    The fields are those of `Int8`, with other defaults.

    Attributes:
        effort: `quick` rounds to nearest, and keeps 8 bits where a narrow model loses most;
            `normal` calibrates; `best` does so on more data, and then trains the scales.
        group_size: by default 128, or 256 in blocks below a 4-bit head; 32 in rows of fewer than
            2048 columns. An 8-bit head keeps its own.
        head_bits: bits of the head and the embedding; by default 4 in a decoder when
            calibrated, else 8.
    """

    name: ClassVar[PrecisionName] = "int4"
    bits: ClassVar[Literal[4, 8]] = 4
    head_bits: HeadBits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """4 or 8 bits per weight, chosen by the measured effect on the output.

    Set exactly one of `max_kl` and `target_size`. The other fields are those of `Int4`.

    Attributes:
        max_kl: choose the fewest bytes within this mean KL divergence from the trained model, in
            nats.
        target_size: choose the smallest divergence within this size of the weights, in bytes.
        effort: `normal` or `best`.
    """

    name: ClassVar[PrecisionName] = "int4"
    max_kl: float | None = None
    target_size: int | None = None
    effort: Effort = "normal"
    asymmetric: bool = False
    exclude: Sequence[str] = ()
    calibration_sequences: int | None = None


Precision = PrecisionName | Int8 | Int4 | Auto
"""A name stands for the defaults: `"int4"` for `Int4()`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of an export beyond precision and device.

    Attributes:
        graphs: one graph for every step, or one for prefill and one for decoding.
        attention: `portable` adds bodies of standard operators for tools other than onnxruntime.
        prefill_precision: `int8` multiplies 8-bit integers in prefill, or everywhere in an encoder.
            By default `int8` for an int4 decoder with split graphs on the CPU, else `float`.
        cache: how a decoder stores its KV cache: as floats, or in 8 bits.
        attention_maps: add a graph of what each token attends to.
        mtp: add the head of the checkpoint that predicts further tokens, for drafts (`MtpHead`).
        allow_cpu_nodes: run nodes on the CPU that the device has no kernel for.
        max_kl: highest mean KL divergence from PyTorch; None for the limit of the precision.
        allow_poor: keep a bundle of rounded weights, however far it is from the trained model.
        proof: `quick` checks every weight alone and the whole model on short probes; `full` adds
            more and longer probes.
        tokenizer: a tokenizer.json; None for the checkpoint's own.
        accept_unknown: unknown keys of config.json to ignore. The certificate does not see their
            effect, since its reference ignores them as well.
        via: open the checkpoint with one of our families or with transformers; None for a family
            where there is one.
        adapter: a PEFT adapter to merge into the checkpoint: its folder, or its name on the Hub.
        text_only: leave out the encoder of the images that a language model reads.
        witness: ask transformers, where it is installed, what it makes of the same files.
        accept_difference: topics in which the bundle may differ from what transformers answers.
    """

    graphs: Graphs = "unified"
    attention: Attention = "fused"
    prefill_precision: PrefillPrecision | None = None
    cache: Cache = "float"
    attention_maps: bool = False
    mtp: bool = False
    allow_cpu_nodes: bool = False
    max_kl: float | None = None
    allow_poor: bool = False
    proof: Proof = "quick"
    tokenizer: str | Path | None = None
    accept_unknown: tuple[str, ...] = ()
    via: Via | None = None
    adapter: str | Path | None = None
    text_only: bool = False
    witness: bool = True
    accept_difference: tuple[WitnessTopic, ...] = ()


DEFAULTS = ExportOptions()
