"""Find the weight files of a folder.

Safetensors before pickles, a single file before shards, as in transformers.
"""

from pathlib import Path

from ortolan.modeling.checkpoint.json_file import read_json
from ortolan.modeling.errors import CheckpointError

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"

INDEX = ".index.json"

MAX_INDEX_BYTES = 16 << 20

OTHER_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def weight_files(folder: Path) -> list[Path]:
    """The weight files, all of one format: a single one, or those that an index names."""
    for name in (SAFETENSORS, PICKLE):
        single, index = folder / name, folder / f"{name}{INDEX}"
        if single.is_file():
            return [single]
        if index.is_file():
            return _indexed_files(folder, index, single.suffix)
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in OTHER_PICKLES)
    if pickles:
        raise CheckpointError(
            f"{folder / pickles[0]}: a pickle of unknown content; expected {SAFETENSORS} or "
            f"{PICKLE}. In a place you trust, convert it with transformers: "
            "AutoModelForCausalLM.from_pretrained(SOURCE).save_pretrained(TARGET)."
        )
    raise CheckpointError(f"{folder}: no {SAFETENSORS} or {SAFETENSORS}{INDEX}. Check the path.")


def _indexed_files(folder: Path, index: Path, suffix: str) -> list[Path]:
    """Files that an index names; they must be next to it."""
    entries = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(
            f"{index}: weight_map must be an object (got {entries!r:.80}). The download is "
            "incomplete."
        )
    files = []
    for name in sorted(set(map(str, entries.values()))):
        file = folder / name
        if file.name != name or file.suffix != suffix:
            raise CheckpointError(
                f"{index}: must name {suffix} files next to it (got {name!r:.80}). Do not trust "
                "this checkpoint."
            )
        if not file.is_file():
            raise CheckpointError(f"{index}: {name} does not exist. The download is incomplete.")
        files.append(file)
    return files
