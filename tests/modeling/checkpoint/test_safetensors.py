"""Slices of tensors in safetensors files, against what the library reads."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ortolan.modeling.checkpoint.safetensors import DTYPES, Safetensors
from ortolan.modeling.errors import CheckpointError


def written(path: Path) -> dict[str, torch.Tensor]:
    """Write tensors of every type, a scalar and an empty one."""
    random = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 2, (7, 24), generator=random, dtype=torch.uint8)
    tensors = {
        dtype: (bits.bool() if dtype == "BOOL" else bits.view(kind).clone())
        for dtype, kind in DTYPES.items()
    }
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4)}
    save_file(tensors, path)
    return load_file(path)


def test_rows_are_those_of_the_library(tmp_path: Path) -> None:
    tensors = written(tmp_path / "model.safetensors")
    source = Safetensors([tmp_path / "model.safetensors"])
    assert source.shapes() == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        for start, stop in ((0, 7), (2, 5), (6, 7), (3, 3), (5, 100)):
            read = source.read(name, start, stop)
            expected = tensor[start:stop] if tensor.dim() else tensor
            assert read.dtype == tensor.dtype
            assert read.shape == expected.shape
            assert read.flatten().tolist() == expected.flatten().tolist(), (name, start, stop)


def test_columns_are_those_of_the_library(tmp_path: Path) -> None:
    tensors = written(tmp_path / "model.safetensors")
    source = Safetensors([tmp_path / "model.safetensors"])
    assert torch.equal(source.read("BF16", 1, 4, axis=1), tensors["BF16"][:, 1:4])


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    written(path)
    source = Safetensors([path])
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - 400)
    with pytest.raises(CheckpointError, match="has become shorter"):
        [source.read(name, 0, max(1, *shape, 1)) for name, shape in source.shapes().items()]


def test_an_unknown_type_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "model.safetensors")
    monkeypatch.delitem(DTYPES, "I16")
    source = Safetensors([tmp_path / "model.safetensors"])
    with pytest.raises(CheckpointError, match=r"I16 must be of a type among .*\(got I16\)"):
        source.read("I16", 0, 1)
