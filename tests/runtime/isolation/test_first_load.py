import hashlib
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper
from tests.runtime import packed_bundles, tiny_decoder, tiny_encoder
from tests.runtime.isolation.stand_ins import replace_process, replace_step

from ortolan.runtime import (
    BundleError,
    BundleFileError,
    FirstLoadError,
    GraphError,
    InputError,
    ManifestError,
    limits,
    load,
    open_bundle,
)
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import File
from ortolan.runtime.bundle.manifest_file import encode
from ortolan.runtime.bundle.packed import find_packed
from ortolan.runtime.engine.ort_session import onnxruntime_version
from ortolan.runtime.errors import ComputeError
from ortolan.runtime.isolation.first_load import first_load
from ortolan.runtime.pack.write import pack

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory")


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_bundle(tiny_decoder.write_bundle(tmp_path / "bundle").path)


def error_of(bundle: Bundle) -> str:
    pattern = (
        "^first load: expected a process of its own to open the bundle and to run a step, got .*"
        r"Do not load it: .* isolate=False \(--no-isolate\)\.$"
    )
    with pytest.raises(FirstLoadError, match=pattern) as caught:
        first_load(bundle)
    return str(caught.value).partition("got ")[2].partition(". Do not")[0]


# --- bundles that load --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["decoder", "recurrent", "encoder", "images", "translator"])
def test_every_kind_of_bundle_loads_apart(
    kind: str, tmp_path: Path, exported: Callable[[str], Path]
) -> None:
    if kind == "translator":
        path = exported("marian") / "bundle"
    elif kind in ("encoder", "images"):
        image = tiny_encoder.IMAGE if kind == "images" else None
        path = tiny_encoder.write_bundle(tmp_path / "bundle", image=image).path
    else:
        path = tiny_decoder.write_bundle(tmp_path / "bundle", recurrent=kind == "recurrent").path
    assert first_load(open_bundle(path)) is True


def test_packed_weights_are_used_there_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = packed_bundles.write(tmp_path / "bundle", "int4")
    pack(bundle)
    packed = find_packed(bundle, onnxruntime=onnxruntime_version())
    assert packed is not None
    with caplog.at_level(logging.WARNING):
        assert first_load(bundle, packed=packed) is True
    lost = msgspec.structs.replace(packed.manifest.blob, size=1 << 20)
    (bundle.path / packed.folder / "packed.seal").unlink()
    manifest = msgspec.structs.replace(packed.manifest, blob=lost)
    with pytest.raises(FirstLoadError, match="UnusableError"):
        first_load(bundle, packed=type(packed)(folder=packed.folder, manifest=manifest))


