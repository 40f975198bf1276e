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


def pickle_of_another_name(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": torch.ones(64)}, folder / "model.ckpt")


def missing_shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    save_file(tensors, folder / first)
    index = {"weight_map": dict.fromkeys(tensors, first) | {"lm_head.weight": second}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def missing_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def weights_of_another_model(folder: Path) -> None:
    tensors = {
        name: t.reshape(-1)[:8] for name, t in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 269060552\n"

DAMAGED: dict[str, tuple[Damage, str]] = {
    "no config": (without("config.json"), "config.json"),
    "config is a list": (contents("config.json", b"[1, 2]"), "config.json"),
    "config is not JSON": (contents("config.json", b"{'a': 1}"), "config.json"),
    "empty config": (contents("config.json", b""), "config.json"),
    "config of something else": (contents("config.json", b"{}"), "model_type"),
    "unknown family": (config(model_type="mambo"), "mambo"),
    "model type is a list": (config(model_type=["llama"]), "model_type"),
    "unknown key": (config(strange=1), "--accept-unknown strange"),
    "unknown key of an object": (
        config(rope_scaling={"rope_type": "default", "odd": 1}),
        "--accept-unknown rope_scaling.odd",
    ),
    "unknown quantization": (config(quantization_config={"quant_method": "strange"}), "strange"),
    "quantization without a method": (config(quantization_config={"bits": 4}), "quant_method"),
    "size of another model": (config(hidden_size=128), "weights"),
    "no weights": (without("model.safetensors"), "model.safetensors"),
    "weights cut short": (cut("model.safetensors", 0.5), "model.safetensors"),
    "header cut short": (cut("model.safetensors", 0.001), "model.safetensors"),
    "pointer in place of weights": (contents("model.safetensors", POINTER), "LFS pointer"),
    "missing shard": (missing_shard, "model-00002-of-00002.safetensors"),
    "missing tensor": (missing_tensor, "layers.1.mlp.down_proj.weight"),
    "weights of another model": (weights_of_another_model, "shape"),
    "pickle with code": (pickle_with_code, "pytorch_model.bin"),
    "pickle of another name": (pickle_of_another_name, "model.ckpt"),
    "empty tokenizer": (contents("tokenizer.json", b"{}"), "tokenizer"),
}


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


GGUF = "model.gguf"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (GGUF, b""),
        (GGUF, b"GGUF"),
        (GGUF, b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 1 << 40)),
        (GGUF, b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 20) + b"general.arch"),
        (GGUF, b"GGML" + bytes(64)),
        ("notes.txt", b"text"),
        ("model.safetensors", b"text"),
    ],
)
def test_a_file_that_is_not_a_checkpoint_is_rejected(name: str, data: bytes, here: Path) -> None:
    source = here / name
    source.write_bytes(data)
    for arguments in (("export", source, here / "out"), ("inspect", source)):
        assert f"{name}" in error_line(*arguments)
    assert sorted(here.rglob("*")) == [source]


def write_adapter(folder: Path, name: str, shape: tuple[int, int], **config: object) -> None:
    """A LoRA of rank 4 for one matrix `(outputs, inputs)`."""
    outputs, inputs = shape
    folder.mkdir()
    values = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": [name]} | config
    (folder / "adapter_config.json").write_text(json.dumps(values))
    factors = {"lora_A": torch.ones(4, inputs), "lora_B": torch.ones(outputs, 4)}
    save_file(
        {f"base_model.model.{name}.{part}.weight": t for part, t in factors.items()},
        folder / "adapter_model.safetensors",
    )


QUERY = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("name", "shape", "config", "message"),
    [
        ("model.layers.7.self_attn.q_proj", (64, 64), {}, "model.layers.7.self_attn.q_proj"),
        ("transformer.h.0.attn.c_attn", (64, 64), {}, "transformer.h.0.attn.c_attn"),
        (QUERY, (128, 128), {}, QUERY),
        (QUERY, (64, 64), {"peft_type": "IA3"}, "IA3"),
        (QUERY, (64, 64), {"use_dora": True}, "use_dora"),
    ],
)
def test_an_adapter_of_another_model_or_kind_is_rejected(
    name: str,
    shape: tuple[int, int],
    config: dict[str, object],
    message: str,
    checkpoint: Path,
    here: Path,
) -> None:
    write_adapter(here / "adapter", name, shape, **config)
    before = sorted(here.rglob("*"))
    arguments = ("export", checkpoint, here / "out", "--adapter")
    assert message in error_line(*arguments, here / "adapter")
    assert "nowhere" in error_line(*arguments, here / "nowhere")
    assert sorted(here.rglob("*")) == before
