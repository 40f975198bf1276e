"""What can be chosen about an export, what it is by default, and what goes together.

Knows names and tables. Does not know how anything is done.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch

from ortolan.export.errors import OptionError
from ortolan.export.quantize.blocks import Scheme
from ortolan.export.quantize.plan import METHODS, Method, Quantization
from ortolan.modeling.config import EncoderConfig, EncoderDecoderConfig, ModelConfig
from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.manifest import Graph

Kind = Literal["decoder", "encoder", "encoder-decoder"]
Device = Literal["cpu", "cuda"]
Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]
Graphs = Literal["unified", "split"]
Attention = Literal["fused", "portable"]
GroupSize = Literal[32, 64, 128, 256]
HeadBits = Literal[4, 8]

DTYPES: Mapping[Device, Mapping[Precision, torch.dtype]] = {
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

BITS: Mapping[Precision, Literal[4, 8]] = {"int8": 8, "int4": 4}

GROUP_SIZE: GroupSize = 128
FEWEST_BYTES_GROUP_SIZE: GroupSize = 256
"""Values that share a scale; in blocks below a head of 4 bits the second: fewer bytes to read, and
calibration makes up for it (docs/adr/0005).

Where nobody asked for a size, rows that it does not divide take a smaller one if that is shorter.
"""

LARGEST_GROUPS: Mapping[Device, GroupSize] = {"cpu": 256, "cuda": 128}
"""That kernels of a device take."""

CALIBRATED_HEAD_BITS: HeadBits = 4
HEAD_BITS: HeadBits = 8
"""Of int4's head and embedding, where they are calibrated and where not (docs/adr/0005)."""

INT8_PREFILL_FROM = 16
"""New tokens from which a prefill graph in int8 is faster than the decode graph (docs/adr/0006)."""

