"""A tiny bundle, and first loads whose subprocess does something else."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runtime import tiny_decoder
from tests.runtime.tiny_decoder import TinyDecoder

from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.verification import first_load
from ortolan.runtime.verification.certificate import Certificate, Logits
from ortolan.runtime.verification.certificate_files import read_certificate

STEP = """
from ortolan.runtime.verification import first_load_child
def first_step(task):
{body}
first_load_child.first_step = first_step
first_load_child.main()
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder in which no bundle was verified."""
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDecoder:
    return tiny_decoder.write_bundle(tmp_path_factory.mktemp("verification") / "bundle")


@pytest.fixture(scope="session")
def certificate(tiny: TinyDecoder) -> Certificate:
    return read_certificate(open_bundle(tiny.path))


def logits_of(certificate: Certificate) -> Logits:
    assert isinstance(certificate.reference, Logits)
    return certificate.reference


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_bundle(tiny_decoder.write_bundle(tmp_path / "bundle").path)


@pytest.fixture
def replace_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run this code as the subprocess."""
    return lambda code: monkeypatch.setattr(first_load, "_CHILD", ("-c", code))


@pytest.fixture
def replace_step(replace_process: Callable[[str], None]) -> Callable[[str], None]:
    """Run this code in the limited subprocess instead of opening a bundle."""
    return lambda body: replace_process(STEP.format(body=textwrap.indent(body, "    ")))
