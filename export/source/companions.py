"""Files of a checkpoint that go into a bundle: the tokenizer and its companions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Companion, content_of
from ortolan.export.source.special_tokens import GENERATION_CONFIG
from ortolan.export.source.token_files import token_files
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.runtime.inputs.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"

COMPANIONS = (TOKENIZER, "chat_template.jinja", GENERATION_CONFIG, "tokenizer_config.json")
"""Files that a bundle has from a checkpoint; an encoder's has only the tokenizer."""


def companions_of(
    source: Path | Checkpoint | None,
    tokenizer: str | Path | None,
    *,
    vocab_size: int,
    has_vocabulary: bool,
    has_decoder: bool,
) -> dict[str, Companion]:
    """Files for the bundle, by name. Tokens that other files declare are in tokenizer.json."""
    names = COMPANIONS if has_decoder else (TOKENIZER,) if has_vocabulary else ()
    files = _files(source, [name for name in names if tokenizer is None or name != TOKENIZER])
    if tokenizer is None:
        folder = source.folder if isinstance(source, Checkpoint) else source
        return _completed(files, folder, names, vocab_size)
    if TOKENIZER not in names:
        raise OptionError(
            f"tokenizer: an encoder of images or sounds has none (got {tokenizer}). Leave it out."
        )
    path = Path(tokenizer)
    files |= _files(path, names) if path.is_dir() else {TOKENIZER: path}
    if not files.get(TOKENIZER, path).is_file():
        raise OptionError(f"{tokenizer}: expected a tokenizer.json, got no such file.")
    return _completed(files, path, names, vocab_size) if path.is_dir() else {**files}


def tokenizer_of(companions: Mapping[str, Companion], vocab_size: int) -> Tokenizer | None:
    """Load the tokenizer as the runtime will, so that a bad one fails at export."""
    companion = companions.get(TOKENIZER)
    if companion is None:
        return None
    return Tokenizer.from_bytes(content_of(companion), model_vocab_size=vocab_size)


def _completed(
    files: Mapping[str, Path], folder: Path | None, names: Sequence[str], vocab_size: int
) -> dict[str, Companion]:
    if folder is None or TOKENIZER not in files:
        return {**files}
    found = token_files(folder, files[TOKENIZER].read_bytes(), vocab_size=vocab_size)
    merged: dict[str, Companion] = {**files, **found.changed}
    return {name: merged[name] for name in names if name in merged and name not in found.dropped}


def _files(source: Path | Checkpoint | None, names: Sequence[str]) -> dict[str, Path]:
    match source:
        case None:
            return {}
        case Checkpoint():
            paths = {name: source.companion(name) for name in names}
            return {name: path for name, path in paths.items() if path is not None}
        case folder:
            return {name: folder / name for name in names if (folder / name).is_file()}
