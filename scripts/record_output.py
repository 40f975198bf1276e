"""Record the output that documents show after their commands.

    python scripts/record_output.py README.md

In a document, a `sh` block that is followed by a `text` block shows commands and the output of the
last one. This script runs the commands and rewrites the `text` block. If its first line is a
question of a chat, such as "> What is gravity?", the last command reads it from stdin.
tests/end_to_end/test_docs.py checks that what is shown is what they print, except for numbers.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import LlamaForCausalLM

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.modeling.checkpoint.gguf_files import (  # noqa: E402 - the path comes first
    metadata_of,
    turned,
    write_gguf,
)

STAND_INS = ROOT / "tests" / "end_to_end" / "stand_ins"
"""Packages that a guide uses and no test installs."""

SHOWN = re.compile(
    r"^```sh\n(?P<commands>(?:(?!```)[^\n]*\n)*)```\n\n```text\n(?P<output>.*?)^```$", re.M | re.S
)

SMOLLM2 = "build/SmolLM2-135M-Instruct.Q4_1.gguf"
"""The file that `make chat` downloads."""

ANSWER_WIDTH = 100
"""Columns at which answers are wrapped, as in a terminal."""

PROGRAMS = {
    "curl": ["curl", "--silent", "--show-error", "--fail", "--retry", "0"],
    "make": [
        *("make", "--silent", "--makefile", str(ROOT / "Makefile"), "--old-file", ".venv/.chat"),
        f"BIN={Path(sys.executable).parent}",
    ],
    "ortolan": [sys.executable, "-m", "ortolan"],
    "python": [sys.executable],
}
"""Commands of documents, and what runs them. make installs nothing."""

_QUESTION = re.compile(r"> (.*)\n")

_PROGRESS = re.compile(
    r"\w+: .* (so far|of about \d.*)(, .*)?|export: (about )?\d+ (s|min)( with .*)?"
    r"|ortolan: exporting .*, once: .*"
)
"""Lines on stderr of a command that takes long."""


def commands(block: str) -> Iterator[list[str]]:
    """The words of each command of a `sh` block."""
    for line in block.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield [Path(words[0]).name, *words[1:]]


def workspace(folder: Path) -> Path:
    """Prepare a folder in which the paths of documents exist."""
    shutil.copytree(ROOT / "models", folder / "models")
    _write_adapter(folder / "adapters" / "lines")
    _write_gguf(folder / "gguf" / "pythonic-Q8_0.gguf")
    return folder


def _write_gguf(file: Path) -> None:
    """Write models/pythonic in Q8_0, without its tokenizer, as llama.cpp's converter does."""
    model = LlamaForCausalLM.from_pretrained(ROOT / "models/pythonic", dtype=torch.float32)
    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    kinds = {}

    def changed(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim > 1:  # rows that are not whole blocks stay in 16 bits
            kinds[name] = "F16" if tensor.shape[1] % 32 else "Q8_0"
        rotated = heads.get(name.split(".")[-2])
        return tensor if rotated is None else turned(tensor, rotated)

    file.parent.mkdir(parents=True)
    write_gguf(file, "llama", model, metadata_of(model), change=changed, kinds=kinds)


def _write_adapter(folder: Path) -> None:
    """Write a random LoRA adapter of models/pythonic as PEFT saves it."""
    config = json.loads((ROOT / "models/pythonic/config.json").read_text())
    width, random = config["hidden_size"], np.random.default_rng(0)
    outputs = {"q": config["num_attention_heads"], "v": config["num_key_value_heads"]}
    tensors = {}
    for layer, part in product(range(config["num_hidden_layers"]), outputs):
        name = f"base_model.model.model.layers.{layer}.self_attn.{part}_proj"
        shapes = {"A": (4, width), "B": (outputs[part] * config["head_dim"], 4)}
        for factor, shape in shapes.items():
            values = random.standard_normal(shape).astype(np.float32) / 10
            tensors[f"{name}.lora_{factor}.weight"] = values
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "init_lora_weights": True}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def environment(folder: Path) -> dict[str, str]:
    """Variables with which the commands of a document run in a folder."""
    return {
        "PYTHONPATH": f"{ROOT / 'src'}:{STAND_INS}",
        "PATH": "/usr/bin:/bin",
        "XDG_CACHE_HOME": str(folder / "cache"),  # not the user's own
        "XDG_STATE_HOME": str(folder / "state"),
    }


def execute(words: list[str], folder: Path, stdin: str = "") -> str:
    """Run a command of a document with this checkout; return stdout, then stderr.

    Raises:
        RuntimeError: the command fails.
    """
    name, *arguments = words
    done = subprocess.run(
        [*PROGRAMS.get(name, PROGRAMS["python"]), *arguments],
        cwd=folder,
        env=environment(folder),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(words)}: {done.stderr}")
    said = [line for line in done.stderr.splitlines() if not _PROGRESS.fullmatch(line)]
    lines = [*done.stdout.strip("\n").splitlines(), *said]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def without_numbers(text: str) -> str:
    """Mask numbers: timings and small differences between processors."""
    return re.sub(r"\d[\d.,]*(e[+-]?\d+)?", "#", text)


def recorded(text: str, folder: Path) -> str:
    """A document with the output that its commands print now."""

    def replaced(match: re.Match[str]) -> str:
        question = _QUESTION.match(match["output"])
        *before, last = commands(match["commands"])
        for words in before:
            execute(words, folder)
        output = execute(last, folder, f"{question[1]}\n" if question else "")
        if question:
            lines = [textwrap.fill(line, ANSWER_WIDTH) for line in output.splitlines()]
            output = "\n".join([f"> {question[1]}", *lines, ""])
        return f"```sh\n{match['commands']}```\n\n```text\n{output}```"

    return SHOWN.sub(replaced, text)


def main() -> None:
    """Rewrite the documents that the command line names."""
    parser = argparse.ArgumentParser(description="Record the output that documents show.")
    parser.add_argument("documents", nargs="+", type=Path)
    for document in parser.parse_args().documents:
        text = document.read_text()
        with tempfile.TemporaryDirectory() as name:
            folder = workspace(Path(name))
            if "make chat" in text:
                execute(["make", SMOLLM2], folder)  # the chat then prints nothing of the download
            document.write_text(recorded(text, folder))


if __name__ == "__main__":
    main()
