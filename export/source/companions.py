"""Files that go into a bundle as they are: the tokenizer and what lies beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ortolan.export.errors import OptionError
from ortolan.export.source.special_tokens import GENERATION_CONFIG
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.runtime.inputs.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"

COMPANIONS = (TOKENIZER, "chat_template.jinja", GENERATION_CONFIG, "tokenizer_config.json")
"""Files of a checkpoint that are copied into a bundle; of an encoder, only the tokenizer."""


def companions_of(
    beside: Path | Checkpoint | None,
    tokenizer: str | Path | None,
    *,
    has_vocabulary: bool,
    has_decoder: bool,
) -> dict[str, Path]:
    """Files to copy into the bundle, by name.

    Args:
        beside: the folder where they lie, or the checkpoint that they belong to; None where there
            is none.
        tokenizer: a tokenizer.json, or a folder with one, in place of that of `beside`.
        has_vocabulary: the model reads or writes texts.
        has_decoder: it writes them.

    Raises:
        OptionError: a tokenizer that does not exist, or for a model that reads no texts.
        CheckpointError: the checkpoint has a tokenizer of a kind that is not known.
    """
    names = COMPANIONS if has_decoder else (TOKENIZER,) if has_vocabulary else ()
    found = _files(beside, [name for name in names if tokenizer is None or name != TOKENIZER])
    if tokenizer is None:
        return found
    if TOKENIZER not in names:
        raise OptionError(
            f"{tokenizer}: expected no tokenizer for an encoder of images, got one. Leave it out."
        )
    given = Path(tokenizer)
    found |= _files(given, names) if given.is_dir() else {TOKENIZER: given}
    if not found.get(TOKENIZER, given).is_file():
        raise OptionError(f"{tokenizer}: expected a tokenizer.json, got no such file.")
    return found


def tokenizer_of(companions: Mapping[str, Path], vocab_size: int) -> Tokenizer | None:
    """A tokenizer as the runtime reads it, so that one it cannot load fails here.

    Raises:
        TokenizerError: it is damaged, or has ids from `vocab_size` on.
    """
    path = companions.get(TOKENIZER)
    if path is None:
        return None
    return Tokenizer.from_bytes(path.read_bytes(), model_vocab_size=vocab_size)


def _files(beside: Path | Checkpoint | None, names: Sequence[str]) -> dict[str, Path]:
    match beside:
        case None:
            return {}
        case Checkpoint():
            found = {name: beside.companion(name) for name in names}
            return {name: path for name, path in found.items() if path is not None}
        case folder:
            return {name: folder / name for name in names if (folder / name).is_file()}
