"""Model cards, as the Hub's own library reads them."""

import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from huggingface_hub import ModelCard
from tests.cases import Case
from tests.cases.encoders import EMBEDDING, TAGS
from tests.cases.image_encoders import VIT_LABELS
from tests.cases.readers import ANSWERS, BLANKS
from tests.cases.run import Runs
from tests.cli.conftest import Run, run_here

from ortolan.cli import cli
from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.kinds import OUTPUTS
from ortolan.runtime.inspect import card as cards
from ortolan.runtime.inspect.card import model_card


def metadata(card: str) -> dict[str, Any]:
    fields: dict[str, Any] = ModelCard(card).data.to_dict()  # type: ignore[no-untyped-call]
    return fields


@pytest.fixture(scope="module")
def int4(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint in four bits."""
    path = tmp_path_factory.mktemp("card") / "int4"
    options = ("--precision", "int4", "--effort", "quick", "--allow-poor")
    done = run_here("export", checkpoint, path, *options)
    assert done.returncode == 0, done.stderr
    return path


def test_the_hub_reads_the_metadata(ortolan: Run, bundle: Path, int4: Path) -> None:
    names = ("--base-model", "acme/model", "--license", "apache-2.0", "--repo", "me/model")
    done = ortolan("card", int4, bundle, *names)
    assert done.returncode == 0, done.stderr
    assert metadata(done.stdout.decode()) == {
        "library_name": "ortolan",
        "pipeline_tag": "text-generation",
        "tags": ["onnx", "onnxruntime", "int4", "fp32"],
        "license": "apache-2.0",
        "base_model": "acme/model",
        "base_model_relation": "quantized",
    }


def test_the_text_has_the_figures_of_every_bundle(ortolan: Run, bundle: Path, int4: Path) -> None:
    text = ortolan("card", int4, bundle, "--repo", "me/model").stdout.decode()
    for path in (int4, bundle):
        manifest = open_bundle(path).manifest
        row = next(line for line in text.splitlines() if line.startswith(f"| `{path.name}` |"))
        assert manifest.quality is not None
        assert manifest.quality.summary in row
        assert " PASS" in row
    assert f"ortolan verify me/model:{int4.name}\n" in text
    assert f'ortolan run me/model:{int4.name} "' in text
    assert open_bundle(int4).manifest.provenance.source_sha256 in text


def test_names_in_a_bundle_cannot_form_markdown(bundle: Path) -> None:
    name = 'a/"b\n| <script> |\n---\n# c'
    card = ModelCard(model_card([open_bundle(bundle)], base_model=name))
    assert metadata(str(card))["base_model"] == name
    assert "<script>" not in card.text
    assert "\n# c" not in card.text


@pytest.mark.parametrize(
    ("case", "task"),
    [
        (TAGS, "text-classification"),
        (EMBEDDING, "feature-extraction"),
        (VIT_LABELS, "image-classification"),
        (BLANKS, "fill-mask"),
        (ANSWERS, "question-answering"),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else value,
)
def test_the_task_of_an_encoder(case: Case, task: str, runs: Runs) -> None:
    assert metadata(model_card([open_bundle(runs(case).bundle)]))["pipeline_tag"] == task


def test_every_kind_of_bundle_has_a_task() -> None:
    assert cards._TASKS.keys() == {"decoder", "encoder-decoder", *OUTPUTS}


@pytest.mark.parametrize("use", cards._USES.values())
def test_commands_of_cards_parse(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("text.txt", "photo.jpg", "talk.mp3"):
        Path(file).touch()
    name, *words = shlex.split(use.format(model="bundle"))
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    with command.make_context(name, words) as context:
        assert "bundle" in (context.params.get("bundle"), context.params.get("model"))


def test_a_file_is_replaced_with_force(ortolan: Run, bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "README.md"
    out.write_text("mine")
    assert ortolan("card", bundle, "--out", out, "--force").returncode == 0
    assert out.read_text() == model_card([open_bundle(bundle)])
    assert {"base_model", "base_model_relation", "license"}.isdisjoint(metadata(out.read_text()))
    assert f"ortolan verify {bundle.name}\n" in out.read_text()
