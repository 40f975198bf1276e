import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.tiny_decoder import tokenizer_json, write_bundle

from ortolan import runtime
from ortolan.errors import OrtolanError
from ortolan.runtime import errors

SOURCE = Path(__file__).parents[2] / "src"

GENERATE = """
import os, sys
opened = []
sys.addaudithook(lambda event, _: event.startswith("socket.") and opened.append(event))
import ortolan.runtime
model = ortolan.runtime.load(sys.argv[1])
text = model.generate("hello", max_new_tokens=5).text
assert len(text) == 5, text
fd = "/proc/self/fd"
links = [os.path.join(fd, name) for name in os.listdir(fd)] if os.path.exists(fd) else []
opened += [os.readlink(link) for link in links if os.path.lexists(link)]
assert not [name for name in opened if name.startswith("socket")], opened
"""


def run(
    code: str, *arguments: str, prefix: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    return subprocess.run(
        [*prefix, sys.executable, "-c", code, *arguments],
        env={**inherited, "PYTHONPATH": str(SOURCE), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def modules(code: str) -> set[str]:
    done = run(f"import sys\n{code}\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("import") / "bundle"
    return str(write_bundle(folder, tokenizer=tokenizer_json()).path)


# --- imports ----------------------------------------------------------------------------------


def test_importing_the_package_imports_neither_numpy_nor_onnxruntime() -> None:
    assert not modules("import ortolan.runtime") & {"numpy", "onnxruntime", "torch", "tokenizers"}


def test_opening_a_bundle_imports_neither_onnx_nor_onnxruntime() -> None:
    absent = {"onnx", "onnxruntime", "torch", "transformers"}
    assert not modules("import ortolan.runtime.bundle.folder") & absent


def test_importing_everything_imports_no_torch_onnx_or_transformers() -> None:
    code = "import ortolan.runtime as r\nfor name in r.__all__: getattr(r, name)"
    brought = modules(code)
    assert "onnxruntime" in brought
    assert not brought & {"torch", "onnx", "transformers", "onnxscript", "onnx_ir", "safetensors"}


# --- public names -----------------------------------------------------------------------------


def test_public_names_exist_and_are_sorted() -> None:
    assert runtime.__all__ == sorted(runtime.__all__)
    for name in runtime.__all__:
        assert getattr(runtime, name).__name__ == name
    assert set(runtime.__all__) <= set(dir(runtime))
    assert not {module.name for module in pkgutil.iter_modules(runtime.__path__)} & {
        *runtime.__all__
    }, "a name hides a module"


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = runtime.nothing


# --- onnxruntime, its telemetry and the network -------------------------------------------------


def test_without_onnxruntime_the_error_names_the_extra() -> None:
    done = run("import sys\nsys.modules['onnxruntime'] = None\nimport ortolan.runtime")
    assert "MissingExtraError: " in done.stderr
    assert 'pip install "ortolan[cpu]"' in done.stderr


def test_telemetry_is_switched_off_unless_the_user_chose() -> None:
    show = "\nimport os; print(os.environ['ORT_DISABLE_TELEMETRY'], 'onnxruntime' in sys.modules)"
    done = run("import sys, ortolan.runtime" + show)
    assert (done.stdout.strip(), done.stderr) == ("1 False", "")
    done = run("import sys, onnxruntime, ortolan.runtime" + show, ORT_DISABLE_TELEMETRY="0")
    assert (done.stdout.strip(), done.stderr) == ("0 True", "")
    done = run("import onnxruntime, ortolan.runtime")
    assert "RuntimeWarning: onnxruntime was imported before ortolan.runtime" in done.stderr


def test_loading_and_generating_open_no_socket(bundle: str) -> None:
    done = run(GENERATE, bundle)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_loading_and_generating_call_nothing_of_the_network(bundle: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tracer = ("strace", "-f", "-qq", "-e", "trace=%network,execve", "-o", str(log))
    if run("", prefix=tracer).returncode != 0:
        pytest.skip("strace may not trace here")
    done = run(GENERATE, bundle, prefix=tracer)
    assert done.returncode == 0, done.stderr
    calls = log.read_text().splitlines()
    # AF_UNIX: the C library asks a daemon of the machine for the user's home
    assert not [line for line in calls if "AF_INET" in line or "AF_NETLINK" in line]
    assert len([line for line in calls if "execve(" in line]) == 1  # Python itself


# --- errors ------------------------------------------------------------------------------------

CLASSES = [
    item
    for item in vars(errors).values()
    if isinstance(item, type) and issubclass(item, OrtolanError)
]


def test_every_error_has_its_own_code() -> None:
    assert len({vars(item)["code"] for item in CLASSES}) == len(CLASSES) == 27
    assert issubclass(errors.MissingExtraError, ImportError)
