"""The head of a sentence-transformers folder: which vector is the embedding of a text.

Such a folder is a Hugging Face checkpoint with `modules.json` beside it, which lists what runs
one after the other, and a folder for each module that has a config.

Source: Reimers and Gurevych 2019; sentence-transformers, models/Pooling.py.
"""

import json
from pathlib import Path

from ortolan.modeling.checkpoint.json_file import read_json, read_json_value
from ortolan.modeling.config import EmbeddingHead, Pooling
from ortolan.modeling.errors import CheckpointError, ConfigError

MODULES = "modules.json"

MAX_MODULES_BYTES = 1 << 16

POOLING_FOLDER, POOLING_CONFIG = "1_Pooling", "config.json"

MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
}
"""Switches of a pooling module that we have; every other one must be off."""


def read_sentence_head(folder: Path) -> EmbeddingHead | None:
    """The head that `modules.json` describes; None without such a file.

    Raises:
        CheckpointError: a file that cannot be read.
        ConfigError: modules that Ortolan does not have.
    """
    file = folder / MODULES
    if not file.is_file():
        return None
    value = read_json_value(file, MAX_MODULES_BYTES)
    modules = value if isinstance(value, list) else []
    entries = [entry if isinstance(entry, dict) else {} for entry in modules]
    names = tuple(str(entry.get("type")).rpartition(".")[2] for entry in entries)
    if names not in (("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize")):
        raise ConfigError(
            f"{MODULES}: expected Transformer, Pooling and perhaps Normalize, got {names!r:.80}. "
            "This checkpoint cannot be loaded faithfully."
        )
    path = entries[1].get("path")
    if not isinstance(path, str) or path in ("", "..") or Path(path).name != path:
        raise CheckpointError(
            f"{file}: expected the name of a folder beside it, got {path!r:.80}. "
            "Do not trust this checkpoint."
        )
    config = folder / path / POOLING_CONFIG
    if not config.is_file():
        raise CheckpointError(
            f"{file}: expected {path}/config.json beside it, got no such file. "
            "The download is incomplete."
        )
    pooling = _pooling(read_json(config, MAX_MODULES_BYTES), f"{path}/config.json")
    return EmbeddingHead(pooling=pooling, normalised=names[-1] == "Normalize")


def sentence_files(folder: Path) -> list[Path]:
    """The files that say which vector is the embedding of a text, those that there are."""
    files = (folder / MODULES, *sorted(folder.glob(f"[0-9]*_*/{POOLING_CONFIG}")))
    return [file for file in files if (folder / MODULES).is_file()]


def _pooling(values: dict[str, object], name: str) -> Pooling:
    """The one mode that is on."""
    modes = {key for key, value in values.items() if key.startswith("pooling_mode_") and value}
    if "pooling_mode" in values or len(modes) != 1 or not modes <= MODES.keys():
        raise ConfigError(
            f"{name}: expected one of {', '.join(MODES)}, got {sorted(modes)!r:.80}. "
            "This checkpoint cannot be loaded faithfully."
        )
    return MODES[modes.pop()]


def write_sentence_head(folder: Path, head: EmbeddingHead | None, width: int) -> None:
    """Write `modules.json` and the config of the pooling, or remove what says otherwise.

    Args:
        folder: the checkpoint.
        head: None for vectors of tokens.
        width: of the embedding.
    """
    if head is None:
        (folder / MODULES).unlink(missing_ok=True)
        return
    kinds = ["Transformer", "Pooling", *(["Normalize"] if head.normalised else [])]
    paths = ["", POOLING_FOLDER, "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=False))
    ]
    modes = {key: pooling == head.pooling for key, pooling in MODES.items()}
    (folder / POOLING_FOLDER).mkdir(exist_ok=True)
    config = {"word_embedding_dimension": width, **modes}
    _write_json(folder / POOLING_FOLDER / POOLING_CONFIG, config)
    _write_json(folder / MODULES, modules)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
