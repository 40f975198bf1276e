"""The C library and bundles for it, built once."""

import shutil
from pathlib import Path

import pytest
from tests.hosts.c_library import SANITIZED, SANITIZERS, Built, build
from tests.runtime.tiny_decoder import write_bundle

from ortolan.runtime.bundle.manifest import Tokens

KINDS = ("unified", "split", "recurrent", "by-token")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("c"))


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("c-sanitized")
    return build(folder, *SANITIZED)._replace(environment=SANITIZERS)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles with random weights, one for each way to call a decoder."""
    folder = tmp_path_factory.mktemp("tiny")
    write_bundle(folder / "unified", tokens=Tokens(bos=3, suppressed=(5, 6)))
    write_bundle(folder / "split", split=True)
    write_bundle(folder / "recurrent", recurrent=True)
    write_bundle(folder / "by-token", recurrent=True, takes_one=True)
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture
def copied(tiny: dict[str, Path], tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(tiny["unified"], tmp_path / "bundle"))
