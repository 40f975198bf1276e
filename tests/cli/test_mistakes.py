"""Mistakes on the command line and invalid checkpoints: one line, exit status 2, nothing left."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import error_line
from tests.runtime import tiny_decoder, tiny_encoder

from ortolan.cache import cache_folder

LINES = (
    "run bundle def --temperature -1",
    "run bundle def --temperature warm",
    "run bundle def --device toaster",
    "run bundle def --device cuda",
    "run bundle def -n 0",
    "run bundle def --stop=",
    "run bundle def --nonsense",
    "run bundle def --beams 2",
    "run bundle def --image notes.txt",
    "run bundle def --image nowhere.png",
    "run bundle def --regex a --lark notes.txt",
    "run bundle defdef -n 95",
    "run bundle def --precision int8",
    "run bundle def --revision v1",
    "run bundle -",
    "run labels a",
    "run nowhere def",
    "run torn def",
    "run notes.txt def",
    "run model.onnx def",
    "run genai def",
    "run empty def",
    "verify bundle --device cuda",
    "bench bundle --device cuda",
    "bench bundle --threads 0",
    "bench bundle",
    "bench bundle -n 97 -p 0",
    "bench bundle -p 0 -n 0",
    "bench bundle -p -1",
    "bench bundle -n -1",
    "bench bundle -d -1",
    "bench embedding",
    "inspect empty",
    "inspect nowhere",
    "inspect checkpoint --batch 2",
    "inspect bundle --via family",
    "export checkpoint bundle",
    "export nowhere out",
    "export checkpoint out --precision bf16",
    "export checkpoint out --precision auto --method rtn",
    "export checkpoint out --precision auto --max-kl 1 --head-bits 4",
    "export checkpoint out --precision int8 --head-bits 4",
    "export checkpoint out --precision fp16 --asymmetric --group-size 32",
    "export checkpoint out --precision fp32 --calibration-sequences 8",
    "export checkpoint out --method rtn",
    "export checkpoint out --target-size 1",
    "export checkpoint out --adapter adapter",
    "export checkpoint out --adapter nowhere",
    "embed embedding a --prompt query",
    "embed embedding",
    "embed embedding -",
    "embed labels a",
    "embed bundle a",
    "embed embedding a --device cuda",
    "classify embedding a",
    "classify states a",
    "classify labels a --device cuda",
    "classify labels a --template {}!",
    "classify labels a --multi-label",
    "classify labels",
    "classify labels " + "a_" * 30,
    "classify labels _",
    "classify labels a --image notes.txt",
    "classify images notes.txt",
    "classify images nowhere.png",
    "attention labels a -o out --heads 0,2",
    "attention labels a -o out --heads x",
    "attention labels a -o out --over-image",
    "attention embedding a -o out",
    "transcribe bundle a.wav",
    "transcribe bundle a.wav --srt --json",
    "transcribe bundle - --srt",
    "transcribe bundle a.wav --rate 8000",
    "pack nowhere",
    "cache remove",
    "cache remove --all x",
    "cache remove ../x",
    "cache list x",
    "cache clean",
    "card bundle other",
    "card bundle --out notes.txt",
)

TEXTS = {"notes.txt": "def main():", "model.onnx": "", "genai/genai_config.json": "{}"}
TEXTS |= {"adapter/adapter_config.json": json.dumps({"peft_type": "IA3"})}


@pytest.fixture(scope="module")
def folder(bundle: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    shutil.copytree(bundle, folder / "bundle")
    shutil.copytree(checkpoint, folder / "checkpoint")
    shutil.copytree(bundle, folder / "torn")
    manifest = (bundle / "manifest.json").read_bytes()
    (folder / "torn" / "manifest.json").write_bytes(manifest[: len(manifest) // 2])
    (folder / "empty").mkdir()
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    tiny_encoder.write_bundle(folder / "labels", maps=True)
    tiny_encoder.write_bundle(folder / "images", image=tiny_encoder.IMAGE)
    for kind in ("embedding", "states"):
        tiny_encoder.write_bundle(folder / kind, kind=kind)
    tiny_decoder.write_bundle(folder / "other")
    return folder


@pytest.mark.parametrize("line", LINES)
def test_a_mistake_is_one_line(
    line: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    words = [word.replace("_", " ") for word in line.split()]
    text = error_line(*words, stdin=b"def \xff\xfe").removeprefix("ortolan: ")
    for hidden in (f"{folder}/", f"{cache_folder()}"):
        text = text.replace(hidden, "...")
    assert text == snapshot
    assert sorted(folder.rglob("*")) == before


# --- checkpoints ------------------------------------------------------------------------------

Damage = Callable[[Path], object]


class Code:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("code-that-ran",)


def config(**values: object) -> Damage:
    """Change values of config.json."""

    def change(source: Path) -> None:
        file = source / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def contents(name: str, data: bytes) -> Damage:
    """Replace a file."""
    return lambda source: (source / name).write_bytes(data)


def pickle_with_code(source: Path) -> None:
    (source / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Code()}, source / "pytorch_model.bin")


def missing_tensor(source: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, source / "model.safetensors")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 269060552\n"
HALF_A_GGUF = b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 20) + b"general.arch"

DAMAGED: dict[str, Damage] = {
    "no config": lambda source: (source / "config.json").unlink(),
    "config of something else": contents("config.json", b"{}"),
    "unknown key": config(strange=1),
    "unknown key of an object": config(rope_scaling={"rope_type": "default", "odd": 1}),
    "unknown quantization": config(quantization_config={"quant_method": "strange"}),
    "weights cut short": lambda source: os.truncate(source / "model.safetensors", 50_000),
    "pointer in place of weights": contents("model.safetensors", POINTER),
    "missing tensor": missing_tensor,
    "pickle with code": pickle_with_code,
    "empty tokenizer": contents("tokenizer.json", b"{}"),
}
"""One of each kind; tests/modeling has more."""

NO_CHECKPOINTS = {
    "empty.gguf": b"",
    "half.gguf": HALF_A_GGUF,
    "other.gguf": b"GGML" + bytes(64),
    "notes.txt": b"text",
    "model.safetensors": b"text",
}


def refused(source: str, *, is_listed: bool = False) -> str:
    """The error of an export, which `inspect` has, too, unless it lists the problem."""
    before = sorted(Path().rglob("*"))
    line = error_line("export", source, "out")
    if not is_listed:
        assert error_line("inspect", source) == line
    assert sorted(Path().rglob("*")) == before
    return line.removeprefix("ortolan: ")


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_checkpoint_is_rejected(
    name: str,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.chdir(tmp_path)
    DAMAGED[name](Path(shutil.copytree(checkpoint, "source")))
    assert refused("source", is_listed="unknown key" in name) == snapshot


@pytest.mark.parametrize("name", NO_CHECKPOINTS)
def test_a_file_that_is_not_a_checkpoint_is_rejected(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(NO_CHECKPOINTS[name])
    assert refused(name) == snapshot
