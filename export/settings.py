"""The settings of an export: options and precision with every default filled in."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

import torch

from ortolan.export.errors import OptionError, not_among
from ortolan.export.options import DEFAULTS, Attention, Cache, Device, ExportOptions, Graphs
from ortolan.export.precision import (
    Auto,
    Int4,
    Int8,
    Precision,
    PrecisionName,
)
from ortolan.export.quantization import quantization_of, smallest
from ortolan.export.quantize.plan import Keeps, Quantization
from ortolan.runtime.bundle.kinds import (
    DECODE,
    DECODER,
    ENCODER,
    KINDS,
    MAPS_ROLE,
    PREFILL,
)
from ortolan.runtime.bundle.manifest import Graph

DTYPES: Mapping[Device, Mapping[PrecisionName, torch.dtype]] = {
    "cpu": {
        "fp32": torch.float32,
        "fp16": torch.float16,
        "int8": torch.float32,
        "int4": torch.float32,
    },
    # Its kernel of GroupQueryAttention takes 16-bit floats only.
    "cuda": {
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "int8": torch.float16,
        "int4": torch.float16,
    },
}
"""Of activations, of the cache, and of weights that are not quantized; of each device, the
precisions that it has kernels for."""

REPLAYED: Mapping[torch.dtype, bool] = {
    torch.float32: True,
    torch.float16: True,  # slowly: most of it in float32, between conversions
    torch.bfloat16: False,  # onnxruntime refuses the graph: no product, no attention
}
"""Whether the CPU computes graphs of a type, so that an export can prove them."""

INT8_PREFILL_FROM = 16
"""New tokens from which a prefill graph in int8 is faster than the decode graph (docs/adr/0006)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A consistent set of choices, with no default left open.

    Attributes:
        kind: of the model, as in the manifest.
        device: that the graphs are made for.
        precision: of the weights.
        quantization: how weights are stored; `None` where they are floats.
        options: as given.
        auto: what bits are chosen by; `None` where they are given.
        takes_one: the decoder reads its tokens one by one.
    """

    kind: str
    device: Device
    precision: PrecisionName
    quantization: Quantization | None
    options: ExportOptions
    auto: Auto | None = None
    takes_one: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of what is not quantized."""
        return DTYPES[self.device][self.precision]

    @property
    def rounds(self) -> bool:
        """Whether weights, or what is cached, become integers."""
        return self.quantization is not None or self.options.cache == "int8"

    @property
    def calibrates(self) -> bool:
        """Whether weights are fitted to calibration data."""
        return self.quantization is not None and self.quantization.method == "gptq"

    @property
    def devices(self) -> tuple[Device, ...]:
        """Where the bundle runs, what it was made for first."""
        if self.device == "cuda" and REPLAYED[self.dtype]:
            return ("cuda", "cpu")
        return (self.device,)

    @property
    def unverified(self) -> str | None:
        """Why the export cannot prove the bundle; `None` where it can."""
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
        if self.options.attention_maps:
            files[MAPS_ROLE] = Graph(file="attention.onnx")
        return files

    @property
    def _step_files(self) -> dict[str, Graph]:
        if self.options.graphs == "unified":
            return {DECODER: Graph(file="decoder.onnx", sequence=1 if self.takes_one else None)}
        if self.options.prefill_precision is None or KINDS[self.kind].has_encoder:
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
) -> Settings:
    """Fill in defaults and refuse what does not go together.

    Args:
        kind: of the model.
        precision: of the weights.
        device: that the graphs are made for.
        options: the rest.
        takes_one: the decoder reads its tokens one by one.

    Raises:
        OptionError: names the option, what was expected and what was got.
    """
    weights = _NAMED.get(precision, precision) if isinstance(precision, str) else precision
    auto = weights if isinstance(weights, Auto) else None
    if isinstance(weights, Auto):
        _check_auto(weights, device, options)
        if weights.max_kl is not None:
            options = replace(options, max_kl=weights.max_kl)
        weights = smallest(weights)
    name = weights if isinstance(weights, str) else weights.name
    _check_choices(name, device, options)
    settings = Settings(
        kind=kind,
        device=device,
        precision=name,
        quantization=None if isinstance(weights, str) else quantization_of(kind, weights, device),
        options=options,
        auto=auto,
        takes_one=takes_one,
    )
    if settings.quantization is not None and options.attention == "portable":
        keeps: Keeps = "none" if settings.quantization.keeps == "none" else "plain"
        settings = replace(settings, quantization=replace(settings.quantization, keeps=keeps))
    _check_graphs(settings)
    _check_prefill(settings)
    _check_cache(settings)
    return settings


