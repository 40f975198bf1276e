"""Where onnxruntime computes each node of a bundle, against the table of kernels."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import onnxruntime as ort  # type: ignore[import-untyped]
import pytest
import torch
from tests.export import tiny_models
from tests.export.models_of_kinds import encoder_config, module_of, one_layer
from tests.gpu.one_node import ELEMENTS, PROVIDERS

import ortolan
from ortolan.export.options import Int4
from ortolan.modeling.config import EmbeddingHead
from ortolan.modeling.models.model import TransformerModel
from ortolan.runtime import Bundle
from ortolan.runtime.graph.schema import parse_model
from ortolan.runtime.inspect.kernel_table import DECISIVE_INPUT
from ortolan.runtime.inspect.placement import node_kinds, placement

Device = Literal["cpu", "cuda"]

Nodes = Counter[tuple[str, str, str]]
"""Nodes by operator, type of the decisive input, and provider."""

MODULES: dict[str, Callable[[], TransformerModel]] = {
    "llama": lambda: tiny_models.decoder(tiny_models.llama()),
    "gpt2": lambda: tiny_models.decoder(tiny_models.gpt2()),
    "modern": lambda: tiny_models.decoder(tiny_models.modern()),
    "encoder": lambda: module_of(
        one_layer(encoder_config(head=EmbeddingHead(pooling=("mean",), normalised=True)))
    ),
}

PRECISIONS: dict[str, tuple[Device, Any]] = {
    "cpu-fp32": ("cpu", "fp32"),
    "cpu-int4": ("cpu", Int4(method="rtn", group_size=32)),
    "cuda-fp16": ("cuda", "fp16"),
    "cuda-bf16": ("cuda", "bf16"),
    "cuda-int4": ("cuda", Int4(method="rtn", group_size=32)),
}

QUICK = "llama"

CASES = [
    pytest.param(
        name,
        precision,
        marks=[
            *([pytest.mark.gpu] if precision.startswith("cuda") else []),
            *([pytest.mark.slow] if name != QUICK else []),
        ],
    )
    for name in MODULES
    for precision in PRECISIONS
]

SIZES = {"batch": 1, "capacity": 16, "rows": 1}
"""Sizes of named axes; others have the 3 tokens of the text."""

NUMBERS = {"seqlens_k": 2, "total_sequence_length": 3, "lengths": 3}
"""Numbers for three tokens; other inputs are 0."""

CONVERSIONS = frozenset({"Cast", "CastLike", "MemcpyFromHost", "MemcpyToHost"})
"""Nodes that onnxruntime puts between types or devices."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Bundle]:
    @cache
    def export(name: str, precision: str) -> Bundle:
        out = tmp_path_factory.mktemp("placed") / "bundle"
        device, numbers = PRECISIONS[precision]
        options = ortolan.ExportOptions(allow_poor=True)
        bundle: Bundle = ortolan.export(
            MODULES[name](), out, device=device, precision=numbers, options=options
        )
        return bundle

    return export


def recorded(bundle: Bundle, device: str, folder: Path, level: str) -> Nodes:
    """The nodes in onnxruntime's own profile of a run, without conversions."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "record")
    (graph,) = bundle.manifest.graphs.values()
    session = ort.InferenceSession(
        str(bundle.file(graph.file)), options, providers=[PROVIDERS[device]]
    )
    binding = session.io_binding()
    for value in session.get_inputs():
        sizes = [size if isinstance(size, int) else SIZES.get(size, 3) for size in value.shape]
        number, dtype = NUMBERS.get(value.name, 0), _dtype(value.type[len("tensor(") : -1])
        tensor = torch.full(sizes, number, dtype=getattr(torch, dtype))
        binding.bind_ortvalue_input(value.name, ort.OrtValue.from_dlpack(tensor))
    for value in session.get_outputs():
        binding.bind_output(value.name, "cpu")
    session.run_with_iobinding(binding)
    events = msgspec.json.decode(Path(session.end_profiling()).read_bytes())
    return Counter(
        (name, types[min(decisive.get(name, 0), len(types) - 1)], event["args"]["provider"])
        for event in events
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time")
        if (name := event["args"]["op_name"]) not in CONVERSIONS
        if (types := [_dtype(next(iter(x))) for x in event["args"]["input_type_shape"] if x])
    )


decisive = {operator.partition("::")[2]: index for operator, index in DECISIVE_INPUT.items()}


def _dtype(name: str) -> str:
    return {"float": "float32"}.get(name, name)


def predicted(bundle: Bundle, device: str) -> Nodes:
    """Where the table places the nodes."""
    lost = {(kind.operator, kind.dtype): kind for kind in placement(bundle, device).misplaced}
    (graph,) = bundle.manifest.graphs.values()
    nodes: Nodes = Counter()
    for kind, count in node_kinds(parse_model(bundle.read(graph.file)).graph).items():
        name = kind.operator.partition("::")[2]
        if name in CONVERSIONS:
            continue
        match lost.get((kind.operator, kind.dtype)):
            case None:
                nodes[name, kind.dtype, PROVIDERS[device]] += count
            case misplaced:
                dtype = "float32" if misplaced.fallback == "float32" else kind.dtype
                nodes[name, dtype, PROVIDERS["cpu"]] += count
    return nodes


def of_floats(nodes: Nodes) -> Nodes:
    """Leave out nodes of integers, which onnxruntime computes where it likes."""
    return Counter({node: count for node, count in nodes.items() if node[1] in ELEMENTS})


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_every_node_is_where_the_table_says(
    name: str,
    precision: str,
    exported: Callable[[str, str], Bundle],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    device, _ = PRECISIONS[precision]
    if device == "cuda":
        request.getfixturevalue("cuda")
    bundle = exported(name, precision)
    expected = of_floats(predicted(bundle, device))
    assert expected.total() > 10
    found = of_floats(recorded(bundle, device, tmp_path, "ORT_DISABLE_ALL"))
    assert found == expected
    # With fusions there are other nodes; the rest are where they were.
    names = {node[0] for node in expected}
    fused = of_floats(recorded(bundle, device, tmp_path, "ORT_ENABLE_ALL"))
    assert {node for node in fused if node[0] in names} <= set(expected)
