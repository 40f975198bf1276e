"""Settings of an export, schemes of weights, and contradictions."""

from typing import Any, cast

import onnx_ir as ir
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from torch import Tensor

from ortolan.export.low_bit import NARROW_GROUP_SIZE, Quantization
from ortolan.export.options import Auto, ExportOptions, Int4, Int8
from ortolan.export.quantize.schemes import NARROW, assign_schemes, scheme_choices, scheme_of
from ortolan.export.scheme import Scheme
from ortolan.export.settings import resolve
from ortolan.modeling.codes import CodedRows, CodeFormat, StoredCodes
from ortolan.modeling.weights import Weights


def product(name: str, columns: int) -> ir.Model:
    """A graph of one product."""
    shape, kind = ir.Shape((8, columns)), ir.TensorType(ir.DataType.FLOAT)
    weight, x = ir.Value(name=name, shape=shape, type=kind), ir.Value(name="x")
    node = ir.Node("com.microsoft", "FusedMatMul", [x, weight], num_outputs=1)
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=(), opset_imports={"": 24})
    graph.initializers.add(weight)
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(
    ("columns", "group"),
    [(576, 64), (1536, 256), (640, 128), (688, 256), (100, 128), (64, 64), (20, 32), (129, 32)],
)
def test_rows_take_the_groups_that_make_them_shortest(columns: int, group: int) -> None:
    scheme = Scheme(bits=4, group=256)
    options = Quantization(scheme=scheme, head=scheme, method="rtn", shrink_groups=True)
    assert assign_schemes([product("w", columns)], options)["w"].group == group


@pytest.mark.parametrize(
    ("kind", "precision", "columns", "group"),
    [
        ("decoder", Int4(), NARROW - 32, NARROW_GROUP_SIZE),
        ("decoder", Int4(), NARROW, 256),
        ("decoder", Int4(method="rtn"), 1536, NARROW_GROUP_SIZE),
        ("encoder-decoder", Int4(), 512, NARROW_GROUP_SIZE),
        ("decoder", Int4(group_size=64), 512, 64),
        ("decoder", Int8(), 512, 128),
        ("encoder", Int4(), 512, NARROW_GROUP_SIZE),
    ],
)
def test_short_rows_take_small_groups_in_4_bits(
    kind: str, precision: Int4 | Int8, columns: int, group: int
) -> None:
    found = resolve(kind, precision=precision).quantization
    assert found is not None
    assert scheme_of("blocks.0.feed_forward.up.weight", columns, found).group == group
    # A head of 8 bits keeps its group size.
    of_head = found.head.group if found.head.bits == 8 or group != NARROW_GROUP_SIZE else group
    assert scheme_of("head.weight", columns, found).group == of_head


class HeadIn8Bits(Weights):
    """Weights of a checkpoint that stores its head in 8 bits."""

    def codes(self, name: str) -> StoredCodes | None:
        if name != "head.weight":
            return None
        return StoredCodes(lambda: CodeFormat(8, 32, symmetric=True), self.coded_rows)

    def shape(self, name: str) -> tuple[int, ...]:
        raise NotImplementedError

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        raise NotImplementedError

    def coded_rows(self, start: int, stop: int) -> CodedRows:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (Int4(), (8, 32)),
        (Int4(head_bits=8), (8, 32)),
        (Int4(head_bits=4), (4, 128)),
        (Int4(method="gptq"), (4, 128)),
        (Int8(), (8, 32)),
    ],
)
def test_head_that_a_checkpoint_has_in_8_bits_keeps_them_unless_4_are_asked_for(
    precision: Int4 | Int8, expected: tuple[int, int]
) -> None:
    found = resolve("decoder", precision=precision).quantization
    assert found is not None
    scheme = scheme_of("head.weight", 4096, found, HeadIn8Bits())
    assert (scheme.bits, scheme.group) == expected


@pytest.mark.parametrize("columns", [512, 4096])
def test_bits_are_chosen_among_large_groups_small_ones_and_8_bits(columns: int) -> None:
    asked = resolve("decoder", precision=Auto(max_kl=0.1)).quantization
    assert asked is not None
    name = "blocks.0.feed_forward.up.weight"
    offered = scheme_choices([product(name, columns)], asked)[(name,)]
    found = [(each[name].bits, each[name].group) for each in offered]
    assert found == [(4, 256), (4, 32), (8, 128)]


SPLIT = ExportOptions(graphs="split")
FLOAT = ExportOptions(graphs="split", prefill_precision="float")
PREFILL = ExportOptions(graphs="split", prefill_precision="int8")
CACHE = ExportOptions(cache="int8")
OTHER = cast(Any, "other")


def quantization(kind: str = "decoder", **choices: Any) -> Quantization:
    resolved = resolve(kind, **choices).quantization
    assert resolved is not None
    return resolved


