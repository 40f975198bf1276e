import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from tests.export import tiny_models
from tests.export.conftest import Exported
from torch import Tensor

import ortolan
from ortolan.export import graphs, pipeline
from ortolan.export import write as written
from ortolan.export.errors import ExportError, OptionError, OutputError, ParityError
from ortolan.export.options import Int4
from ortolan.export.passes import tidy
from ortolan.export.process import ProcessError, run_python
from ortolan.export.proof.certificate import thresholds
from ortolan.export.proof.replay import replay
from ortolan.export.source import family
from ortolan.export.source.family import trace_graph
from ortolan.export.weights import blob as weights
from ortolan.export.weights import store
from ortolan.export.witness.ask import ask
from ortolan.modeling.weights import Weights
from ortolan.runtime import GraphError, open_bundle
from ortolan.runtime.verification.certificate_files import read_certificate

Export = Callable[[str], Exported]


class Perturbed(Weights):
    """Weights with one row slightly off."""

    def __init__(self, weights: Weights, name: str) -> None:
        self._weights = weights
        self._name = name

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights.shape(name)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        rows = self._weights.rows(name, start, stop).clone()
        if name == self._name:
            rows[3] += 0.05
        return rows


def damage_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_rest(
        writer: weights.BlobWriter,
        models: Sequence[ir.Model],
        source: Weights,
        *rest: Any,
        **kw: Any,
    ) -> None:
        perturbed = Perturbed(source, "blocks.1.feed_forward.down.weight")
        weights.write_rest(writer, models, perturbed, *rest, **kw)

    monkeypatch.setattr(store, "write_rest", write_rest)


def damage_attention(monkeypatch: pytest.MonkeyPatch, attribute: ir.Attr) -> None:
    def tidied(model: ir.Model) -> ir.Model:
        tidy(model)
        node = next(node for node in model.graph if node.op_type == "GroupQueryAttention")
        assert attribute.name in node.attributes
        node.attributes.add(attribute)
        return model

    monkeypatch.setattr(graphs, "tidy", tidied)


DAMAGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a weight": damage_weight,
    "scale": lambda patch: damage_attention(patch, ir.AttrFloat32("scale", 0.27)),
    # Sees everything for 100 tokens, and differs only after that.
    "window": lambda patch: damage_attention(patch, ir.AttrInt64("local_window_size", 100)),
    "rotation": lambda patch: damage_attention(patch, ir.AttrInt64("do_rotary", 0)),
}


