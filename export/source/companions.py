"""Files that go into a bundle unchanged: the tokenizer and its companions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ortolan.export.errors import OptionError
from ortolan.export.source.special_tokens import GENERATION_CONFIG
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.runtime.inputs.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"

COMPANIONS = (TOKENIZER, "chat_template.jinja", GENERATION_CONFIG, "tokenizer_config.json")
"""Files that a bundle copies from a checkpoint; an encoder's copies only the tokenizer."""


def companions_of(
    source: Path | Checkpoint | None,
    tokenizer: str | Path | None,
    *,
    has_vocabulary: bool,
    has_decoder: bool,
) -> dict[str, Path]:
    """Files to copy into the bundle, by name.

    Args:
        source: the checkpoint, or the folder with the files, if any.
        tokenizer: a tokenizer.json, or a folder with one, to use instead.
        has_vocabulary: whether the model reads or writes tokens.
        has_decoder: whether it writes them.

    Raises:
        OptionError: the tokenizer does not exist, or the model has no vocabulary.
        CheckpointError: the checkpoint has a tokenizer of an unknown kind.
    """
    names = COMPANIONS if has_decoder else (TOKENIZER,) if has_vocabulary else ()
    files = _files(source, [name for name in names if tokenizer is None or name != TOKENIZER])
    if tokenizer is None:
        return files
    if TOKENIZER not in names:
        raise OptionError(
            f"tokenizer: an encoder of images or sounds has none (got {tokenizer}). Leave it out."
        )
    path = Path(tokenizer)
    files |= _files(path, names) if path.is_dir() else {TOKENIZER: path}
    if not files.get(TOKENIZER, path).is_file():
        raise OptionError(f"{tokenizer}: expected a tokenizer.json, got no such file.")
    return files


def tokenizer_of(companions: Mapping[str, Path], vocab_size: int) -> Tokenizer | None:
    """Load the tokenizer as the runtime will, so that a bad one fails at export.

    Raises:
        TokenizerError: it is damaged, or has ids from `vocab_size` on.
    """
    path = companions.get(TOKENIZER)
    if path is None:
        return None
    return Tokenizer.from_bytes(path.read_bytes(), model_vocab_size=vocab_size)


def _files(source: Path | Checkpoint | None, names: Sequence[str]) -> dict[str, Path]:
    match source:
        case None:
            return {}
        case Checkpoint():
            paths = {name: source.companion(name) for name in names}
            return {name: path for name, path in paths.items() if path is not None}
        case folder:
            return {name: folder / name for name in names if (folder / name).is_file()}
