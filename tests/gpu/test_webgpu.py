"""Bundles on WebGPU against the same bundles on the CPU.

Runs on any GPU that onnxruntime-ep-webgpu finds. `test_software_gpu.py` runs it on a machine
without one.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.export import tiny_models
from tests.gpu.webgpu_models import DECODERS, ENCODERS, SOURCES, TRANSLATORS
from tests.runtime.damaged_bundles import damage, edit_json, put

import ortolan
from ortolan.export.options import ExportOptions, Int4
from ortolan.runtime import (
    DeviceError,
    open_bundle,
    verify,
)
from ortolan.runtime.engine import runner as runner_module
from ortolan.runtime.engine.ort_session import open_small
from ortolan.runtime.engine.providers import obstacle, ort
from ortolan.runtime.engine.runner import SHORT, Runner, longest_call
from ortolan.runtime.errors import ComputeError
from ortolan.runtime.graph.small_model import node_of, write_model
from ortolan.runtime.verification.first_load import first_load

TOKENS = 16

LONG = 70
"""Tokens of a prompt that is longer than the calls of a GPU with narrow subgroups."""


@pytest.fixture(scope="session")
def webgpu() -> None:
    """Skip a test where WebGPU does not start, with the reason."""
    reason = obstacle("webgpu")
    if reason is not None:
        pytest.skip(reason)


pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("webgpu")]


@dataclass(frozen=True, slots=True)
class Pair:
    """One bundle on two devices."""

    folder: Path
    gpu: Any
    cpu: Any


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    """Exports a source once for each precision."""

    @cache
    def exported(name: str, precision: Any = "fp32") -> Pair:
        folder = tmp_path_factory.mktemp("webgpu") / "bundle"
        options = ExportOptions(proof="quick", allow_poor=True)
        ortolan.export(
            SOURCES[name](), folder, device="webgpu", precision=precision, options=options
        )
        gpu, cpu = (ortolan.load(folder, device=device) for device in ("webgpu", "cpu"))
        return Pair(folder, gpu, cpu)

    return exported


def random_ids(count: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, tiny_models.VOCAB, count).tolist()
    return ids


def assert_close(got: NDArray[Any], want: NDArray[Any]) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_calls_that_a_gpu_computes_wrong_are_short(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, ids = pair("grown").gpu._engine, random_ids(LONG)
    short, context = Runner(engine, engine.slots(), call_tokens=8), engine.manifest.context_length
    assert_close(short.chunk(0, ids, positions=range(LONG)), pair("grown").cpu.logits(ids))
    monkeypatch.setattr(engine, "longest_call", None)
    monkeypatch.setattr(runner_module, "LARGEST_ERROR_FP32", -1.0)
    assert longest_call(engine) == SHORT < context
    assert "computes calls of 96 tokens wrong" in caplog.text


@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_those_of_the_cpu(name: str, pair: Callable[..., Pair]) -> None:
    both = pair(name)
    for ids in (random_ids(1), random_ids(5), random_ids(LONG)):
        assert_close(both.gpu.logits(ids), both.cpu.logits(ids))


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "fp32") for name in DECODERS), ("grown", "int8"), ("grown", Int4(method="rtn"))],
)
def test_a_list_of_prompts_has_the_tokens_of_the_cpu(
    name: str, precision: Any, pair: Callable[..., Pair]
) -> None:
    both = pair(name, precision)
    prompts = [random_ids(length, seed=length) for length in (3, 20, 41)]
    got, want = (
        model.generate(prompts, max_new_tokens=TOKENS, ignore_eos=True)
        for model in (both.gpu, both.cpu)
    )
    assert [done.tokens for done in got] == [done.tokens for done in want]


@pytest.mark.parametrize("name", DECODERS)
def test_states_stay_on_the_device(name: str, pair: Callable[..., Pair]) -> None:
    engine = pair(name).gpu._engine
    runner, copier = Runner(engine, engine.slots(3)), engine._copier
    before = copier.read_bytes, copier.written_bytes
    for row in range(3):
        runner.prefill(row, random_ids(20, seed=row))
    for rows in ([0, 1, 2], [0, 2], [0]):
        runner.select(rows)
        runner.step([5] * len(rows))
    runner.slots.copy_rows([0], [1])
    runner.reserve(300)
    runner.step([6])
    assert (copier.read_bytes, copier.written_bytes) == before
    for state, read, written in runner.slots.held.bound(slice(0, 3)):
        assert (read.memory, read.shape[0]) == ("gpu", 3)
        assert (read.pointer == written.pointer) == (state.update == "append")


@pytest.mark.parametrize("name", DECODERS)
def test_snapshots_and_growth_keep_the_states(name: str, pair: Callable[..., Pair]) -> None:
    both, ids = pair(name), random_ids(300)
    want = both.cpu.logits(ids)
    with both.gpu.session() as session:
        session.append(ids[:250])
        kept = session.snapshot()
        session.append(random_ids(7, seed=3))
        session.restore(kept)
        assert_close(session.append(ids[250:]), want[-1])
    with both.cpu.session() as other:
        other.restore(kept)
        assert_close(other.append(ids[250:]), want[-1])


def test_requests_of_a_service_join_and_leave_and_share_prefixes(
    pair: Callable[..., Pair],
) -> None:
    both, shared = pair("grown"), random_ids(130)
    prompts = [[*shared, *random_ids(length, seed=length)] for length in (1, 9, 20, 5)]
    tokens = []
    for model in (both.gpu, both.cpu):
        with model.serve(slots=2, mode="fast") as service:
            tickets = [
                service.submit(prompt, max_new_tokens=6 + number, ignore_eos=True)
                for number, prompt in enumerate(prompts)
            ]
            tokens.append([ticket.result().tokens for ticket in tickets])
            assert service.stats().cache.tokens > 0
    assert tokens[0] == tokens[1]


def test_missing_kernels_are_named() -> None:
    graph = write_model(
        [node_of("Sign", ["x"], "y")], inputs={"x": "float32"}, outputs={"y": "float32"}
    )
    with pytest.raises(DeviceError, match=r"no kernels for some nodes.*1 x Sign"):
        open_small(graph, "webgpu")


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_computes_what_it_does_on_the_cpu(name: str, pair: Callable[..., Pair]) -> None:
    both = pair(name)
    texts = [random_ids(length, seed=length) for length in (1, LONG, 13)]
    for got, want in zip(both.gpu.states(texts), both.cpu.states(texts), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations_and_beams_are_those_of_the_cpu(name: str, pair: Callable[..., Pair]) -> None:
    both = pair(name)
    sources = [random_ids(length, seed=length) for length in (5, 21, 3)]
    for options in ({"ignore_eos": True}, {"beams": 3}):
        got, want = (
            model.generate(sources, max_new_tokens=TOKENS, **options)
            for model in (both.gpu, both.cpu)
        )
        assert [done.tokens for done in got] == [done.tokens for done in want]
    ids = random_ids(LONG)
    assert_close(both.gpu.logits(sources[1], ids), both.cpu.logits(sources[1], ids))


def test_float16_is_computed_or_refused(pair: Callable[..., Pair]) -> None:
    if obstacle("webgpu", precision="fp16") is not None:
        with pytest.raises(DeviceError, match="does not compute float16"):
            pair("grown", "fp16")
        return
    both, ids = pair("grown", "fp16"), random_ids(LONG)
    got, want = both.gpu.logits(ids), both.cpu.logits(ids)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-2 * np.abs(want).max())
    assert verify(both.folder, device="webgpu", isolate=False).verdict != "FAIL"


def test_a_failed_step_leaves_the_model_usable(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = pair("grown").gpu, random_ids(5)
    want = model.generate(ids, max_new_tokens=4, ignore_eos=True).tokens
    run, calls = ort.InferenceSession.run_with_iobinding, iter(range(100))

    def lost(*args: Any) -> None:
        if next(calls) == 3:
            raise RuntimeError("the device was lost")
        run(*args)

    with monkeypatch.context() as patch:
        patch.setattr(ort.InferenceSession, "run_with_iobinding", lost)
        with pytest.raises(ComputeError, match="device was lost"):
            model.generate(ids, max_new_tokens=4, ignore_eos=True)
    assert model.generate(ids, max_new_tokens=4, ignore_eos=True).tokens == want


@pytest.mark.parametrize("name", [*DECODERS, "encoder", "translator"])
def test_a_sound_bundle_passes_and_a_damaged_one_fails(
    name: str, pair: Callable[..., Pair], tmp_path: Path
) -> None:
    folder = pair(name).folder
    assert verify(folder, device="webgpu", isolate=False).verdict == "PASS"
    if name != "grown":
        return
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensor = next(iter(open_bundle(folder).graphs.values())).external[-1].name

    def change(values: NDArray[Any]) -> None:
        values.reshape(-1)[3] *= 1.1

    damage(tmp_path, tensor, change)
    assert verify(tmp_path, device="webgpu", isolate=False).verdict == "FAIL"


def test_a_bundle_for_a_gpu_alone_passes_its_first_load(
    pair: Callable[..., Pair], tmp_path: Path
) -> None:
    bundle = shutil.copytree(pair("grown").folder, tmp_path / "bundle")
    edit_json(bundle, "manifest.json", put("devices", value=["webgpu"]))
    assert first_load(open_bundle(bundle)) is True
