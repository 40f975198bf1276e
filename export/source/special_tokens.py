"""Ids with a meaning, from a config and from the files beside it.

`generation_config.json` has more of them than a model's config: every end of a turn, tokens that
are forced, and tokens that are never chosen.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from ortolan.export.errors import OptionError
from ortolan.runtime.bundle.manifest import Tokens

GENERATION_CONFIG = "generation_config.json"


class _Generation(msgspec.Struct):
    """The fields read from generation_config.json, or from config.json without one."""

    eos_token_id: int | tuple[int, ...] | None = None
    decoder_start_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | tuple[int, ...] | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None
    suppress_tokens: tuple[int, ...] | None = None
    force_bos_token_to_be_generated: bool | None = None


def special_tokens(own: Tokens, folder: Path | None, *, vocab_size: int) -> Tokens:
    """The special ids of a model with a vocabulary.

    Args:
        own: those of its config; `start` where its decoder writes after a source.
        folder: with the files beside it; `None` where there are none.
        vocab_size: special ids are below it.

    Raises:
        OptionError: the file cannot be read, asks for what a bundle does not have, or an id is
            outside of the vocabulary.
    """
    given = _read(folder)
    eos, last = _ids(given.eos_token_id), _ids(given.forced_eos_token_id)
    words = given.bad_words_ids or ()
    if len(last) > 1 or any(len(word) != 1 for word in words):
        raise OptionError(
            f"{GENERATION_CONFIG}: expected one forced_eos_token_id and bad_words_ids of one token "
            "each, got several. Remove those that a bundle cannot hold."
        )
    start, first = None, None
    if own.start is not None:
        start, first = given.decoder_start_token_id, given.forced_bos_token_id
        start = own.start if start is None else start
        first = own.bos if given.force_bos_token_to_be_generated else first
    ends = eos or own.eos
    # transformers does not take an end of a text for a bad word
    bad = {word[0] for word in words} - set(ends)
    suppressed = bad | set(given.suppress_tokens or ())
    tokens = (ends, *((start, first), last, sorted(suppressed)))
    _check(vocab_size, (own.bos, own.pad, *(i for ids in tokens for i in ids)))
    return Tokens(
        bos=own.bos,
        eos=ends,
        pad=own.pad,
        start=start,
        forced_first=first,
        forced_last=last[0] if last else None,
        suppressed=tuple(sorted(suppressed)),
    )


def _read(folder: Path | None) -> _Generation:
    """The file, or the model's config, which held these values before there was one."""
    if folder is None:
        return _Generation()
    own = folder / GENERATION_CONFIG
    path = own if own.is_file() else folder / "config.json"
    try:
        given = msgspec.json.decode(path.read_bytes(), type=_Generation)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(
            f"{path}: expected a JSON object with eos_token_id, got {error}. Correct or remove it."
        ) from error
    return given


def _ids(given: int | tuple[int, ...] | None) -> tuple[int, ...]:
    match given:
        case None:
            return ()
        case int(one):
            return (one,)
        case several:
            return several


def _check(vocab_size: int, ids: Iterable[int | None]) -> None:
    outside = [i for i in ids if i is not None and not 0 <= i < vocab_size]
    if outside:
        raise OptionError(
            f"special tokens: expected ids from 0 to {vocab_size - 1}, got {outside}. "
            "Correct config.json or generation_config.json."
        )
