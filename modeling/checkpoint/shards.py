"""Which files of a folder hold the weights.

Safetensors before pickles, one file before shards, as transformers chooses.
"""

from collections.abc import MutableMapping
from pathlib import Path

from ortolan.modeling.checkpoint.json_file import read_json
from ortolan.modeling.errors import CheckpointError

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"

INDEX = ".index.json"

MAX_INDEX_BYTES = 16 << 20

OTHER_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights, all of one kind: the only one, or those that an index names.

    Raises:
        CheckpointError: no such files, or not all of them.
    """
    for name in (SAFETENSORS, PICKLE):
        single, index = folder / name, folder / f"{name}{INDEX}"
        if single.is_file():
            return [single]
        if index.is_file():
            return _indexed_files(folder, index, single.suffix)
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in OTHER_PICKLES)
    if pickles:
        raise CheckpointError(
            f"{folder / pickles[0]}: expected {SAFETENSORS} or {PICKLE}, got a pickle of another "
            "name, whose content nothing says. In a place you trust, convert it with transformers: "
            "AutoModelForCausalLM.from_pretrained(SOURCE).save_pretrained(TARGET)."
        )
    raise CheckpointError(
        f"{folder}: expected {SAFETENSORS} or {SAFETENSORS}{INDEX}, got neither. Check the path."
    )


def add_once(files: MutableMapping[str, Path], name: str, file: Path) -> None:
    """Note which file has a tensor.

    Raises:
        CheckpointError: another one has it too.
    """
    if name in files:
        raise CheckpointError(
            f"{file.name}: expected each tensor once, got {name} again "
            f"(first in {files[name].name}). Remove the stale file."
        )
    files[name] = file


def _indexed_files(folder: Path, index: Path, suffix: str) -> list[Path]:
    """The files that an index names, all of them beside it."""
    entries = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(
            f"{index}: expected an object weight_map, got {entries!r:.80}. "
            "The download is incomplete."
        )
    files = []
    for name in sorted(set(map(str, entries.values()))):
        file = folder / name
        if file.name != name or file.suffix != suffix:
            raise CheckpointError(
                f"{index}: expected names of {suffix} files beside it, got {name!r:.80}. "
                "Do not trust this checkpoint."
            )
        if not file.is_file():
            raise CheckpointError(
                f"{index}: expected {name} beside it, got no such file. The download is incomplete."
            )
        files.append(file)
    return files
