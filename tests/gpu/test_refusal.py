"""This version refuses CUDA even where everything for it is installed."""

from pathlib import Path

import msgspec
import pytest
from tests.runtime import tiny_bundle

from ortolan.runtime import DeviceError, load
from ortolan.runtime.bundle.manifest import NAME
from ortolan.runtime.bundle.manifest_file import encode
from ortolan.runtime.engine.providers import available_providers

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle whose manifest names CUDA as well."""
    folder = tmp_path / "bundle"
    manifest = tiny_bundle.write(folder)
    both = msgspec.structs.replace(manifest, devices=("cpu", "cuda"))
    (folder / NAME).write_bytes(encode(both))
    return folder


def test_onnxruntime_offers_cuda() -> None:
    assert "CUDAExecutionProvider" in available_providers()


def test_only_this_version_refuses_cuda(bundle: Path) -> None:
    with pytest.raises(DeviceError, match="on the CPU only"):
        load(bundle, device="cuda")
