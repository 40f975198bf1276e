"""Modules with operators that no other export needs."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.export.own_module import Unusual, ordinary, unusual
from torch import Tensor

import ortolan
from ortolan.export import write as written
from ortolan.export.manifest import describe
from ortolan.modeling.state import State
from ortolan.runtime import Bundle, verify
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.verification.verified import is_verified

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
    monkeypatch.setattr(written, "describe", describe)


def exported(folder: Path) -> Bundle:
    module = Foreign()
    module.load_state_dict(unusual().state_dict())
    return ortolan.export(module.eval(), folder / "bundle")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Bundle:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(state_folder))
        patched.setattr(written, "describe", describe)
        return exported(tmp_path_factory.mktemp("made"))


def logits(model: Any) -> Any:
    return model.logits([5, 9, 2])


def test_the_manifest_names_them_and_the_bundle_opens_where_it_was_made(made: Bundle) -> None:
    assert made.manifest.foreign_operators == (SINH,)
    assert np.isfinite(logits(ortolan.load(made.path))).all()
    assert verify(made.path).verdict == "PASS"


def test_elsewhere_it_is_loaded_in_a_subprocess_first(
    made: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits(ortolan.load(made.path))
    elsewhere = shutil.copytree(made.path, tmp_path / "bundle")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert not is_verified(
        ortolan.runtime.open_bundle(elsewhere), onnxruntime=onnxruntime_version()
    )
    assert (logits(ortolan.load(elsewhere)) == expected).all()
    assert is_verified(ortolan.runtime.open_bundle(elsewhere), onnxruntime=onnxruntime_version())
    assert verify(elsewhere).verdict == "PASS"


def test_a_bundle_with_them_is_replaced(made: Bundle, tmp_path: Path) -> None:
    target = shutil.copytree(made.path, tmp_path / "bundle")

    bundle = ortolan.export(unusual(), target, force=True)

    assert bundle.manifest.foreign_operators == ()


def test_what_modules_are_commonly_made_of_needs_no_other_operators(tmp_path: Path) -> None:
    bundle = ortolan.export(ordinary(), tmp_path / "bundle")

    assert bundle.manifest.foreign_operators == ()
