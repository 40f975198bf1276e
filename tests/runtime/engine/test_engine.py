import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from tests.runtime import tiny_encoder
from tests.runtime.tiny_decoder import TinyDecoder, write_bundle

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.interface import IDS, LENGTHS
from ortolan.runtime.bundle.manifest import Graph, State
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.ort_session import save_packed
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.slots import Encoded
from ortolan.runtime.engine.threads import physical_cores
from ortolan.runtime.errors import GraphError, InputError, ManifestError

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDecoder:
    return write_bundle(tmp_path_factory.mktemp("session") / "bundle")


@pytest.fixture
def bundle(tiny: TinyDecoder) -> Bundle:
    return open_bundle(tiny.path)


# --- sessions ---------------------------------------------------------------------------------


def test_threads_default_to_the_physical_cores(bundle: Bundle) -> None:
    assert Engine(bundle).threads == physical_cores()
    assert Engine(bundle, threads=3).threads == 3


@pytest.mark.parametrize("threads", [0, -1, 1025, True, 1.5, "2"])
def test_invalid_numbers_of_threads_are_errors(bundle: Bundle, threads: object) -> None:
    with pytest.raises(InputError, match="threads must be"):
        Engine(bundle, threads=threads)  # type: ignore[arg-type]


def test_a_graph_with_other_names_than_the_manifest_is_an_error(bundle: Bundle) -> None:
    first, *rest = bundle.manifest.states
    states = (msgspec.structs.replace(first, input="past"), *rest)
    other = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, states=states))
    with pytest.raises(GraphError, match=r"decoder\.onnx.*missing: past; unexpected: past_key_val"):
        Engine(other)


@pytest.mark.parametrize(("role", "sequence"), [("decoder", 2), ("prefill", 1), ("decode", 2)])
def test_a_graph_for_an_unsupported_number_of_tokens_is_an_error(
    bundle: Bundle, role: str, sequence: int
) -> None:
    graphs = {role: Graph(file="decoder.onnx", sequence=sequence)}
    other = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, graphs=graphs))
    with pytest.raises(ManifestError, match=f"not exactly {sequence}"):
        Engine(other)


def test_a_state_whose_first_axis_is_not_the_batch_is_an_error(bundle: Bundle) -> None:
    first, *rest = bundle.manifest.states
    states = (msgspec.structs.replace(first, shape=(2, "batch", "capacity", 16)), *rest)
    other = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, states=states))
    with pytest.raises(ManifestError, match="batch as its first axis"):
        Engine(other)


def feed(engine: Engine, tokens: list[int], positions: Sequence[int]) -> NDArray[np.float32]:
    return Runner(engine, engine.slots()).chunk(0, tokens, positions=positions)


def test_a_graph_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    bundle = open_bundle(write_bundle(tmp_path / "bundle").path)
    (bundle.path / bundle.manifest.weights[0]).unlink()
    with pytest.raises(GraphError, match=r"^decoder\.onnx"):
        Engine(bundle)


def test_threads_that_share_an_engine_get_equal_logits(bundle: Bundle) -> None:
    engine = Engine(bundle)
    tokens = list(range(40))
    expected = feed(engine, tokens, positions=[39])
    same: list[bool] = []

    def work() -> None:
        for _ in range(20):
            got = feed(engine, tokens, positions=[39])
            same.append(bool((got == expected).all()))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert same == [True] * 80


def test_the_number_of_threads_changes_no_bit(bundle: Bundle) -> None:
    logits = [
        feed(engine, list(range(64)), positions=range(64))
        for engine in (Engine(bundle, threads=threads) for threads in (1, 2, 4))
    ]
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])


# --- graphs that take whole texts ---------------------------------------------------------------


def test_an_encoder_returns_outputs_by_name(tmp_path: Path) -> None:
    tiny = tiny_encoder.write_bundle(tmp_path / "bundle", kind="states")
    engine = Engine(open_bundle(tiny.path), threads=1)
    ids = np.array([[2, 5, 6, 3], [2, 7, 3, 0]])
    output = engine.encode({"input_ids": ids, "lengths": np.array([4, 3], np.int32)})
    assert list(output) == ["output"]
    np.testing.assert_allclose(output["output"][0], tiny.reference([2, 5, 6, 3]), atol=1e-5)
    np.testing.assert_allclose(output["output"][1, :3], tiny.reference([2, 7, 3]), atol=1e-5)


def test_attention_maps_are_opened_on_first_use(tmp_path: Path) -> None:
    tiny = tiny_encoder.write_bundle(tmp_path / "bundle", maps=True)
    engine = Engine(open_bundle(tiny.path), threads=1)
    before = len(engine.native_sessions())
    ids = [2, 5, 6, 3]
    feeds = {"input_ids": np.array([ids]), "lengths": np.array([4], np.int32)}
    for _ in range(2):
        (maps,) = engine.attention(feeds).values()
        np.testing.assert_allclose(maps[0], tiny.map_reference(ids), atol=1e-5)
    assert (before, len(engine.native_sessions())) == (1, 2)


def test_missing_attention_maps_name_the_export_option(bundle: Bundle) -> None:
    with pytest.raises(InputError, match="--attention-maps"):
        Engine(bundle).attention({"input_ids": np.array([[1]])})


