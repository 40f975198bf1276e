"""The file is compared with onnxruntime's own reader, and with its own record of a saved model."""

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime as ort  # type: ignore[import-untyped]
import pytest
from onnxruntime.tools import ort_format_model  # type: ignore[import-untyped]
from onnxruntime.tools.reduced_build_config_parser import (  # type: ignore[import-untyped]
    parse_config,
)
from tests.cli.conftest import error_line, run_here
from tests.runtime import tiny_bundle, tiny_decoder, tiny_encoder, tiny_translators

from ortolan.runtime import Bundle, GraphError, open_bundle
from ortolan.runtime.graph.rules import read
from ortolan.runtime.graph.vocabulary import vocabulary
from ortolan.runtime.inspect.operators import TRACKED, Operators, write_operators

# onnxruntime's tools leave files open
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Writer = Callable[[Path], object]

WRITERS: dict[str, Writer] = {
    "decoder": tiny_decoder.write_bundle,
    "split": lambda folder: tiny_decoder.write_bundle(folder, split=True),
    "recurrent": lambda folder: tiny_decoder.write_bundle(folder, recurrent=True),
    "text": tiny_encoder.write_bundle,
    "image": lambda folder: tiny_encoder.write_bundle(folder, image=tiny_encoder.IMAGE),
    "translator": lambda folder: tiny_translators.write_bundle("marian", folder.parent),
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name == "translator" else [])
        for name in WRITERS
    ]
)
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Bundle:
    WRITERS[request.param](tmp_path / "bundle")
    return open_bundle(tmp_path / "bundle")


def names(operators: Operators) -> dict[str, dict[int, set[str]]]:
    """The operators as `parse_config` returns them."""
    result: dict[str, dict[int, set[str]]] = {}
    for (domain, version), entries in operators.items():
        result.setdefault(domain, {})[version] = set(entries)
    return result


def exported(bundle: Bundle) -> set[str]:
    """The operators in the files of a bundle."""
    return {
        operator
        for graph in bundle.manifest.graphs.values()
        for operator in read(bundle.read(graph.file)).operators
    }


def recorded(bundle: Bundle, folder: Path) -> tuple[set[str], dict[str, Any]]:
    """The operators that onnxruntime records, before and after its rewrites, and their types."""
    required: dict[str, dict[int, set[str]]] = {}
    manager = ort_format_model.OperatorTypeUsageManager()
    levels = ort.GraphOptimizationLevel
    for graph in bundle.manifest.graphs.values():
        for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL):
            options = ort.SessionOptions()
            options.log_severity_level = 3
            options.graph_optimization_level = level
            options.optimized_model_filepath = str(folder / "model.ort")
            options.add_session_config_entry("session.save_model_format", "ORT")
            ort.InferenceSession(
                bundle.path / graph.file,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["SkipLayerNormFusion"],
            )
            processor = ort_format_model.OrtFormatModelProcessor(
                str(folder / "model.ort"), required, manager
            )
            processor.process()
    operators = {
        f"{domain}::{name}"
        for domain, versions in required.items()
        for names in versions.values()
        for name in names
    }
    entries = {name: manager.get_config_entry(*name.split("::")) for name in operators}
    return operators, {name: entry and json.loads(entry) for name, entry in entries.items()}


def test_file_lists_what_onnxruntime_records(bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path
    file = folder / "operators.config"
    operators = write_operators(bundle, file)
    required, kept = parse_config(str(file), enable_type_reduction=True)
    assert required == names(operators)
    listed = {
        f"{domain}::{n}": kinds for (domain, _), v in operators.items() for n, kinds in v.items()
    }
    assert exported(bundle) <= listed.keys()
    of_onnxruntime, types = recorded(bundle, folder)
    assert listed.keys() == of_onnxruntime | exported(bundle)
    for name in of_onnxruntime:
        assert listed[name] == types[name], name
    if any(listed.values()):
        assert kept.get_cpp_entries()
    assert {path.name for path in folder.iterdir()} <= {
        *("bundle", "checkpoint", "operators.config", "model.ort")
    }


def test_tracked_places_are_those_of_onnxruntime() -> None:
    processors = ort_format_model.OperatorTypeUsageManager()._all_operator_processors
    tracked = {}
    for key, processor in processors.items():
        name = key.replace(":", "::")
        if hasattr(processor, "_input_types"):  # all but OneHot
            tracked[name] = (tuple(processor._input_types), tuple(processor._output_types))
    of_ours = {name: (places.inputs, places.outputs) for name, places in TRACKED.items()}
    assert of_ours.items() <= tracked.items()
    assert tracked.keys() & vocabulary().keys() <= of_ours.keys()


def test_command_writes_the_file_and_prints_its_operators(tmp_path: Path) -> None:
    tiny_decoder.write_bundle(tmp_path / "bundle")
    file = tmp_path / "operators.config"
    done = run_here("inspect", tmp_path / "bundle", "--operators", file)
    assert done.returncode == 0, done.stderr
    assert b"GroupQueryAttention" in done.stdout
    assert platform.machine() in file.read_text()
    done = run_here("inspect", tmp_path / "bundle", "--operators", file, "--json")
    assert {entry["domain"] for entry in json.loads(done.stdout)["operator_sets"]} <= {
        *("ai.onnx", "com.microsoft")
    }


def test_what_is_no_bundle_or_does_not_load_leaves_no_file(tmp_path: Path) -> None:
    line = error_line("inspect", tmp_path, "--operators", tmp_path / "file")
    assert "--operators is for bundles" in line
    tiny_bundle.write(tmp_path / "bundle", {"decoder.onnx": b""})
    with pytest.raises(GraphError):
        write_operators(open_bundle(tmp_path / "bundle"), tmp_path / "operators.config")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