def test_load_starts_a_process_only_where_it_is_asked_to(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_step(monkeypatch, "import os; os.abort()")
    load(bundle.path)
    with pytest.raises(FirstLoadError):
        load(bundle.path, isolate=True)
    with pytest.raises(InputError, match=r"^isolate: expected True or False, got 'yes'"):
        load(bundle.path, isolate="yes")  # type: ignore[call-overload]


def test_the_graph_of_attention_maps_is_opened_there(tmp_path: Path) -> None:
    bundle = open_bundle(tiny_encoder.write_bundle(tmp_path / "bundle", maps=True).path)
    assert first_load(bundle) is True
    path = bundle.file("attention.onnx")
    model = onnx.load(path)
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    del softmax.attribute[:]
    softmax.attribute.append(helper.make_attribute("axis", 9))
    data = model.SerializeToString()
    path.write_bytes(data)
    changed = File(name=path.name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    files = [changed if file.name == path.name else file for file in bundle.manifest.files]
    manifest = msgspec.structs.replace(bundle.manifest, files=tuple(files))
    (bundle.path / "manifest.json").write_bytes(encode(manifest))
    load(bundle.path)
    with pytest.raises(GraphError, match=r"^attention\.onnx"):
        first_load(bundle)


# --- bundles that do not ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGABRT", "SIGFPE", "SIGSEGV"])
def test_the_end_of_the_process_is_an_error_that_names_the_signal(
    name: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = signal.Signals[name].value
    replace_step(monkeypatch, f"import os; os.kill(os.getpid(), {number})")
    assert error_of(bundle) == f"its end by {name}"


def test_an_end_by_the_system_is_said_to_be_for_memory(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_step(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert error_of(bundle) == "its end by SIGKILL, as the system sends where memory is short"


@pytest.mark.parametrize("body", ["while True: pass", "import time; time.sleep(60)"])
def test_what_has_no_end_is_stopped(
    body: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FIRST_LOAD_SECONDS", 2)
    replace_step(monkeypatch, body)
    assert error_of(bundle) == "no end of it within 2 s"


@LINUX
def test_memory_is_limited(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_step(monkeypatch, "held = [bytearray(64 << 20) for _ in range(100)]")
    assert error_of(bundle).startswith("a demand for more than 0.5")


@LINUX
def test_memory_that_a_graph_asks_for_is_limited(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = helper.make_node("Expand", ["x", "shape"], ["y"])
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    values.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [1 << 30])
    graph = helper.make_graph([node], "large", values[:1], values[1:], [shape])
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets)
    (tmp_path / "large.onnx").write_bytes(model.SerializeToString())
    step = (
        "import numpy as np\n"
        "from ortolan.runtime.engine.ort_session import OrtSession\n"
        f"session = OrtSession({str(tmp_path / 'large.onnx')!r})\n"
        "session.run(None, {'x': np.zeros(1, np.float32)})"
    )
    replace_step(monkeypatch, step)
    assert error_of(bundle).startswith("a demand for more than 0.5")


def test_no_file_is_written(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "written"
    replace_step(monkeypatch, f"import pathlib; pathlib.Path({str(path)!r}).write_text('more')")
    assert "File too large" in error_of(bundle)
    assert path.read_bytes() == b""


def test_an_error_there_is_the_same_error_here(bundle: Bundle) -> None:
    first, *rest = bundle.manifest.states
    states = (msgspec.structs.replace(first, shape=(2, "batch", "capacity", 16)), *rest)
    manifest = msgspec.structs.replace(bundle.manifest, states=states)
    (bundle.path / "manifest.json").write_bytes(encode(manifest))
    with pytest.raises(BundleError) as there:
        first_load(bundle)
    with pytest.raises(BundleError) as here:
        load(bundle.path)
    assert type(there.value) is type(here.value) is ManifestError
    assert str(there.value) == str(here.value)


def test_a_file_that_is_gone_is_the_error_that_it_is(bundle: Bundle) -> None:
    bundle.file(bundle.manifest.weights[0]).unlink()
    with pytest.raises(BundleFileError, match=r"^weights-.*: expected a file of \d+ bytes"):
        first_load(bundle)


def test_an_error_of_a_kernel_is_a_typed_one(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "from ortolan.runtime.errors import ComputeError; raise ComputeError('the kernel said')"
    replace_step(monkeypatch, step)
    with pytest.raises(ComputeError, match=r"^the kernel said$"):
        first_load(bundle)


def test_any_other_error_is_told(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_step(monkeypatch, "raise KeyError('odd')")
    assert error_of(bundle) == "KeyError: 'odd'"


@pytest.mark.parametrize(
    ("code", "got"),
    [
        ("print('x' * 1000000)", "its end by SIGPIPE"),
        ("print('[1]')", "no answer from it"),
        ("pass", "no answer from it"),
        ("raise SystemExit(7)", "its end with exit status 7"),
        ("""print('{"error": "QueueFullError", "text": "wait"}')""", "wait"),
        ("""print('{"error": "__doc__", "text": "odd"}')""", "odd"),
    ],
)
def test_nonsense_for_an_answer_is_refused(
    code: str, got: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n" + code
    replace_process(monkeypatch, code)
    assert error_of(bundle) == got


def test_a_program_without_python_is_told_what_to_do(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(FirstLoadError, match="isolate=False, or verify the bundle"):
        first_load(bundle)
