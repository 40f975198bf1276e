"""Invalid checkpoints: one line that says why, exit status 2, and nothing left behind."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.conftest import error_line

Damage = Callable[[Path], None]

MARK = "code-that-ran"


class Code:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (MARK,)


def config(**values: object) -> Damage:
    """Change values of config.json."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def contents(name: str, data: bytes) -> Damage:
    """Replace a file."""

    def replace(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return replace


def without(name: str) -> Damage:
    """Remove a file."""
    return lambda folder: (folder / name).unlink()


def cut(name: str, share: float) -> Damage:
    """Keep the beginning of a file."""

    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(share * len(data))])

    return change


def pickle_with_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Code()}, folder / "pytorch_model.bin")


def missing_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 269060552\n"

DAMAGED: dict[str, tuple[Damage, str]] = {
    "no config": (without("config.json"), "config.json"),
    "config of something else": (contents("config.json", b"{}"), "model_type"),
    "unknown key": (config(strange=1), "--accept-unknown strange"),
    "unknown key of an object": (
        config(rope_scaling={"rope_type": "default", "odd": 1}),
        "--accept-unknown rope_scaling.odd",
    ),
    "unknown quantization": (config(quantization_config={"quant_method": "strange"}), "strange"),
    "weights cut short": (cut("model.safetensors", 0.5), "model.safetensors"),
    "pointer in place of weights": (contents("model.safetensors", POINTER), "LFS pointer"),
    "missing tensor": (missing_tensor, "layers.1.mlp.down_proj.weight"),
    "pickle with code": (pickle_with_code, "pytorch_model.bin"),
    "empty tokenizer": (contents("tokenizer.json", b"{}"), "tokenizer"),
}
"""One of each kind; tests/modeling has more."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which unpickled code would write into."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_checkpoint_is_rejected_and_leaves_nothing(
    name: str, checkpoint: Path, here: Path
) -> None:
    damage, message = DAMAGED[name]
    source = Path(shutil.copytree(checkpoint, here / "source"))
    damage(source)
    before = sorted(here.rglob("*"))
    assert message in error_line("export", source, here / "out")
    assert sorted(here.rglob("*")) == before
    if "unknown key" not in name:  # which inspect lists
        assert message in error_line("inspect", source)
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("model.gguf", b""),
        ("model.gguf", b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 20) + b"general.arch"),
        ("model.gguf", b"GGML" + bytes(64)),
        ("notes.txt", b"text"),
        ("model.safetensors", b"text"),
    ],
)
def test_a_file_that_is_not_a_checkpoint_is_rejected(name: str, data: bytes, here: Path) -> None:
    source = here / name
    source.write_bytes(data)
    for arguments in (("export", source, here / "out"), ("inspect", source)):
        assert name in error_line(*arguments)
    assert sorted(here.rglob("*")) == [source]


def test_an_adapter_of_another_kind_or_of_nothing_is_rejected(checkpoint: Path, here: Path) -> None:
    (here / "adapter").mkdir()
    (here / "adapter/adapter_config.json").write_text(json.dumps({"peft_type": "IA3"}))
    before = sorted(here.rglob("*"))
    for name, message in (("adapter", "IA3"), ("nowhere", "nowhere")):
        arguments = ("export", checkpoint, here / "out", "--adapter", here / name)
        assert message in error_line(*arguments)
    assert sorted(here.rglob("*")) == before
