import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper
from tests.runtime import packed_bundles, tiny_decoder, tiny_encoder
from tests.runtime.damaged_bundles import edit_json, put, reseal

from ortolan import freezing
from ortolan.cli.inspect import inspect_command
from ortolan.runtime import (
    FirstLoadError,
    GraphError,
    InputError,
    ManifestError,
    limits,
    load,
    open_bundle,
    verify,
)
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.packed import find_packed
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.pack.write import pack
from ortolan.runtime.verification.first_load import first_load, try_load

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")

Replace = Callable[[str], None]

ABORT = "import os; os.abort()"


def problem(bundle: Bundle) -> str:
    """What the error says about the subprocess."""
    with pytest.raises(FirstLoadError, match=r"or --no-isolate on the command line\.$") as caught:
        first_load(bundle)
    before, _, text = str(caught.value).partition("The subprocess of a first load ")
    assert before == ""
    return text.partition(". Do not load")[0]


# --- bundles that load --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *("decoder", "recurrent", "encoder", "images"),
        pytest.param("translator", marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_bundle_loads(
    kind: str,
    tmp_path: Path,
    exported: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kind == "translator":
        path = exported("marian") / "bundle"
    elif kind in ("encoder", "images"):
        image = tiny_encoder.IMAGE if kind == "images" else None
        path = tiny_encoder.write_bundle(tmp_path / "bundle", image=image).path
    else:
        path = tiny_decoder.write_bundle(tmp_path / "bundle", recurrent=kind == "recurrent").path
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # nothing is known
    assert first_load(open_bundle(path)) is True


def test_packed_weights_are_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bundle = packed_bundles.write(tmp_path / "bundle", "int4")
    pack(bundle)
    packed = find_packed(bundle, onnxruntime=onnxruntime_version())
    assert packed is not None
    with caplog.at_level(logging.WARNING):
        assert first_load(bundle, packed=packed) is True
    (bundle.path / packed.folder / "packed.seal").unlink()
    blob = msgspec.structs.replace(packed.manifest.blob, size=1 << 20)
    manifest = msgspec.structs.replace(packed.manifest, blob=blob)
    with pytest.raises(FirstLoadError, match="UnusableError"):
        first_load(bundle, packed=type(packed)(folder=packed.folder, manifest=manifest))


def test_load_starts_a_subprocess_once_unless_isolate_is_false(
    bundle: Bundle, replace_step: Replace
) -> None:
    replace_step(ABORT)
    load(bundle.path, isolate=False)
    with pytest.raises(FirstLoadError):
        load(bundle.path)
    replace_step("pass")
    load(bundle.path)
    replace_step(ABORT)
    load(bundle.path)
    with pytest.raises(InputError, match=r"^isolate.*'yes'"):
        load(bundle.path, isolate="yes")  # type: ignore[call-overload]


def test_the_graph_of_attention_maps_is_opened(tmp_path: Path) -> None:
    bundle = open_bundle(tiny_encoder.write_bundle(tmp_path / "bundle", maps=True).path)
    assert first_load(bundle) is True
    path = bundle.file("attention.onnx")
    model = onnx.load(path)
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    del softmax.attribute[:]
    softmax.attribute.append(helper.make_attribute("axis", 9))
    path.write_bytes(model.SerializeToString())
    reseal(bundle.path)
    load(bundle.path, isolate=False)
    with pytest.raises(GraphError, match=r"^attention\.onnx"):
        first_load(bundle)


# --- bundles that do not ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGABRT)", "was killed by SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGFPE)", "was killed by SIGFPE"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "memory is short"),
        ("import time; time.sleep(60)", "within 1 s"),
        ("raise KeyError('odd')", "raised KeyError: 'odd'"),
    ],
)
def test_the_error_says_how_the_subprocess_ended(
    body: str,
    expected: str,
    bundle: Bundle,
    replace_step: Replace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "within" in expected:
        monkeypatch.setattr(limits, "FIRST_LOAD_SECONDS", 1)
    replace_step(body)
    assert problem(bundle).endswith(expected)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('x' * 1000000)", "was killed by SIGPIPE"),
        ("print('[1]')", "did not answer"),
        ("pass", "did not answer"),
        ("raise SystemExit(7)", "exited with status 7"),
        ("""print('{"error": "QueueFullError", "text": "wait"}')""", "raised wait"),
        ("""print('{"error": "__doc__", "text": "odd"}')""", "raised odd"),
    ],
)
def test_a_nonsense_answer_is_an_error(
    code: str, expected: str, bundle: Bundle, replace_process: Replace
) -> None:
    replace_process("import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n" + code)
    assert problem(bundle) == expected


