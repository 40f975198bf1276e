"""Record the output that documents show after their commands.

    python scripts/record_output.py README.md

In a document, a `sh` block that is followed by a `text` block shows commands and the output of the
last one. This script runs the commands and rewrites the `text` block.
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
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]

STAND_INS = ROOT / "tests" / "end_to_end" / "stand_ins"
"""Packages that a guide uses and no test installs."""

SHOWN = re.compile(r"^```sh\n(?P<commands>.*?)^```\n\n```text\n(?P<output>.*?)^```$", re.M | re.S)

PROGRAMS = {
    "curl": ["curl", "--silent", "--show-error", "--fail", "--retry", "0"],
    "ortolan": [sys.executable, "-m", "ortolan"],
    "python": [sys.executable],
}
"""Commands of documents, and what runs them."""

_PROGRESS = re.compile(r"\w+: .* (so far|of about \d.*)(, .*)?")
"""Lines on stderr of a command that takes long."""

Execute = Callable[[list[str], Path], str]


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
    config = json.loads((ROOT / "models/pythonic/config.json").read_text())
    file.parent.mkdir(parents=True)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(ROOT / "models/pythonic/model.safetensors").items():
        values = tensor.float().numpy()
        rotated = heads.get(name.split(".")[-2])
        if rotated is not None:  # pairs of channels are adjacent in this format
            halves = values.reshape(rotated, 2, -1, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if values.ndim == 1:
            kind = gguf.GGMLQuantizationType.F32
        elif values.shape[1] % 32:  # no whole blocks
            kind = gguf.GGMLQuantizationType.F16
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
        data = gguf.quants.quantize(values, kind)
        published = names.get_name(name, (".weight",)) or name
        writer.add_tensor(published, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
        "XDG_STATE_HOME": str(folder / "state"),  # not the user's own
    }


def execute(words: list[str], folder: Path) -> str:
    """Run a command of a document with this checkout; return stdout, then stderr.

    Raises:
        RuntimeError: the command fails.
    """
    name, *arguments = words
    done = subprocess.run(
        [*PROGRAMS.get(name, PROGRAMS["python"]), *arguments],
        cwd=folder,
        env=environment(folder),
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
        *_, output = [execute(words, folder) for words in commands(match["commands"])]
        return f"```sh\n{match['commands']}```\n\n```text\n{output}```"

    return SHOWN.sub(replaced, text)


def main() -> None:
    """Rewrite the documents that the command line names."""
    parser = argparse.ArgumentParser(description="Record the output that documents show.")
    parser.add_argument("documents", nargs="+", type=Path)
    for document in parser.parse_args().documents:
        with tempfile.TemporaryDirectory() as folder:
            document.write_text(recorded(document.read_text(), workspace(Path(folder))))


if __name__ == "__main__":
    main()