def portable(options: ExportOptions) -> ExportOptions:
    return ExportOptions(
        graphs=options.graphs,
        attention="portable",
        prefill_precision=options.prefill_precision,
        cache=options.cache,
    )


@pytest.mark.parametrize(
    ("kind", "precision", "method", "head_bits"),
    [
        ("decoder", Int4(), "gptq", 4),
        ("encoder-decoder", Int4(), "gptq", 4),
        ("encoder", Int4(), "gptq", 8),
        ("encoder", Int4(head_bits=4), "gptq", 4),
        ("decoder", Int4(method="rtn"), "rtn", 8),
        ("decoder", Int8(), "rtn", 8),
        ("decoder", Int4(effort="quick"), "rtn", 8),
        ("decoder", Int4(effort="quick", method="gptq"), "gptq", 4),
        ("decoder", Int4(effort="best"), "gptq", 4),
        ("decoder", Int8(effort="quick"), "rtn", 8),
        ("decoder", Int8(effort="best"), "gptq", 8),
    ],
)
def test_default_method_and_head(
    kind: str, precision: Int4 | Int8, method: str, head_bits: int
) -> None:
    resolved = quantization(kind, precision=precision)
    assert (resolved.method, resolved.head.bits) == (method, head_bits)


@pytest.mark.parametrize(
    ("precision", "device", "blocks", "head"),
    [
        (Int4(), "cpu", 256, 128),
        (Int4(method="rtn"), "cpu", 128, 128),
        (Int4(method="rtn", head_bits=4), "cpu", 256, 128),
        (Int4(head_bits=8), "cpu", 128, 128),
        (Int4(group_size=64), "cpu", 64, 64),
        (Int4(group_size=256), "cpu", 256, 256),
        (Int4(group_size=64, head_bits=8), "cpu", 64, 128),
        (Int4(method="rtn", group_size=32), "cpu", 32, 128),
        (Int8(), "cpu", 128, 128),
        (Int8(group_size=64), "cpu", 64, 64),
        (Int4(), "cuda", 128, 128),
    ],
)
def test_group_sizes_of_blocks_and_head(
    precision: Int4 | Int8, device: str, blocks: int, head: int
) -> None:
    resolved = quantization(precision=precision, device=device)
    assert (resolved.scheme.group, resolved.head.group) == (blocks, head)
    assert resolved.shrink_groups == (precision.group_size is None)


@pytest.mark.parametrize(
    ("choices", "devices", "is_proven"),
    [
        ({"precision": "fp16"}, ("cpu",), True),
        ({"precision": "int4"}, ("cpu",), True),
        ({"device": "cuda", "precision": "fp16"}, ("cuda", "cpu"), True),
        ({"device": "cuda", "precision": "int8"}, ("cuda", "cpu"), True),
        ({"device": "cuda", "precision": "bf16"}, ("cuda",), False),
    ],
)
def test_devices_that_run_a_bundle(
    choices: dict[str, Any], devices: tuple[str, ...], is_proven: bool
) -> None:
    plan = resolve("decoder", **choices)
    assert plan.devices == devices
    assert (plan.unverified is None) == is_proven


def test_more_effort_is_more_work() -> None:
    normal, best = (quantization(precision=Int4(effort=effort)) for effort in ("normal", "best"))
    assert best.calibration_sequences > normal.calibration_sequences
    assert (normal.trains_scales, best.trains_scales) == (False, True)
    chosen = quantization(precision=Int4(effort="best", calibration_sequences=3))
    assert (chosen.calibration_sequences, chosen.trains_scales) == (3, True)


@pytest.mark.parametrize(
    ("kind", "choices", "is_int8"),
    [
        ("decoder", {"precision": "int4", "options": SPLIT}, True),
        ("decoder", {"precision": "int4", "options": FLOAT}, False),
        ("decoder", {"precision": "int4"}, False),
        ("decoder", {"precision": "int8", "options": SPLIT}, False),
        ("decoder", {"precision": "int8", "options": PREFILL}, True),
        ("decoder", {"precision": "int4", "options": portable(SPLIT)}, False),
        ("decoder", {"precision": "int4", "options": SPLIT, "device": "cuda"}, False),
        ("decoder", {"precision": Auto(max_kl=1.0), "options": SPLIT}, False),
        ("encoder-decoder", {"precision": "int4", "options": SPLIT}, False),
    ],
)
def test_int8_prefill_is_the_default_of_split_int4(
    kind: str, choices: dict[str, Any], is_int8: bool
) -> None:
    plan = resolve(kind, **choices)
    assert plan.has_int8_prefill == is_int8
    assert ("prefill" in plan.graph_files) == ("options" in choices)


