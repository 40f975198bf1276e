"""Sessions of a bundle: threads, options, refusals and forks."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_decoder, tiny_encoder
from tests.runtime.conftest import Models

from ortolan.runtime import Decoder, load, open_bundle
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import Manifest, State
from ortolan.runtime.bundle.source import IDS, LENGTHS
from ortolan.runtime.engine import ort_session
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.exactness import Exactness
from ortolan.runtime.engine.sample_outputs import sample_outputs
from ortolan.runtime.engine.sources import Encoded
from ortolan.runtime.engine.threads import physical_cores
from ortolan.runtime.errors import GraphError

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def bundle(tiny: tiny_decoder.TinyDecoder) -> Bundle:
    return open_bundle(tiny.path)


# --- threads and options ----------------------------------------------------------------------


def test_neither_the_number_of_threads_nor_threads_that_share_a_model_change_a_bit(
    bundle: Bundle, model: Decoder
) -> None:
    assert Engine(bundle).threads == physical_cores()
    ids = list(range(64))
    expected = model.logits(ids)
    for threads in (2, 4):
        other = load(bundle.path, Decoder, threads=threads)
        assert other.threads == threads
        with ThreadPoolExecutor(4) as pool:
            for logits in pool.map(other.logits, [ids] * 40):
                np.testing.assert_array_equal(logits, expected)


def test_sessions_run_without_kleidiai(bundle: Bundle) -> None:
    options = ort_session._options(bundle, threads=1)
    assert options.get_session_config_entry("mlas.disable_kleidiai") == "1"


@pytest.mark.parametrize(
    ("kind", "stopping"),
    [("fp32", {"decoder": False}), ("split", {"prefill": True, "decode": False})],
)
def test_threads_of_a_prompt_do_not_disturb_the_steps_after_it(
    models: Models, kind: str, stopping: dict[str, bool]
) -> None:
    name, value = ort_session._STOP_SPINNING
    for role, stops in stopping.items():
        session = ort_session.open_session(models[kind].bundle, role, 1, None)
        options = session.get_session_options()
        if stops:
            assert options.get_session_config_entry(name) == value
        else:
            with pytest.raises(RuntimeError, match=name):
                options.get_session_config_entry(name)


def test_sums_and_norms_are_not_fused_into_slower_nodes(
    exported: Callable[[str], Path], tmp_path: Path
) -> None:
    bundle = open_bundle(exported("marian") / "bundle")
    path = ort_session.save_packed(
        bundle, bundle.manifest.graphs["encoder"], tmp_path, weights="weights.bin"
    )
    operators = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
    assert "LayerNormalization" in operators
    assert "SkipLayerNormalization" not in operators


@pytest.mark.parametrize("kind", ["decoder", "split", "encoder", "images", "encoder-decoder"])
def test_sample_outputs_of_every_kind_of_bundle_are_repeatable(
    kind: str, tmp_path: Path, models: Models, exported: Callable[[str], Path]
) -> None:
    if kind == "encoder-decoder":
        path = exported("marian") / "bundle"
    elif kind in ("encoder", "images"):
        image = tiny_encoder.IMAGE if kind == "images" else None
        path = tiny_encoder.write_bundle(tmp_path / "bundle", image=image).path
    else:
        path = models["split" if kind == "split" else "fp32"].bundle.path
    first, second = (sample_outputs(Engine(open_bundle(path), threads=1)) for _ in range(2))
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        assert np.isfinite(one).all()
        assert float(one.std()) > 0
        np.testing.assert_array_equal(one, other)


# --- refusals ---------------------------------------------------------------------------------


def test_attention_of_a_bundle_without_maps_is_refused(
    bundle: Bundle, snapshot: SnapshotAssertion
) -> None:
    ids = {"input_ids": np.array([[1]])}
    assert refusal(lambda: Engine(bundle).attention(ids)) == snapshot


def test_a_graph_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    bundle = open_bundle(tiny_decoder.write_bundle(tmp_path / "bundle").path)
    (bundle.path / bundle.manifest.weights[0]).unlink()
    with pytest.raises(GraphError, match=r"^decoder\.onnx"):
        Engine(bundle)


# --- batches of sources ------------------------------------------------------------------------


class MixingEngine:
    """An encoder whose states hold the largest id of the whole call, padding included."""

    joined = Engine.joined

    def __init__(self, operator: str) -> None:
        state = State(
            name="key",
            input="key",
            output="key",
            shape=("batch", 2, "source", 1),
            dtype="float32",
            update="source",
        )
        manifest = cast(Manifest, SimpleNamespace(states=(state,), takes_one=False))
        self.exactness = Exactness.of(manifest, {operator}, has_prefill=False)
        self.source_states = (state,)

    def encode_source(self, inputs: Mapping[str, NDArray[Any]]) -> Encoded:
        ids_BT = next(iter(inputs.values()))
        states = np.full((len(ids_BT), 2, ids_BT.shape[1], 1), ids_BT.max(), np.float32)
        lengths = inputs.get(LENGTHS, np.full(len(ids_BT), ids_BT.shape[1], np.int32))
        return Encoded(lengths=lengths, states=(states,))


@pytest.mark.parametrize(
    ("operator", "inputs", "expected"),
    [
        ("DynamicQuantizeMatMul", {IDS: [[3, 4, 5], [9, 0, 0]]}, [[5, 5, 5], [9, 0, 0]]),
        ("DynamicQuantizeMatMul", {"pixels": [[1.0, 2.0], [3.0, 4.0]]}, [[2, 2], [4, 4]]),
        ("MatMulIntegerToFloat", {IDS: [[3, 4, 5], [9, 0, 0]]}, [[9, 9, 9], [9, 9, 9]]),
    ],
)
def test_encoders_with_one_scale_per_call_run_once_per_source_without_padding(
    operator: str, inputs: dict[str, Any], expected: Sequence[Sequence[float]]
) -> None:
    feeds = {name: np.array(values) for name, values in inputs.items()}
    if IDS in feeds:
        feeds[LENGTHS] = np.array([3, 1], np.int32)
    engine = cast(Engine, MixingEngine(f"com.microsoft::{operator}"))
    source = Engine.encode_sources(engine, feeds)
    assert source.states[0][:, 0, :, 0].tolist() == expected
    assert source.lengths.tolist() == feeds.get(LENGTHS, np.array([2, 2])).tolist()


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
def test_a_forked_child_gets_errors_and_exits(bundle: Bundle, leave: str) -> None:
    program = FORK.replace("EXIT", leave)
    # Python 3.12 warns of every fork of a process with threads
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, str(bundle.path)]
    environment = {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
