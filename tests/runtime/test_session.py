import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.runtime.tiny_decoder import TinyDecoder, write_bundle

from ortolan.runtime.bundle import Bundle, open_bundle
from ortolan.runtime.errors import DeviceError, GraphError, InputError, ManifestError
from ortolan.runtime.manifest import Graph
from ortolan.runtime.session import Engine, resolve_device
from ortolan.runtime.steps import feed
from ortolan.runtime.threads import physical_cores

CUDA = "CUDAExecutionProvider"

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDecoder:
    return write_bundle(tmp_path_factory.mktemp("session") / "bundle")


@pytest.fixture
def bundle(tiny: TinyDecoder) -> Bundle:
    return open_bundle(tiny.path)


def offer(monkeypatch: pytest.MonkeyPatch, *providers: str) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: list(providers))


# --- devices ----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_auto_and_cpu_are_the_cpu(device: str) -> None:
    assert resolve_device(device, ("cpu", "cuda")) == "cpu"


@pytest.mark.parametrize("device", ["", "gpu", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:0\n"])
def test_an_unknown_device_is_an_error_that_names_the_known(device: str) -> None:
    with pytest.raises(DeviceError, match="auto, cpu, cuda or cuda:N"):
        resolve_device(device, ("cpu", "cuda"))


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_the_bundle_was_not_made_for_is_an_error(device: str) -> None:
    with pytest.raises(DeviceError, match=r"one of the bundle's \(cpu\)"):
        resolve_device(device, ("cpu",))


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_bundle_for_cuda_alone_does_not_run_on_the_cpu(device: str) -> None:
    with pytest.raises(DeviceError, match=r"one of the bundle's \(cuda\)"):
        resolve_device(device, ("cuda",))


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_without_its_provider_names_the_package(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    offer(monkeypatch, "CPUExecutionProvider")
    with pytest.raises(DeviceError, match=r'pip install "ortolan\[cuda\]"'):
        resolve_device(device, ("cpu", "cuda"))


def test_cuda_with_its_provider_says_that_this_version_has_no_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer(monkeypatch, CUDA, "CPUExecutionProvider")
    with pytest.raises(DeviceError, match="generates on the CPU only"):
        resolve_device("cuda", ("cpu", "cuda"))


# --- sessions ---------------------------------------------------------------------------------


def test_threads_default_to_the_physical_cores(bundle: Bundle) -> None:
    assert Engine(bundle).threads == physical_cores()
    assert Engine(bundle, threads=3).threads == 3


@pytest.mark.parametrize("threads", [0, -1, 1025, True, 1.5, "2"])
def test_threads_that_are_no_number_of_threads_are_an_error(
    bundle: Bundle, threads: object
) -> None:
    with pytest.raises(InputError, match="threads: expected"):
        Engine(bundle, threads=threads)  # type: ignore[arg-type]


def test_a_graph_with_other_names_than_the_manifest_is_an_error(bundle: Bundle) -> None:
    first, *rest = bundle.manifest.states
    states = (msgspec.structs.replace(first, input="past"), *rest)
    other = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, states=states))
    with pytest.raises(GraphError, match=r"decoder\.onnx.*missing: past; besides: past_key_val"):
        Engine(other)


@pytest.mark.parametrize(
    ("role", "sequence"), [("decoder", 1), ("decoder", 2), ("prefill", 1), ("decode", 2)]
)
def test_a_graph_for_a_number_of_tokens_that_nothing_drives_is_an_error(
    bundle: Bundle, role: str, sequence: int
) -> None:
    graphs = {role: Graph(file="decoder.onnx", sequence=sequence)}
    other = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, graphs=graphs))
    with pytest.raises(ManifestError, match=f"got one for {sequence}"):
        Engine(other)


def test_a_state_without_the_batch_first_is_an_error(bundle: Bundle) -> None:
    first, *rest = bundle.manifest.states
    states = (msgspec.structs.replace(first, shape=(2, "batch", "capacity", 16)), *rest)
    other = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, states=states))
    with pytest.raises(ManifestError, match="batch as its first axis"):
        Engine(other)


def test_a_graph_that_cannot_be_loaded_is_an_error_that_names_it(tmp_path: Path) -> None:
    bundle = open_bundle(write_bundle(tmp_path / "bundle").path)
    (bundle.path / bundle.manifest.weights[0]).unlink()
    with pytest.raises(GraphError, match=r"decoder\.onnx: expected a graph that onnxruntime"):
        Engine(bundle)


def test_threads_that_share_an_engine_get_equal_logits(bundle: Bundle) -> None:
    engine = Engine(bundle)
    tokens = list(range(40))
    expected = feed(engine, engine.cache(), tokens, positions=[39])
    same: list[bool] = []

    def work() -> None:
        for _ in range(20):
            got = feed(engine, engine.cache(), tokens, positions=[39])
            same.append(bool((got == expected).all()))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert same == [True] * 80


def test_the_number_of_threads_changes_no_bit(bundle: Bundle) -> None:
    logits = [
        feed(engine, engine.cache(), list(range(64)), positions=range(64))
        for engine in (Engine(bundle, threads=threads) for threads in (1, 2, 4))
    ]
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])


# --- forks ------------------------------------------------------------------------------------

FORK = """
import os, sys
from ortolan.runtime import load, ForkedError
model = load(sys.argv[1], threads=4)
sequence = model.sequence()
sequence.append([1, 2, 3])
child = os.fork()
if child == 0:
    uses = (
        lambda: model.generate([1, 2], max_new_tokens=2),
        lambda: model.logits([1, 2]),
        lambda: sequence.append([4]),
        lambda: sequence.append([4, 5]),
    )
    for use in uses:
        try:
            use()
        except ForkedError:
            continue
        os._exit(3)
    if len(sequence) != 3:
        os._exit(4)
    EXIT
_, status = os.waitpid(child, 0)
sequence.append([4])  # the parent is not disturbed
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_child_is_refused_and_exits(tiny: TinyDecoder, leave: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK.replace("EXIT", leave), str(tiny.path)],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
