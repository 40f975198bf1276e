"""Work of interrupted exports."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.export import tiny_models
from tests.export.models_of_kinds import opened

import ortolan
from ortolan.errors import OrtolanError
from ortolan.export.errors import OutputError, ParityError
from ortolan.export.inputs.calibration import Data
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.options import ExportOptions, Int4, Precision
from ortolan.export.quantize import tune
from ortolan.export.settings import resolve
from ortolan.export.unfinished import key_of, read_inputs, unfinished, write_inputs
from ortolan.modeling import DecoderModel


@pytest.mark.parametrize("error", [KeyboardInterrupt, OutputError, ParityError, None])
def test_work_is_kept_after_an_interruption_and_a_full_disk_only(
    error: type[BaseException] | None, tmp_path: Path
) -> None:
    try:
        with unfinished(tmp_path / "out") as kept:
            (kept.begin("one") / "file").touch()
            (kept.begin("two") / "file").touch()
            if error is not None:
                raise error("x")
    except (KeyboardInterrupt, OrtolanError):
        pass
    left = [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))]
    folder = ".out.unfinished"
    whole = [folder, f"{folder}/two", f"{folder}/two/file"]  # other work is not kept
    assert left == (whole if error in (KeyboardInterrupt, OutputError) else [])


def test_what_a_link_points_to_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "others" / "own").mkdir(parents=True)
    (tmp_path / ".out.unfinished").symlink_to(tmp_path / "others")
    with unfinished(tmp_path / "out") as kept:
        kept.begin("one")
    assert [path.name for path in tmp_path.rglob("*")] == ["others", "own"]


def test_what_the_model_wrote_comes_back(tmp_path: Path) -> None:
    assert read_inputs(tmp_path) is None
    inputs = Inputs(ids=[torch.arange(5), torch.arange(3)], origin="its own writing")
    write_inputs(tmp_path, inputs)
    again = read_inputs(tmp_path)
    assert again is not None
    assert (again.origin, again.sources) == (inputs.origin, [])
    assert all(map(torch.equal, again.ids, inputs.ids))


def test_the_key_changes_with_everything_that_decides_codes() -> None:
    def key(layers: int = 2, data: Data = Data(), precision: Precision = "int4") -> str:  # noqa: B008
        model = opened(tiny_models.decoder(tiny_models.llama(layers)))
        return key_of(model, resolve("decoder", precision=precision), data)

    text = Data(inputs=Inputs(ids=[torch.arange(5)]))
    keys = [
        key(),
        key(layers=1),
        key(precision=Int4(effort="best")),
        key(data=text),
        key(data=Data(inputs=Inputs(ids=[torch.arange(6)]))),
    ]
    assert len(set(keys)) == len(keys)
    assert key(data=text) == keys[3]


def source() -> DecoderModel:
    torch.manual_seed(0)
    return DecoderModel(tiny_models.gpt2()).eval()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["normal", "best"])
def test_ten_interruptions_lead_to_the_same_bundle(
    effort: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "WRITE_S", 0.0)
    monkeypatch.setattr(tune, "TOKENS", 32)
    precision = Int4(effort=effort, calibration_sequences=4)  # type: ignore[arg-type]
    options = ExportOptions(allow_poor=True)
    stops: Sequence[tuple[str, int]] = (
        *(("write text", 1), ("calibrate", 1), ("calibrate", 4), ("calibrate", 5)),
        *(("outputs", 2), ("train scales", 1), ("train scales", 7), ("train scales", 8)),
        *(("weights", 3), ("verify", 1)),
    )
    calls, after, stop = Counter[str](), Counter[str](), ("", 0)

    def interrupt(step: str, done: int, total: int, what: str = "") -> None:
        calls[step] += 1
        after[step] += done > 0
        if (step, after[step]) == stop:
            raise KeyboardInterrupt

    def export(name: str) -> Path:
        after.clear()
        out = tmp_path / name / "bundle"
        ortolan.export(source(), out, precision=precision, options=options, progress=interrupt)
        return out

    whole = export("whole")
    once = Counter(calls)
    calls.clear()
    interruptions = 0
    for stop in stops:
        if not once[stop[0]]:
            continue  # such as scales at normal effort
        with pytest.raises(KeyboardInterrupt):
            export("parts")
        interruptions += 1
        assert [path.name for path in (tmp_path / "parts").iterdir()] == [".bundle.unfinished"]
    stop = ("", 0)
    parts = export("parts")
    assert interruptions == (10 if effort == "best" else 6)
    assert contents(parts) == contents(whole)
    assert [path.name for path in parts.parent.iterdir()] == ["bundle"]
    assert calls["train scales"] <= 1.2 * once["train scales"]