EXPAND = """
import numpy as np
from onnx import TensorProto, helper
from ortolan.runtime.engine.ort_session import OrtSession
node = helper.make_node("Expand", ["x", "shape"], ["y"])
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
shape = helper.make_tensor("shape", TensorProto.INT64, [1], [1 << 30])
graph = helper.make_graph([node], "large", [x], [y], [shape])
model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
OrtSession(model.SerializeToString()).run(None, {"x": np.zeros(1, np.float32)})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory")
@pytest.mark.parametrize(
    "body", [EXPAND, "blocks = [bytearray(64 << 20) for _ in range(100)]"], ids=["graph", "python"]
)
def test_memory_is_limited(body: str, bundle: Bundle, replace_step: Replace) -> None:
    replace_step(body)
    assert problem(bundle).startswith("asked for more than 0.5")


def test_no_file_is_written(bundle: Bundle, replace_step: Replace, tmp_path: Path) -> None:
    path = tmp_path / "written"
    replace_step(f"import pathlib; pathlib.Path({str(path)!r}).write_text('more')")
    assert "File too large" in problem(bundle)
    assert path.read_bytes() == b""


def test_an_error_in_the_subprocess_is_the_same_error_here(bundle: Bundle) -> None:
    edit_json(
        bundle.path,
        "manifest.json",
        put("states", 0, "shape", value=[2, "batch", "capacity", 16]),
    )
    with pytest.raises(ManifestError) as there:
        first_load(bundle)
    with pytest.raises(ManifestError) as here:
        load(bundle.path)
    assert str(there.value) == str(here.value)


def test_a_frozen_program_is_told_what_to_do(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(FirstLoadError, match="isolate=False, or run `ortolan verify`"):
        first_load(bundle)


def test_a_frozen_program_with_the_hook_starts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(freezing, "_watchers", [])
    monkeypatch.setattr(sys, "argv", ["program", "-m", "another.module"])
    freezing.become_child_if_asked()  # returns: the program goes on
    assert not freezing.starts_no_child()
    started: list[str] = []
    monkeypatch.setattr("runpy.run_module", lambda name, **_: started.append(name))
    monkeypatch.setattr(sys, "argv", ["program", "-m", freezing.CHILD, "{}"])
    with pytest.raises(SystemExit):
        freezing.become_child_if_asked()
    assert (started, sys.argv) == ([freezing.CHILD], ["program", "{}"])


# --- trials -------------------------------------------------------------------------------------


def test_a_trial_reports_the_first_load(bundle: Bundle, replace_step: Replace) -> None:
    assert try_load(bundle).outcome == "passed"
    replace_step("from ortolan.runtime import GraphError; raise GraphError('no')")
    refused = try_load(bundle)
    assert (refused.outcome, refused.text) == ("refused", "no")
    replace_step(ABORT)
    verify(bundle.path, exact=False, isolate=False)
    assert try_load(bundle).outcome == "ended"


def test_a_trial_of_a_verified_bundle_starts_no_subprocess(
    bundle: Bundle, replace_step: Replace
) -> None:
    verify(bundle.path, exact=False)
    replace_step(ABORT)
    assert try_load(bundle).outcome == "verified"


def test_inspect_describes_a_bundle_that_crashes_and_then_fails(
    bundle: Bundle, replace_step: Replace
) -> None:
    replace_step(ABORT)
    result = CliRunner().invoke(inspect_command, [str(bundle.path)])
    assert "FAILED" in result.output
    assert isinstance(result.exception, FirstLoadError)
    result = CliRunner().invoke(inspect_command, [str(bundle.path), "--json"])
    assert json.loads(result.output)["first_load"]["outcome"] == "ended"
    assert isinstance(result.exception, FirstLoadError)
    result = CliRunner().invoke(inspect_command, [str(bundle.path), "--json", "--no-isolate"])
    assert json.loads(result.output)["first_load"] is None
    assert result.exception is None