def test_a_decoder_reads_its_sources_where_the_encoder_put_them(
    exported: Callable[[str], Path],
) -> None:
    engine = Engine(open_bundle(exported("marian") / "bundle"), threads=1)
    feeds = {"input_ids": np.array([[5, 6, 7]] * 2), "lengths": np.array([3, 2], np.int32)}
    source = engine.encode_source(feeds)
    # two layers, keys and values of 2 heads of 16 channels in float32
    assert sum(state.nbytes for state in source.states) == 2 * 2 * 2 * (2 * 3 * 16) * 4
    assert source.lengths.tolist() == [3, 2]
    slots = engine.slots(2, beams=2)
    slots.put_sources([0, 1], source)
    runner = Runner(engine, slots)
    runner.select(range(4))
    runner.step([1] * 4)
    logits = runner.logits_BV
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[2], logits[3])
    assert np.abs(logits[0] - logits[2]).max() > 1e-3


def test_a_step_reads_the_latest_source(exported: Callable[[str], Path]) -> None:
    engine = Engine(open_bundle(exported("marian") / "bundle"), threads=1)

    def encoded(*ids: int) -> Encoded:
        lengths = np.array([len(ids)], np.int32)
        return engine.encode_source({"input_ids": np.array([ids]), "lengths": lengths})

    def first(runner: Runner, slot: int) -> NDArray[np.float32]:
        runner.slots.release(slot)
        runner.select([slot])
        runner.step([1])
        logits_V: NDArray[np.float32] = runner.logits_BV[slot].copy()
        return logits_V

    runner, fresh = (Runner(engine, engine.slots(2)) for _ in range(2))
    for slot, ids in ((0, (5, 6)), (1, (7,)), (1, (9, 8, 7, 6, 5, 4)), (1, (40, 41))):
        runner.put_sources([slot], encoded(*ids))
        got = first(runner, slot)
    fresh.put_sources([1], encoded(40, 41))
    np.testing.assert_allclose(got, first(fresh, 1), rtol=0, atol=1e-5)


# --- batches of sources ------------------------------------------------------------------------

SOURCES_BT = np.array([[3, 4, 5], [9, 0, 0]])

LENGTHS_B = np.array([3, 1], np.int32)

ONE_SCALE = ["com.microsoft::DynamicQuantizeMatMul"]


class MixingEngine:
    """An encoder whose states hold the largest id of the whole call, padding included."""

    joined = Engine.joined

    def __init__(self, operators: Sequence[str]) -> None:
        state = State(
            name="key",
            input="key",
            output="key",
            shape=("batch", 2, "source", 1),
            dtype="float32",
            update="source",
        )
        self._operators = operators
        self.source_states = (state,)
        self.widths: list[int] = []

    def encode_source(self, inputs: Mapping[str, NDArray[Any]]) -> Encoded:
        ids_BT = next(iter(inputs.values())).reshape(len(next(iter(inputs.values()))), -1)
        self.widths.append(ids_BT.shape[1])
        states = np.full((len(ids_BT), 2, ids_BT.shape[1], 1), ids_BT.max(), np.float32)
        lengths = inputs.get(LENGTHS, np.full(len(ids_BT), ids_BT.shape[1], np.int32))
        return Encoded(lengths=lengths, states=(states,))


def encoded(
    operators: Sequence[str], feeds: Mapping[str, NDArray[Any]]
) -> tuple[NDArray[np.float32], list[int]]:
    engine = MixingEngine(operators)
    source = Engine.encode_sources(cast(Engine, engine), feeds)
    assert source.lengths.tolist() == feeds[LENGTHS].tolist() if LENGTHS in feeds else True
    return source.states[0], engine.widths


def test_encoders_with_one_scale_per_call_run_once_per_source_without_padding() -> None:
    states, widths = encoded(ONE_SCALE, {IDS: SOURCES_BT, LENGTHS: LENGTHS_B})
    assert widths == [3, 1]
    assert states[:, 0, :, 0].tolist() == [[5, 5, 5], [9, 0, 0]]


def test_encoders_with_one_scale_per_call_run_once_per_image() -> None:
    states, widths = encoded(ONE_SCALE, {"pixels": np.array([[1.0, 2.0], [3.0, 4.0]])})
    assert widths == [2, 2]
    assert states[:, 0, :, 0].tolist() == [[2, 2], [4, 4]]


@pytest.mark.parametrize("rows", [1, 2])
def test_other_encoders_run_once_for_all_sources(rows: int) -> None:
    feeds = {IDS: SOURCES_BT[:rows], LENGTHS: LENGTHS_B[:rows]}
    states, widths = encoded(["com.microsoft::MatMulIntegerToFloat"], feeds)
    assert widths == [3]
    assert (states == feeds[IDS].max()).all()


# --- forks ------------------------------------------------------------------------------------

FORK = """
import os, sys
from ortolan.runtime import load, ForkedError
model = load(sys.argv[1], threads=4)
session = model.session()
session.append([1, 2, 3])
child = os.fork()
if child == 0:
    uses = (
        lambda: model.generate([1, 2], max_new_tokens=2),
        lambda: model.logits([1, 2]),
        lambda: session.append([4]),
        lambda: session.append([4, 5]),
    )
    for use in uses:
        try:
            use()
        except ForkedError:
            continue
        os._exit(3)
    if len(session) != 3:
        os._exit(4)
    EXIT
_, status = os.waitpid(child, 0)
session.append([4])  # the parent is not disturbed
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_child_gets_errors_and_exits(tiny: TinyDecoder, leave: str) -> None:
    done = subprocess.run(
        # Python 3.12 warns of every fork of a process with threads
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            FORK.replace("EXIT", leave),
            str(tiny.path),
        ],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_sums_and_norms_are_not_fused_into_slower_nodes(
    exported: Callable[[str], Path], tmp_path: Path
) -> None:
    bundle = open_bundle(exported("marian") / "bundle")
    path = save_packed(bundle, bundle.manifest.graphs["encoder"], tmp_path, weights="weights.bin")
    operators = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
    assert "LayerNormalization" in operators
    assert "SkipLayerNormalization" not in operators
