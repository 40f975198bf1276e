"""Special tokens, from a config and from the generation_config.json with it.

The latter has more than a model's config: every EOS, forced tokens, and tokens that are never
chosen.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.side_file import read_side
from ortolan.runtime.bundle.manifest import Tokens

GENERATION_CONFIG = "generation_config.json"

NO_PAD = -1
"""The pad_token_id of older Llama checkpoints, which have no padding."""


class _Generation(msgspec.Struct):
    """The fields that are read; older checkpoints have them in config.json."""

    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    decoder_start_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | tuple[int, ...] | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None
    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None
    force_bos_token_to_be_generated: bool | None = None


def special_tokens(own: Tokens, folder: Path | None, *, vocab_size: int) -> Tokens:
    """The special tokens of a model with a vocabulary."""
    generation = _read(folder)
    eos, last = _ids(generation.eos_token_id), _ids(generation.forced_eos_token_id)
    words = generation.bad_words_ids or ()
    if len(last) > 1 or any(len(word) != 1 for word in words):
        raise OptionError(
            f"{GENERATION_CONFIG}: a bundle holds one forced_eos_token_id, and bad_words_ids of "
            "one token each. Remove the others."
        )
    bos = own.bos if generation.bos_token_id is None else generation.bos_token_id
    start, first = None, None
    if own.start is not None:
        start, first = generation.decoder_start_token_id, generation.forced_bos_token_id
        start = own.start if start is None else start
        first = bos if generation.force_bos_token_to_be_generated else first
    ends = eos or own.eos
    # As in transformers, an EOS is never a bad word.
    bad = {word[0] for word in words} - set(ends)
    suppressed = sorted(bad | set(generation.suppress_tokens or ()))
    begin = tuple(sorted(set(generation.begin_suppress_tokens or ())))
    pad = None if own.pad == NO_PAD else own.pad
    _check(vocab_size, (bos, pad, *ends, start, first, *last, *suppressed, *begin))
    return Tokens(
        bos=bos,
        eos=ends,
        pad=pad,
        start=start,
        forced_first=first,
        forced_last=last[0] if last else None,
        suppressed=tuple(suppressed),
        suppressed_first=begin,
    )


def _read(folder: Path | None) -> _Generation:
    """Read generation_config.json, or config.json if there is none."""
    if folder is None:
        return _Generation()
    own = folder / GENERATION_CONFIG
    return read_side(own if own.is_file() else folder / "config.json", _Generation)


def _ids(ids: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else ids


def _check(vocab_size: int, ids: Iterable[int | None]) -> None:
    outside = [i for i in ids if i is not None and not 0 <= i < vocab_size]
    if outside:
        raise OptionError(
            f"special tokens must be from 0 to {vocab_size - 1} (got {outside}). Correct "
            "config.json or generation_config.json."
        )
