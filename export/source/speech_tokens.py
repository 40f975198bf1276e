"""Tokens with which a decoder transcribes, from the generation_config.json of a checkpoint."""

from pathlib import Path

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.languages import LANGUAGES
from ortolan.export.source.side_file import read_side
from ortolan.export.source.special_tokens import GENERATION_CONFIG
from ortolan.runtime.bundle.manifest import Source, Speech
from ortolan.runtime.bundle.sound_sources import AudioSource


class _Generation(msgspec.Struct):
    """The keys that are read, as Hugging Face writes them for Whisper."""

    no_timestamps_token_id: int | None = None
    lang_to_id: dict[str, int] = {}
    task_to_id: dict[str, int] = {}
    max_initial_timestamp_index: int | None = None
    is_multilingual: bool = True
    language: str | None = None
    task: str | None = None
    forced_decoder_ids: tuple[tuple[int, int | None], ...] | None = None


def speech_tokens(
    folder: Path | None, source: Source | None, *, vocab_size: int
) -> tuple[Speech | None, tuple[int | None, ...]]:
    """The tokens of a model that hears, and those after the start where a caller names none.

    Returns:
        None if it hears nothing, or the file names no tokens; and nothing after the start if the
        language is recognized and the task is the usual one.
    """
    if folder is None or not isinstance(source, AudioSource):
        return None, ()
    path = folder / GENERATION_CONFIG
    generation = read_side(path if path.is_file() else folder / "config.json", _Generation)
    speech = _speech(generation, source.vectors, vocab_size)
    return speech, _opening(generation, folder, speech, vocab_size)


def _speech(generation: _Generation, vectors: int, vocab_size: int) -> Speech | None:
    last_before_times = generation.no_timestamps_token_id
    if last_before_times is None:
        return None
    languages, tasks = generation.lang_to_id, generation.task_to_id
    if not generation.is_multilingual:
        languages, tasks = {}, {}
    first = last_before_times + 1
    _check(vocab_size, (*languages.values(), *tasks.values(), first, first + vectors))
    return Speech(
        languages={name.strip("<|>"): token for name, token in languages.items()},
        tasks={name: tasks[name] for name in ("transcribe", "translate") if name in tasks},
        no_timestamps=last_before_times,
        first_timestamp=first,
        latest_start=generation.max_initial_timestamp_index,
    )


def _opening(
    generation: _Generation, folder: Path, speech: Speech | None, vocab_size: int
) -> tuple[int | None, ...]:
    """As in transformers, `language` and `task` come before `forced_decoder_ids`.

    Those config.json may hold as well.
    """
    if generation.language is None and generation.task is None:
        forced = generation.forced_decoder_ids
        if forced is None:
            forced = read_side(folder / "config.json", _Generation).forced_decoder_ids or ()
        if [place for place, _ in forced] != [*range(1, len(forced) + 1)]:
            raise OptionError(
                f"{GENERATION_CONFIG}: forced_decoder_ids must be at the places 1, 2, ... (got "
                f"{forced!r:.80}). Correct or remove them."
            )
        opening = [token for _, token in forced]
    else:
        opening = _named_opening(generation)
    if speech is not None and opening[-1:] == [speech.no_timestamps]:
        opening.pop()  # the caller decides about times
    if speech is None or not speech.languages:
        opening = [token for token in opening if token is not None]
    if None in opening[1:]:
        raise OptionError(
            f"{GENERATION_CONFIG}: only the first of forced_decoder_ids may be null, for the "
            "language. Correct or remove them."
        )
    _check(vocab_size, tuple(token for token in opening if token is not None))
    is_usual = speech is not None and opening == [None, speech.tasks.get("transcribe")]
    return () if is_usual else tuple(opening)


def _named_opening(generation: _Generation) -> list[int | None]:
    """The tokens of the `language` and the `task` of a generation_config.json."""
    named = generation.language
    code = None if named is None else LANGUAGES.get(named.lower(), named.lower().strip("<|>"))
    language = None if code is None else generation.lang_to_id.get(f"<|{code}|>")
    name = generation.task or "transcribe"
    task = generation.task_to_id.get(name)
    if (named is not None and language is None) or task is None:
        raise OptionError(
            f"{GENERATION_CONFIG}: language and task must be in lang_to_id and task_to_id (got "
            f"{named!r:.40} and {name!r:.40}). Correct or remove them."
        )
    return [language, task]


def _check(vocab_size: int, ids: tuple[int, ...]) -> None:
    outside = [token for token in ids if not 0 <= token < vocab_size]
    if outside:
        raise OptionError(
            f"{GENERATION_CONFIG}: tokens of languages, tasks and times must be from 0 to "
            f"{vocab_size - 1} (got {outside[:5]}). Correct lang_to_id, task_to_id, "
            "forced_decoder_ids or no_timestamps_token_id."
        )
