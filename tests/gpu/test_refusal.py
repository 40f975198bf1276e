"""What is true of this version where everything for CUDA is there."""

from pathlib import Path

import msgspec
import pytest
from tests.runtime import tiny_bundle

from ortolan.runtime import DeviceError, load
from ortolan.runtime.bundle.manifest import NAME
from ortolan.runtime.bundle.manifest_file import encode
from ortolan.runtime.engine.ort_session import available_providers

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle that says it was made for CUDA as well."""
    folder = tmp_path / "bundle"
    manifest = tiny_bundle.write(folder)
    both = msgspec.structs.replace(manifest, devices=("cpu", "cuda"))
    (folder / NAME).write_bytes(encode(both))
    return folder


def test_onnxruntime_offers_cuda() -> None:
    assert "CUDAExecutionProvider" in available_providers()


def test_nothing_but_this_version_is_in_the_way_of_cuda(bundle: Path) -> None:
    with pytest.raises(DeviceError, match="on the CPU only"):
        load(bundle, device="cuda")