@pytest.fixture
def replayed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay in a subprocess, which `tests.quick_exports` avoids."""
    monkeypatch.setattr(pipeline, "replay", replay)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_bundle_fails_the_export_and_is_not_kept(
    damage: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DAMAGES[damage](monkeypatch)
    with pytest.raises(ParityError, match=r"logits within .* First at \d-\d+-tok"):
        ortolan.export(checkpoint, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("replayed_apart")
def test_a_graph_that_no_bundle_may_hold_fails_the_export_and_the_old_one_stays(
    exported: Export, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    ortolan.export(checkpoint, out)
    before = (out / "manifest.json").read_bytes()
    damage_attention(monkeypatch, ir.AttrInt64("num_heads", 3))
    with pytest.raises(GraphError, match="a multiple of 2 key and value heads"):
        ortolan.export(checkpoint, out, force=True)
    assert (out / "manifest.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.usefixtures("replayed_apart")
def test_weights_that_the_disk_does_not_give_back_fail_the_export(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*inputs: Any, **named: Any) -> store.Stored:
        stored = store.store(*inputs, **named)
        with (inputs[0] / stored.blob.files[0].name).open("r+b") as file:
            file.write(b"?")
        return stored

    monkeypatch.setattr(written, "store", damaged)
    with pytest.raises(ExportError, match=r"BundleFileError: weights-.*sha256"):
        ortolan.export(checkpoint, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", tiny_models.CASES)
def test_certificate_holds_what_the_export_measured(name: str, exported: Export) -> None:
    bundle = exported(name).bundle
    certificate = read_certificate(bundle)
    assert certificate.measured is not None
    # Half precision may swap near ties.
    verdicts = {"fp32": ("PASS",), "fp16": ("PASS", "AMBIGUOUS")}
    assert certificate.measured.verdict in verdicts[bundle.manifest.precision]
    assert certificate.thresholds == thresholds(bundle.manifest.precision)


def test_bundle_is_whole_and_tells_what_it_is(exported: Export) -> None:
    case = exported("llama-fp16")
    manifest = open_bundle(case.bundle.path, full_check=True).manifest
    assert (manifest.precision, manifest.attention) == ("fp16", "fused")
    assert manifest.devices == ("cuda", "cpu")
    assert manifest.vocab_size == 97
    assert manifest.provenance.versions["torch"] == torch.__version__
    assert manifest.provenance.versions["ortolan"] == ortolan.__version__
    on_disk = {path.name for path in case.bundle.path.iterdir()}
    assert on_disk == {"manifest.json", *(file.name for file in manifest.files)}


def test_progress_names_every_step_in_order(checkpoint: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    ortolan.export(
        checkpoint,
        tmp_path / "out",
        progress=lambda step, done, total, what="": told.append((step, done, total)),
    )
    steps = list(dict.fromkeys(step for step, _, _ in told))
    assert steps == ["estimate", "trace", "reference", "weights", "verify"]
    for step in steps[1:]:
        done = [(done, total) for name, done, total in told if name == step]
        assert done == sorted(done)
        assert done[-1][0] == done[-1][1]


@pytest.mark.parametrize(
    "precision", [Int4(calibration_sequences=0), Int4(exclude=["nothing*"])], ids=["early", "late"]
)
def test_a_rejected_option_leaves_nothing_behind(
    precision: Int4, checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=r"calibration_sequences|nothing\*"):
        ortolan.export(checkpoint, tmp_path / "out", precision=precision)
    assert list(tmp_path.iterdir()) == []


def test_target_that_is_taken_is_refused_before_any_work(
    exported: Export, checkpoint: Path
) -> None:
    told: list[str] = []
    with pytest.raises(OutputError, match="--force"):
        ortolan.export(
            checkpoint,
            exported("llama").bundle.path,
            progress=lambda step, done, total, what="": told.append(step),
        )
    assert told == []


def test_weight_too_large_for_half_precision_fails_the_export(tmp_path: Path) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    module.get_parameter("blocks.0.feed_forward.gate.weight").data[5, 5] = 7e4
    with pytest.raises(ExportError, match=r"blocks\.0\.feed_forward\.gate\.weight .* 7e\+04"):
        ortolan.export(module, tmp_path / "out", precision="fp16")
    assert list(tmp_path.iterdir()) == []


HOURS_S = 3600.0
"""For a witness, which records what it had no time for."""

EXPORT = f"""
import sys
import ortolan
from ortolan.export.witness import ask
ask.witness_limit = lambda elapsed_s: {HOURS_S}
ortolan.export(sys.argv[1], sys.argv[2])
"""


@pytest.mark.slow
def test_two_exports_are_equal_byte_for_byte_whatever_the_place_and_the_hash_seed(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "another" / "place"
    monkeypatch.setattr(family, "trace_graph", trace_graph)  # without its cache
    monkeypatch.setattr(pipeline, "ask", ask)
    monkeypatch.setattr("ortolan.export.witness.ask.witness_limit", lambda elapsed_s: HOURS_S)
    ortolan.export(checkpoint, one)
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, str(checkpoint), str(other)],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "42", "TZ": "Asia/Tokyo"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    names = sorted(path.name for path in one.iterdir())
    assert sorted(path.name for path in other.iterdir()) == names
    for name in names:
        assert (other / name).read_bytes() == (one / name).read_bytes(), name


# --- Python in a subprocess -----------------------------------------------------------------------


def test_lines_of_a_subprocess_are_told_as_they_are_printed() -> None:
    told: list[str] = []
    run_python("-c", "import sys; print(sys.argv[1]); print('last')", "first", on_line=told.append)
    assert told == ["first\n", "last\n"]


def test_a_failure_of_a_subprocess_is_the_last_line_of_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.py").touch()
    monkeypatch.chdir(tmp_path)  # where no module is found
    for script, message in (
        ("import ortolan.export; raise ValueError('no')", "ValueError: no"),
        ("exit(3)", "status 3"),
        ("import beside", "No module named 'beside'"),
    ):
        with pytest.raises(ProcessError, match=message):
            run_python("-c", script, on_line=print)


def test_who_is_told_can_end_a_subprocess() -> None:
    def stop(line: str) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_python("-c", "import time; print(1, flush=True); time.sleep(60)", on_line=stop)
    assert time.monotonic() - started < 30