def draft_of(settings: Settings) -> Settings:
    """Settings of a quick bundle of 8 bits, for the CPU, of a model that gets few bits."""
    if settings.quantization is None:
        raise ValueError("expected settings with weights in few bits")
    scheme, head = settings.quantization.scheme, settings.quantization.head
    return replace(
        settings,
        device="cpu",
        precision="int8",
        quantization=replace(
            settings.quantization,
            scheme=replace(scheme, bits=8),
            head=replace(head, bits=8),
            method="rtn",
        ),
        options=replace(
            settings.options,
            attention="fused",
            cache="float",
            prefill_precision=None,
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
        ("prefill precision", options.prefill_precision, (None, "int8")),
        ("cache", options.cache, get_args(Cache)),
    ):
        if value not in choices:
            raise not_among(name, value, choices)
    if precision not in DTYPES[device]:
        able = next(device for device, dtypes in DTYPES.items() if precision in dtypes)
        raise OptionError(
            f"precision: expected one of {', '.join(DTYPES[device])} for the device {device}, "
            f"which has no kernels for others, got {precision}. Choose one of these, or --device "
            f"{able}."
        )
    if options.allow_cpu_nodes and device == "cpu":
        raise OptionError(
            "allow_cpu_nodes: expected another device than the CPU, got cpu. Leave it out, or "
            "add --device cuda."
        )
    if options.max_kl is not None and not 0 <= options.max_kl < float("inf"):
        raise OptionError(f"max_kl: expected a number of at least 0, got {options.max_kl}.")


def _check_graphs(settings: Settings) -> None:
    if not KINDS[settings.kind].has_decoder and settings.options.graphs == "split":
        raise OptionError(
            "graphs: expected unified for an encoder, got split. Only the graph of a decoder can "
            "be cut in two: leave --graphs out."
        )
    if settings.takes_one and settings.options.graphs == "split":
        raise OptionError(
            "graphs: expected unified for a model that reads its tokens one by one, got split. "
            "There is one graph for prompts and for steps: leave --graphs out."
        )


def _check_prefill(settings: Settings) -> None:
    options = settings.options
    if options.prefill_precision is None:
        return
    is_decoder = not KINDS[settings.kind].has_encoder
    if settings.quantization is None or (is_decoder and options.graphs != "split"):
        missing = ["--graphs split"] if is_decoder and options.graphs != "split" else []
        missing += [] if settings.quantization is not None else ["--precision int4"]
        raise OptionError(
            "prefill precision: 8-bit products need weights of int8 or int4"
            f"{', and graphs of their own for prompts' if is_decoder else ''} (got "
            f"{settings.precision}, graphs {options.graphs}). Add {' '.join(missing)}."
        )
    if settings.device != "cpu":
        raise OptionError(
            f"prefill precision: expected the device cpu, got {settings.device}, which has no "
            "products of int8 activations. Leave one of the two out."
        )
    if options.attention == "portable":
        raise OptionError(
            "prefill precision: expected fused attention, got portable. Products of int8 "
            "activations have no portable form: leave one of the two out."
        )


def _check_cache(settings: Settings) -> None:
    options = settings.options
    if options.cache == "float":
        return
    for expected, got, fits in (
        ("a decoder by itself", f"an {settings.kind}", settings.kind == "decoder"),
        ("the device cpu", settings.device, settings.device == "cpu"),
        ("fused attention", options.attention, options.attention == "fused"),
    ):
        if not fits:
            raise OptionError(
                f"cache: expected {expected} for keys and values in 8 bits, got {got}. "
                "Leave --cache out."
            )


def _check_auto(auto: Auto, device: Device, options: ExportOptions) -> None:
    given = [each for each in (auto.max_kl, auto.target_size) if each is not None]
    bounds = [each for each in (auto.max_kl, options.max_kl) if each is not None]
    for expected, got, fits in (
        ("either max_kl or target_size", "both" if given else "neither", len(given) == 1),
        ("a bound above 0", (given or [0])[0], all(0 < each < float("inf") for each in given)),
        ("max_kl once", f"it in the options too, {options.max_kl}", len(bounds) < 2),
        ("the device cpu", device, device == "cpu"),
        ("no prefill precision", options.prefill_precision, options.prefill_precision is None),
    ):
        if not fits:
            raise OptionError(
                f"auto: expected {expected} for bits that are chosen, got {got}. Change that, or "
                "choose --precision int4."
            )