CALIBRATION_SEQUENCES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A consistent set of choices.

    Attributes:
        kind: of the model.
        device: what the graphs are made for.
        attention_maps: there is a graph of what each token attends to.
        quantization: how weights are stored; `None` where they are floats.
        allow_cpu_nodes: nodes that the device has no kernel for may be computed on the CPU.
        prefill_precision: of the products of the graph that takes whole texts, where it has
            weights of its own: a decoder's prefill graph, or an encoder.
        max_kl: the largest mean divergence that is accepted; `None` for the precision's own.
    """

    kind: Kind
    device: Device
    precision: Precision
    graphs: Graphs
    attention: Attention
    attention_maps: bool
    allow_cpu_nodes: bool
    quantization: Quantization | None
    prefill_precision: Literal["int8"] | None
    max_kl: float | None

    @property
    def dtype(self) -> torch.dtype:
        """Of what is not quantized."""
        return DTYPES[self.device][self.precision]

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
        files = {} if self.kind == "decoder" else {"encoder": Graph(file="encoder.onnx")}
        if self.kind != "encoder":
            files |= self._step_files
        if self.attention_maps:
            files[MAPS_ROLE] = Graph(file="attention.onnx")
        return files

    @property
    def _step_files(self) -> dict[str, Graph]:
        if self.graphs == "unified":
            return {"decoder": Graph(file="decoder.onnx")}
        if self.prefill_precision is None or self.kind != "decoder":
            return {
                "prefill": Graph(file="prefill.onnx", min_new_tokens=2),
                "decode": Graph(file="decode.onnx", sequence=1),
            }
        return {
            "prefill": Graph(file="prefill.onnx", min_new_tokens=INT8_PREFILL_FROM),
            "decode": Graph(file="decode.onnx"),
        }


class Form(NamedTuple):
    """What a bundle shall be, as it was asked for."""

    device: Device
    precision: Precision
    graphs: Graphs
    attention: Attention
    prefill_precision: Literal["int8"] | None
    attention_maps: bool
    allow_cpu_nodes: bool


class Rounding(NamedTuple):
    """How weights of few bits shall be found, as it was asked for; `None` for the default."""

    method: Method | None
    group_size: GroupSize | None
    asymmetric: bool
    head_bits: HeadBits | None
    exclude: tuple[str, ...]


def kind_of(config: ModelConfig) -> Kind:
    """The kind of a model."""
    match config:
        case EncoderConfig():
            return "encoder"
        case EncoderDecoderConfig():
            return "encoder-decoder"
        case _:
            return "decoder"


def resolve(
    kind: Kind, form: Form, rounding: Rounding, *, max_kl: float | None, can_calibrate: bool
) -> Options:
    """Fill in defaults and refuse what does not go together.

    By default int4 is found by gptq where there is something to calibrate on, with a head of 4
    bits (8 in an encoder), else by hqq with a head of 8 bits; int8, which leaves nothing to
    calibrate, by rtn.

    Args:
        kind: of the model.
        form: what was asked for.
        rounding: what was asked for; nothing, unless `form` has int8 or int4.
        max_kl: see `Options`.
        can_calibrate: there is a text and a tokenizer to read it with.

    Raises:
        OptionError: names the option, what was expected and what was got.
    """
    _check_choices(form, rounding)
    if max_kl is not None and not 0 <= max_kl < float("inf"):
        raise OptionError(f"max_kl: expected a number of at least 0, got {max_kl}.")
    quantization = None
    if form.precision in BITS:
        quantization = _quantization(kind, form, rounding, can_calibrate=can_calibrate)
    elif rounding != Rounding(None, None, asymmetric=False, head_bits=None, exclude=()):
        raise OptionError(
            f"precision: expected int8 or int4 with a method, a group size or exclusions, got "
            f"{form.precision}. Leave these out, or choose --precision int4."
        )
    options = Options(
        kind=kind,
        device=form.device,
        precision=form.precision,
        graphs=form.graphs,
        attention=form.attention,
        attention_maps=form.attention_maps,
        allow_cpu_nodes=form.allow_cpu_nodes,
        quantization=quantization,
        prefill_precision=form.prefill_precision,
        max_kl=max_kl,
    )
    _check_graphs(options)
    _check_prefill(options)
    return options


def _quantization(
    kind: Kind, form: Form, rounding: Rounding, *, can_calibrate: bool
) -> Quantization:
    precision = form.precision
    method = _method(rounding.method, precision, can_calibrate=can_calibrate)
    head_bits = rounding.head_bits
    if head_bits is None:
        is_calibrated = method == "gptq" and precision == "int4"
        # A decoder reads its head for every token; an encoder gains no speed by fewer bits.
        pays = is_calibrated and kind != "encoder"
        head_bits = CALIBRATED_HEAD_BITS if pays else HEAD_BITS
    blocks = FEWEST_BYTES_GROUP_SIZE if head_bits == CALIBRATED_HEAD_BITS else GROUP_SIZE
    scheme = Scheme(
        bits=BITS[precision],
        group=_group_size(form.device, rounding.group_size, blocks),
        symmetric=not rounding.asymmetric,
    )
    if head_bits < scheme.bits:
        raise OptionError(
            f"head bits: expected {scheme.bits} with {precision}, got {head_bits}. "
            "Leave it out, or choose --precision int4."
        )
    head_group = _group_size(form.device, rounding.group_size, GROUP_SIZE)
    return Quantization(
        scheme=scheme,
        head=replace(scheme, bits=head_bits, group=head_group),
        method=method,
        fits=rounding.group_size is None,
        exclude=rounding.exclude,
    )


def _group_size(device: Device, asked: GroupSize | None, default: GroupSize) -> GroupSize:
    """What was asked for, or the default as far as the device has kernels for it."""
    largest = LARGEST_GROUPS[device]
    if asked is None:
        return min(largest, default)
    if asked > largest:
        raise OptionError(
            f"group size: expected at most {largest} for the device {device}, which has no kernel "
            f"for larger groups, got {asked}. Leave it out, or choose a smaller one."
        )
    return asked


def _check_choices(form: Form, rounding: Rounding) -> None:
    for name, value, choices in (
        ("device", form.device, tuple(DTYPES)),
        ("precision", form.precision, get_args(Precision)),
        ("graphs", form.graphs, ("unified", "split")),
        ("attention", form.attention, ("fused", "portable")),
        ("prefill precision", form.prefill_precision, (None, "int8")),
        ("method", rounding.method, (None, *METHODS)),
        ("head bits", rounding.head_bits, (None, 4, 8)),
    ):
        if value not in choices:
            names = ", ".join(str(choice) for choice in choices if choice is not None)
            raise OptionError(f"{name}: expected one of {names}, got {value!r}.")
    if form.precision not in DTYPES[form.device]:
        able = next(device for device, dtypes in DTYPES.items() if form.precision in dtypes)
        raise OptionError(
            f"precision: expected one of {', '.join(DTYPES[form.device])} for the device "
            f"{form.device}, which has no kernels for others, got {form.precision}. "
            f"Choose one of these, or --device {able}."
        )
    if form.allow_cpu_nodes and form.device == "cpu":
        raise OptionError(
            "allow_cpu_nodes: expected another device than the CPU, got cpu. Leave it out, or "
            "add --device cuda."
        )


def _check_graphs(options: Options) -> None:
    if options.kind == "encoder" and options.graphs == "split":
        raise OptionError(
            "graphs: expected unified for an encoder, got split. Only the graph of a decoder can "
            "be cut in two: leave --graphs out."
        )


def _check_prefill(options: Options) -> None:
    if options.prefill_precision is None:
        return
    fits = options.kind != "decoder" or options.graphs == "split"
    if options.quantization is None or not fits:
        form = "split graphs" if options.kind == "decoder" else "weights"
        advice = "--graphs split " if options.kind == "decoder" else ""
        raise OptionError(
            f"prefill precision: expected {form} of int8 or int4, got {options.graphs} of "
            f"{options.precision}. Add {advice}--precision int4."
        )
    if options.device != "cpu":
        raise OptionError(
            f"prefill precision: expected the device cpu, got {options.device}, which has no "
            "products of int8 activations. Leave one of the two out."
        )
    if options.attention == "portable":
        raise OptionError(
            "prefill precision: expected fused attention, got portable. Products of int8 "
            "activations have no portable form: leave one of the two out."
        )


def _method(method: Method | None, precision: Precision, *, can_calibrate: bool) -> Method:
    """The method that was asked for, or the best that is possible."""
    if method == "gptq" and not can_calibrate:
        raise OptionError(
            "method: expected a text and a tokenizer to calibrate gptq with, got none. "
            "Give --calibration FILE, or choose --method hqq."
        )
    if method is not None:
        return method
    if precision == "int8":
        return "rtn"  # 8 bits leave nothing to calibrate
    return "gptq" if can_calibrate else "hqq"
