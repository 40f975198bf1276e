"""Modules with operators that no other export needs."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.export.own_module import Unusual, ordinary, unusual
from torch import Tensor

import ortolan
from ortolan.cli import cli
from ortolan.export import pipeline
from ortolan.export.manifest import describe
from ortolan.modeling.state import State
from ortolan.runtime import Bundle, UntrustedError, verify

pytestmark = pytest.mark.slow

SINH = "ai.onnx::Sinh: float -> float"


class Foreign(Unusual):
    """A module with a function that only this test uses."""

    def forward(self, ids: Tensor, state: State) -> Tensor:
        return torch.sinh(super().forward(ids, state) / 64)


@pytest.fixture(scope="module")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(autouse=True)
def _own_state(state_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state_folder))
    monkeypatch.setattr(pipeline, "describe", describe)


def exported(folder: Path) -> Bundle:
    module = Foreign()
    module.load_state_dict(unusual().state_dict())
    return ortolan.export(module.eval(), folder / "bundle")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Bundle:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(state_folder))
        patched.setattr(pipeline, "describe", describe)
        return exported(tmp_path_factory.mktemp("made"))


def logits(model: Any) -> Any:
    return model.logits([5, 9, 2])


def test_the_manifest_names_them_and_the_bundle_opens_where_it_was_made(made: Bundle) -> None:
    assert made.manifest.foreign_operators == (SINH,)
    assert np.isfinite(logits(ortolan.load(made.path))).all()
    assert verify(made.path).verdict == "PASS"


def test_elsewhere_it_opens_when_its_user_trusts_it(
    made: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits(ortolan.load(made.path))
    elsewhere = shutil.copytree(made.path, tmp_path / "bundle")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    for use in (ortolan.load, verify, ortolan.runtime.open_bundle):
        with pytest.raises(UntrustedError, match=r"Sinh.*trust=True"):
            use(elsewhere)

    assert (logits(ortolan.load(elsewhere, trust=True)) == expected).all()
    assert verify(elsewhere, trust=True).verdict == "PASS"
    said = CliRunner().invoke(cli, ["trust", str(elsewhere)])
    assert (said.exit_code, said.output) == (0, f"{SINH}\n")
    assert (logits(ortolan.load(elsewhere)) == expected).all()


def test_a_seal_is_of_one_bundle(made: Bundle, tmp_path: Path) -> None:
    other = shutil.copytree(made.path, tmp_path / "bundle")
    manifest = (other / "manifest.json").read_text()
    (other / "manifest.json").write_text(
        manifest.replace('"context_length": 64', '"context_length": 63')
    )

    with pytest.raises(UntrustedError):
        ortolan.load(other)


def test_without_a_place_for_the_key_it_opens_when_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    bundle = exported(tmp_path)
    assert "trust=True" in caplog.text
    with pytest.raises(UntrustedError):
        ortolan.load(bundle.path)
    ortolan.load(bundle.path, trust=True)


def test_a_bundle_is_replaced_with_its_seal(made: Bundle, tmp_path: Path) -> None:
    target = shutil.copytree(made.path, tmp_path / "bundle")

    bundle = ortolan.export(unusual(), target, force=True)

    assert bundle.manifest.foreign_operators == ()
    said = CliRunner().invoke(cli, ["trust", str(target)])
    assert said.exit_code == 0
    assert said.output.startswith("nothing to trust")
    assert not (target / "operators.seal").exists()


def test_what_modules_are_commonly_made_of_needs_no_trust(tmp_path: Path) -> None:
    bundle = ortolan.export(ordinary(), tmp_path / "bundle")

    assert bundle.manifest.foreign_operators == ()