def test_graphs_of_an_encoder_decoder() -> None:
    files = resolve("encoder-decoder", options=SPLIT).graph_files
    sequences = {role: graph.sequence for role, graph in files.items()}
    assert sequences == {"encoder": None, "prefill": None, "decode": 1}
    # Its int8 products are those of the encoder.
    files = resolve("encoder-decoder", precision="int8", options=PREFILL).graph_files
    assert (files["prefill"].min_new_tokens, files["decode"].sequence) == (2, 1)


def test_auto_starts_from_the_fewest_bytes() -> None:
    auto = Auto(max_kl=0.05, exclude=("a",))
    plan = resolve("encoder", precision=auto)
    resolved = quantization("encoder", precision=auto)
    scheme, head = resolved.scheme, resolved.head
    assert (scheme.bits, scheme.group, head.bits, head.group) == (4, 256, 4, 128)
    assert (resolved.exclude, resolved.method) == (("a",), "gptq")
    assert (plan.options.max_kl, plan.auto) == (0.05, auto)


def test_auto_multiplies_integers_in_prefill_where_asked() -> None:
    auto = Auto(max_kl=0.05)
    asked = resolve("decoder", precision=auto, options=PREFILL)
    split = resolve("decoder", precision=auto, options=ExportOptions(graphs="split"))
    assert (asked.has_int8_prefill, split.has_int8_prefill) == (True, False)


REFUSED: dict[str, dict[str, Any]] = {
    "an unknown device": {"device": "tpu"},
    "an unknown precision": {"precision": "int3"},
    "no precision": {"precision": None},
    "fp32 on cuda": {"device": "cuda"},
    "bf16 on the cpu": {"precision": "bf16"},
    "an unknown method": {"precision": Int4(method=OTHER)},
    "an unknown effort": {"precision": Int4(effort=OTHER)},
    "a group of 48": {"precision": Int4(group_size=cast(Any, 48))},
    "a group of another type": {"precision": Int8(group_size=OTHER)},
    "large groups on cuda": {"precision": Int4(group_size=256), "device": "cuda"},
    "no calibration": {"precision": Int4(calibration_sequences=0)},
    "a head of 6 bits": {"precision": Int4(head_bits=cast(Any, 6))},
    "unknown graphs": {"options": ExportOptions(graphs=OTHER)},
    "unknown attention": {"options": ExportOptions(attention=OTHER)},
    "an unknown cache": {"options": ExportOptions(cache=OTHER)},
    "an unknown proof": {"options": ExportOptions(proof=OTHER)},
    "an unknown topic": {"options": ExportOptions(accept_difference=(OTHER,))},
    "a negative limit": {"options": ExportOptions(max_kl=-1.0)},
    "an infinite limit": {"options": ExportOptions(max_kl=float("inf"))},
    "nodes on the cpu of the cpu": {"options": ExportOptions(allow_cpu_nodes=True)},
    "an encoder that is split": {"kind": "encoder", "options": SPLIT},
    "one token at a time in split graphs": {"options": SPLIT, "takes_one": True},
    "int8 prefill of floats": {"options": ExportOptions(prefill_precision="int8")},
    "int8 prefill of unified graphs": {
        "precision": "int4",
        "options": ExportOptions(prefill_precision="int8"),
    },
    "int8 prefill of split floats": {"options": PREFILL},
    "int8 prefill on cuda": {"device": "cuda", "precision": "int4", "options": PREFILL},
    "int8 prefill in portable graphs": {"precision": "int4", "options": portable(PREFILL)},
    "int8 cache of an encoder": {"kind": "encoder", "precision": "int8", "options": CACHE},
    "int8 cache of two sides": {"kind": "encoder-decoder", "precision": "int8", "options": CACHE},
    "int8 cache on cuda": {"precision": "int8", "device": "cuda", "options": CACHE},
    "int8 cache in portable graphs": {"precision": "int8", "options": portable(CACHE)},
    "auto without a goal": {"precision": Auto()},
    "auto of little effort": {"precision": Auto(max_kl=0.1, effort="quick")},
    "auto with two goals": {"precision": Auto(max_kl=0.1, target_size=9)},
    "auto without error": {"precision": Auto(max_kl=0.0)},
    "auto without size": {"precision": Auto(target_size=-1)},
    "auto on cuda": {"precision": Auto(max_kl=1.0), "device": "cuda"},
    "auto with two limits": {"precision": Auto(max_kl=1.0), "options": ExportOptions(max_kl=0.5)},
    "auto with int8 prefill": {"precision": Auto(target_size=9), "options": PREFILL},
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused(name: str, snapshot: SnapshotAssertion) -> None:
    choices = {"kind": "decoder", **REFUSED[name]}
    assert refusal(lambda: resolve(**choices)) == snapshot
