"""The resolved settings of an export: one `Plan`, with no default left open."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

import torch

from ortolan.export.errors import OptionError, not_among
from ortolan.export.low_bit import CALIBRATED_HEAD_BITS, Quantization, Reuse, quantization_of
from ortolan.export.options import (
    DEFAULTS,
    Attention,
    Auto,
    Cache,
    Device,
    ExportOptions,
    Graphs,
    Int4,
    Int8,
    Precision,
    PrecisionName,
    PrefillPrecision,
    Proof,
    WitnessTopic,
)
from ortolan.runtime.bundle.kinds import (
    BOTH_WAYS,
    DECODE,
    DECODER,
    ENCODER,
    KINDS,
    MAPS_ROLE,
    PREFILL,
)
from ortolan.runtime.bundle.manifest import Graph

_WITH_FLOAT32: Mapping[PrecisionName, torch.dtype] = {"int8": torch.float32, "int4": torch.float32}

DTYPES: Mapping[Device, Mapping[PrecisionName, torch.dtype]] = {
    "cpu": {"fp32": torch.float32, "fp16": torch.float16, **_WITH_FLOAT32},
    # GroupQueryAttention on CUDA supports 16-bit floats only.
    "cuda": {
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "int8": torch.float16,
        "int4": torch.float16,
    },
    # Many GPUs compute float16 in no shader, so low-bit weights come with float32.
    "webgpu": {"fp32": torch.float32, "fp16": torch.float16, **_WITH_FLOAT32},
    # Browsers: WebAssembly, whose kernels compute in float32, or WebGPU.
    "web": {"fp32": torch.float32, **_WITH_FLOAT32},
}
"""Precisions that each device supports, with the type of activations, cache and float weights."""

REPLAYED: Mapping[torch.dtype, bool] = {
    torch.float32: True,
    torch.float16: True,  # slowly: mostly in float32, between conversions
    torch.bfloat16: False,  # onnxruntime rejects the graph: no product, no attention
}
"""Whether the CPU can run graphs of a type, and so prove the export."""

INT8_PREFILL_FROM = 16
"""New tokens from which an int8 prefill graph beats the decode graph (docs/adr/0006)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that was decided about an export before it starts.

    Attributes:
        quantization: how weights become integers; None where they stay floats.
        options: the user's, with what the model and `auto` decide in them.
        auto: how bits are chosen; None where they are fixed.
        takes_one: the decoder reads its tokens one by one.
        sees_both_ways: vectors of images that the decoder reads see each other.
    """

    kind: str
    device: Device
    precision: PrecisionName
    quantization: Quantization | None
    options: ExportOptions
    auto: Auto | None = None
    takes_one: bool = False
    sees_both_ways: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Type of everything that is not quantized."""
        return DTYPES[self.device][self.precision]

    @property
    def rounds(self) -> bool:
        """Whether weights or the cache become integers."""
        return self.quantization is not None or self.options.cache == "int8"

    @property
    def calibrates(self) -> bool:
        """Whether weights are fitted to calibration data."""
        return self.quantization is not None and self.quantization.method == "gptq"

    @property
    def has_int8_prefill(self) -> bool:
        """Whether prefill, or all of an encoder, multiplies 8-bit integers."""
        options = self.options
        if options.prefill_precision is not None:
            return options.prefill_precision == "int8"
        return (
            self.kind == "decoder"
            and self.precision == "int4"
            and self.auto is None
            and self.device == "cpu"
            and options.graphs == "split"
            and options.attention == "fused"
        )

    @property
    def has_standard_products(self) -> bool:
        """Whether low-bit weights are dequantized by standard operators.

        onnxruntime can do so once at loading. A browser needs that: kernels of WebAssembly would
        dequantize every weight in every step.
        """
        return self.options.attention == "portable" or self.device == "web"

    @property
    def is_for_webgpu(self) -> bool:
        """Whether the graphs have kernels on WebGPU."""
        return self.device in ("webgpu", "web")

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices that run the bundle, the target first."""
        if self.device == "web":
            return ("webgpu", "cpu")
        if self.device != "cpu" and REPLAYED[self.dtype]:
            return (self.device, "cpu")
        return (self.device,)

    @property
    def unverified(self) -> str | None:
        """Why the export cannot prove the bundle; None where it can."""
        if "cpu" in self.devices:
            return None
        return (
            f"the CPU has no kernels for {str(self.dtype).removeprefix('torch.')}; run "
            "`ortolan verify` on the device"
        )

    @property
    def graph_files(self) -> dict[str, Graph]:
        """Each graph by its role."""
        kind = KINDS[self.kind]
        files = {ENCODER: Graph(file="encoder.onnx")} if kind.has_encoder else {}
        if kind.has_decoder:
            files |= self._step_files
        if self.sees_both_ways:
            files[BOTH_WAYS] = Graph(file="both_ways.onnx")
        if self.options.attention_maps:
            files[MAPS_ROLE] = Graph(file="attention.onnx")
        return files

    @property
    def _step_files(self) -> dict[str, Graph]:
        if self.options.graphs == "unified":
            return {DECODER: Graph(file="decoder.onnx", sequence=1 if self.takes_one else None)}
        if not self.has_int8_prefill or KINDS[self.kind].has_encoder:
            return {
                PREFILL: Graph(file="prefill.onnx", min_new_tokens=2),
                DECODE: Graph(file="decode.onnx", sequence=1),
            }
        return {
            PREFILL: Graph(file="prefill.onnx", min_new_tokens=INT8_PREFILL_FROM),
            DECODE: Graph(file="decode.onnx"),
        }


def resolve(
    kind: str,
    *,
    precision: Precision = "fp32",
    device: Device = "cpu",
    options: ExportOptions = DEFAULTS,
    takes_one: bool = False,
    sees_both_ways: bool = False,
) -> Plan:
    """Fill in defaults and reject contradictions; see `Plan` for the arguments."""
    weights = _NAMED.get(precision, precision) if isinstance(precision, str) else precision
    auto = weights if isinstance(weights, Auto) else None
    if isinstance(weights, Auto):
        _check_auto(weights, device, options)
        if weights.max_kl is not None:
            options = replace(options, max_kl=weights.max_kl)
        weights = Int4(
            effort=weights.effort,
            head_bits=CALIBRATED_HEAD_BITS,
            asymmetric=weights.asymmetric,
            exclude=weights.exclude,
            calibration_sequences=weights.calibration_sequences,
        )
    if not isinstance(weights, str | Int8 | Int4):
        raise not_among("precision", weights, get_args(PrecisionName))
    name = weights if isinstance(weights, str) else weights.name
    _check_choices(name, device, options)
    quantization = None if isinstance(weights, str) else quantization_of(kind, weights, device)
    plan = Plan(
        kind=kind,
        device=device,
        precision=name,
        quantization=quantization,
        options=options,
        auto=auto,
        takes_one=takes_one,
        sees_both_ways=sees_both_ways,
    )
    if quantization is not None and plan.has_standard_products:
        reuse: Reuse = "none" if quantization.reuse == "none" else "plain"
        plan = replace(plan, quantization=replace(quantization, reuse=reuse))
    _check_graphs(plan)
    _check_prefill(plan)
    _check_needs(plan)
    return plan


def draft_of(plan: Plan) -> Plan:
    """The plan of a quick 8-bit CPU bundle of the same model."""
    if plan.quantization is None:
        raise ValueError("expected a plan with low-bit weights")
    quantization, options = plan.quantization, plan.options
    return replace(
        plan,
        device="cpu",
        precision="int8",
        quantization=replace(
            quantization,
            scheme=replace(quantization.scheme, bits=8),
            head=replace(quantization.head, bits=8),
            method="rtn",
        ),
        options=replace(
            options,
            attention="fused",
            cache="float",
            prefill_precision="float",
            attention_maps=False,
            allow_cpu_nodes=False,
        ),
    )


_NAMED: Mapping[str, Int8 | Int4] = {"int8": Int8(), "int4": Int4()}


def _check_choices(precision: PrecisionName, device: Device, options: ExportOptions) -> None:
    for name, value, choices in (
        ("device", device, tuple(DTYPES)),
        ("precision", precision, get_args(PrecisionName)),
        ("graphs", options.graphs, get_args(Graphs)),
        ("attention", options.attention, get_args(Attention)),
        ("prefill_precision", options.prefill_precision, (None, *get_args(PrefillPrecision))),
        ("cache", options.cache, get_args(Cache)),
        ("proof", options.proof, get_args(Proof)),
        *(("accept_difference", own, get_args(WitnessTopic)) for own in options.accept_difference),
    ):
        if value not in choices:
            raise not_among(name, value, choices)
    if precision not in DTYPES[device]:
        able = next(device for device, dtypes in DTYPES.items() if precision in dtypes)
        raise OptionError(
            f"The {device} has no kernels for {precision}. Choose a precision of "
            f"{', '.join(DTYPES[device])}, or --device {able}."
        )
    if options.allow_cpu_nodes and device == "cpu":
        raise OptionError("allow_cpu_nodes needs another device than cpu. Add --device cuda.")
    if options.max_kl is not None and not 0 <= options.max_kl < float("inf"):
        raise OptionError(f"max_kl must be a finite number of at least 0 (got {options.max_kl}).")


def _check_graphs(plan: Plan) -> None:
    if plan.options.graphs != "split":
        return
    if not KINDS[plan.kind].has_decoder:
        raise OptionError("graphs must be unified for an encoder: only a decoder can be split.")
    if plan.takes_one:
        raise OptionError("graphs must be unified for a model that reads its tokens one by one.")


def _check_prefill(plan: Plan) -> None:
    options = plan.options
    if options.prefill_precision != "int8":
        return
    is_decoder = not KINDS[plan.kind].has_encoder
    missing = ["--graphs split"] if is_decoder and options.graphs != "split" else []
    missing += ["--precision int4"] if plan.quantization is None else []
    if missing:
        raise OptionError(f"prefill_precision needs {' and '.join(missing)}.")
    if plan.device != "cpu":
        raise OptionError(
            f"prefill_precision needs the cpu: {plan.device} has no products of int8 activations."
        )
    if options.attention == "portable":
        raise OptionError(
            "prefill_precision needs fused attention: products of int8 activations have no "
            "portable form."
        )


def _check_needs(plan: Plan) -> None:
    """Reject an int8 cache, or images whose vectors see each other, where no kernel has them."""
    options = plan.options
    alone = ("a model with a decoder only", plan.kind, plan.kind == "decoder")
    cpu = ("the cpu", plan.device, plan.device == "cpu")
    fused = ("fused attention", options.attention, options.attention == "fused")
    for needed, got, fits in (alone, cpu, fused):
        if options.cache == "int8" and not fits:
            raise OptionError(f"An int8 cache needs {needed} (got {got}).")
    for needed, got, fits in (cpu, fused):
        if plan.sees_both_ways and not fits:
            raise OptionError(
                f"Images whose vectors see each other, as this model's do, need {needed} (got "
                f"{got}). Export its language model alone: --text-only."
            )


def _check_auto(auto: Auto, device: Device, options: ExportOptions) -> None:
    limits = [limit for limit in (auto.max_kl, auto.target_size) if limit is not None]
    if len(limits) != 1:
        got = "both" if limits else "neither"
        raise OptionError(f"auto needs either max_kl or target_size (got {got}).")
    if not 0 < limits[0] < float("inf"):
        raise OptionError(f"auto needs a finite limit above 0 (got {limits[0]}).")
    if auto.max_kl is not None and options.max_kl is not None:
        raise OptionError(
            f"auto needs max_kl once (got {auto.max_kl}, and {options.max_kl} in the options)."
        )
    if auto.effort == "quick":
        raise OptionError("auto calibrates every weight. Choose --effort normal or best.")
    if device != "cpu":
        raise OptionError(f"auto needs the cpu (got {device}). Choose --precision int4.")
    if options.prefill_precision == "int8" and auto.max_kl is None:
        raise OptionError(
            "auto cannot combine a target size with prefill_precision int8, which adds a second "
            "set of weights. Choose --max-kl, or --precision int4."
        )
