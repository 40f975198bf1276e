"""Previews of exports, against the exports."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cases import tiles
from tests.export import tiny_models
from tests.export.conftest import Exported
from tests.refusals import refusal

import ortolan
from ortolan.export.advice import advise, untrained
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.options import Precision
from ortolan.export.preview.cost import GENERATING_BYTES, PROMPT_TOKENS
from ortolan.export.preview.preview import Preview, preview
from ortolan.export.progress import ESTIMATE
from ortolan.export.settings import resolve
from ortolan.export.source import open_exportable
from ortolan.runtime.bundle.parts import VISION

Export = Callable[[str], Exported]


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint to change."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


@pytest.fixture(scope="module")
def about(checkpoint: Path) -> Preview:
    return preview(checkpoint)


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_checkpoint_is_described(about: Preview, exported: Export, checkpoint: Path) -> None:
    case = exported("llama")
    manifest = case.bundle.manifest
    assert (about.model_type, about.way, about.kind) == ("llama", "family", manifest.kind)
    assert about.parameters == sum(p.numel() for p in case.module.parameters())
    assert about.layers == {"blocks": len(case.module.blocks)}
    assert about.width == tiny_models.WIDTH
    assert (about.vocab_size, about.context_length) == (tiny_models.VOCAB, tiny_models.CONTEXT)
    assert about.cache_bytes_per_token == manifest.state_bytes("append")
    assert about.weight_bytes == (checkpoint / "model.safetensors").stat().st_size
    assert about.measured is not None
    assert about.measured.supported


@pytest.mark.parametrize(
    ("name", "precision"),
    [("fp32", "fp32"), ("int8", "int8"), ("int4", ortolan.Int4(calibration_sequences=1))],
)
def test_weights_of_the_bundle_are_as_large_as_was_said(
    name: str, precision: Precision, about: Preview, checkpoint: Path, tmp_path: Path
) -> None:
    manifest = ortolan.export(checkpoint, tmp_path / "out", precision=precision).manifest
    (size,) = [file.size for file in manifest.files if file.name in manifest.weights]
    cost = about.precisions[name]
    assert cost.bundle_bytes == pytest.approx(size, rel=0.01)
    assert {tensor.method for tensor in manifest.quantized} <= {
        cost.method,
        "rtn",
    }  # an embedding that is no head


@pytest.mark.slow
def test_encoders_in_the_bundle_count(tmp_path: Path) -> None:
    tiles.write(tmp_path / "source", "smolvlm")
    bundle = ortolan.export(tmp_path / "source", tmp_path / "out")
    about = preview(tmp_path / "source")
    (part,) = about.parts.values()
    vision = open_exportable(tmp_path / "source").parts[VISION]
    assert about.parts.keys() == {"vision"}
    assert part.parameters == sum(weight.numel() for weight in vision.module.parameters())
    size = sum(file.stat().st_size for file in bundle.path.rglob("weights-*.bin"))
    assert about.precisions["fp32"].bundle_bytes == pytest.approx(size, rel=0.1)


@pytest.mark.slow
def test_way_of_transformers_is_described_as_well(checkpoint: Path, tmp_path: Path) -> None:
    options = ortolan.ExportOptions(via="transformers")
    out = tmp_path / "out"
    manifest = ortolan.export(checkpoint, out, precision="int8", options=options).manifest
    (size,) = [file.size for file in manifest.files if file.name in manifest.weights]
    seen = preview(checkpoint, via="transformers")
    assert seen.way == "transformers"
    assert seen.layers == {"model.layers": 2}
    assert seen.precisions["int8"].bundle_bytes == pytest.approx(size, rel=0.1)
    assert seen.measured is None or seen.measured.way == "transformers"


def test_probable_refusals_are_known_before_any_work(
    checkpoint: Path, about: Preview, tmp_path: Path
) -> None:
    assert "4 bits by rtn are usually poor" in about.risks[0]
    assert "Leave out --method rtn to calibrate" in about.risks[0]
    told: list[str] = []
    refused = ortolan.ExportOptions(max_kl=0.0)
    for precision in ("int4", ortolan.Int4(method="rtn", effort="quick", group_size=128)):
        with pytest.raises(ortolan.OrtolanError):
            ortolan.export(
                checkpoint,
                tmp_path / "out",
                precision=precision,
                calibration=tmp_path / "absent.txt",
                options=refused,
                warn=told.append,
            )
    assert [text.partition(" are ")[0] for text in told] == [
        "4 bits by rtn",
        "4 bits in groups of 128",
    ]
    assert "Leave out --method rtn and --effort quick to calibrate" in told[0]
    assert "keep a poor bundle with --allow-poor" in told[0]


@pytest.mark.parametrize(
    ("precision", "first"),
    [
        (ortolan.Int4(effort="quick"), "leaving out --effort quick to calibrate"),
        (ortolan.Int4(method="rtn", effort="best"), "leaving out --method rtn to calibrate"),
        (ortolan.Int4(), "--effort best"),
        (ortolan.Int4(effort="best"), "--head-bits 8"),
        (ortolan.Int8(), "--method gptq"),
    ],
)
def test_first_advice_is_more_effort(precision: Precision, first: str, checkpoint: Path) -> None:
    model = open_exportable(checkpoint)
    assert advise(model, resolve(model.kind, precision=precision))[0] == first


@pytest.mark.parametrize("effort", ["quick", "normal", "best"])
def test_time_of_every_step_is_estimated_and_that_of_the_next_effort(
    effort: str, checkpoint: Path, tmp_path: Path
) -> None:
    class StopError(Exception):
        pass

    told: list[tuple[int, int, str]] = []

    def progress(step: str, done: int, total: int, what: str = "") -> None:
        if step != ESTIMATE:
            raise StopError
        told.append((done, total, what))

    precision = ortolan.Int4(effort=effort)  # type: ignore[arg-type]
    with pytest.raises(StopError):
        ortolan.export(checkpoint, tmp_path / "out", precision=precision, progress=progress)
    (start, total, sentence), *steps = told
    if effort == "quick":
        assert re.fullmatch(r"about \d+ (s|min)", sentence)
    else:
        cheaper = {"normal": "quick", "best": "normal"}[effort]
        time = r"\d+ (s|min)"
        assert re.fullmatch(rf"{time} with --effort {effort}, {time} with {cheaper}", sentence)
    assert start == 0
    assert [done for done, _, _ in steps] == sorted(done for done, _, _ in steps)
    assert steps[-1][0] == total
    calibrated = ["write text", "calibrate"] if effort != "quick" else []
    names = [name for _, _, name in steps if name not in ("outputs", "train scales")]
    assert names == ["trace", "reference", *calibrated, "weights", "verify", "witness"]


def test_a_best_effort_that_trains_nothing_is_said(checkpoint: Path) -> None:
    model = open_exportable(checkpoint)

    def notes(precision: Precision) -> tuple[str, ...]:
        return untrained(model, resolve(model.kind, precision=precision), Inputs())

    assert "trains no scales" in notes(ortolan.Int4(effort="best", calibration_sequences=1))[0]
    assert notes(ortolan.Int4(effort="best")) == notes("int4") == ()


def test_unknown_keys_are_listed_and_not_an_error(folder: Path) -> None:
    change(folder / "config.json", strange=1, unsloth_fixed=True)
    seen = preview(folder)
    assert seen.unknown_keys == ("strange",)
    assert "unsloth_fixed" in seen.ignored_keys


def test_missing_files_are_listed_with_what_the_bundle_lacks(folder: Path) -> None:
    assert list(preview(folder).missing) == ["calibration.txt"]
    (folder / "calibration.txt").write_text("a text")
    assert preview(folder).missing == {}
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        (folder / name).unlink()
    missing = preview(folder).missing
    # A calibration file cannot be read without a tokenizer.
    assert missing["tokenizer.json"] == "the bundle takes token ids, not text"
    files = ("tokenizer.json", "chat_template.jinja", "generation_config.json", "calibration.txt")
    assert set(missing) == set(files)
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert "chat_template.jinja" not in preview(folder).missing


def test_weights_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ortolan.modeling.lazy_tensor import LazyTensor

    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(LazyTensor, "read", read)
    assert preview(folder).parameters > 0


REFUSED: dict[str, dict[str, object]] = {
    "another width": {"intermediate_size": 128},
    "an unknown activation": {"hidden_act": "xielu"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_is_refused_as_an_export_refuses_it(
    name: str, folder: Path, snapshot: SnapshotAssertion
) -> None:
    change(folder / "config.json", **REFUSED[name])
    assert refusal(lambda: preview(folder), folder) == snapshot


def test_an_absent_folder_and_a_live_model_are_refused(
    exported: Export, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: preview(tmp_path / "nowhere"), tmp_path) == snapshot
    assert refusal(lambda: preview(exported("llama").module)) == snapshot


def test_memory_of_a_run_is_that_of_its_products_and_states(
    about: Preview, exported: Export
) -> None:
    module = exported("llama").module
    of_blocks = sum(p.numel() for p in module.blocks.parameters() if p.dim() == 2)
    states = PROMPT_TOKENS * about.cache_bytes_per_token
    products = 4 * (of_blocks + tiny_models.VOCAB * tiny_models.WIDTH)
    assert about.precisions["fp32"].run_memory_bytes == GENERATING_BYTES + products + states
    memory = [cost.memory_bytes for cost in about.precisions.values()]
    assert all(500e6 < each < 700e6 for each in memory)
