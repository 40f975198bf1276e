"""Tokens with which a decoder transcribes, from the generation_config.json of a checkpoint."""

from pathlib import Path

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.special_tokens import GENERATION_CONFIG
from ortolan.runtime.bundle.manifest import Speech
from ortolan.runtime.bundle.sources import AudioSource, Source


class _Generation(msgspec.Struct):
    """The keys that are read, as Hugging Face writes them for Whisper."""

    no_timestamps_token_id: int | None = None
    lang_to_id: dict[str, int] = {}
    task_to_id: dict[str, int] = {}
    max_initial_timestamp_index: int | None = None
    is_multilingual: bool = True


def speech_tokens(folder: Path | None, source: Source | None, *, vocab_size: int) -> Speech | None:
    """The tokens of a model with a vocabulary; None if it hears nothing, or the file names none.

    Args:
        folder: of the checkpoint's files, if any.
        source: what the encoder reads.
        vocab_size: every token is below it.

    Raises:
        OptionError: the file cannot be read, or a token is outside the vocabulary.
    """
    if folder is None or not isinstance(source, AudioSource):
        return None
    path = folder / GENERATION_CONFIG
    if not path.is_file():
        return None
    try:
        generation = msgspec.json.decode(path.read_bytes(), type=_Generation)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(
            f"{path}: expected a JSON object with no_timestamps_token_id, got {error}. Correct or "
            "remove it."
        ) from error
    last_before_times = generation.no_timestamps_token_id
    if last_before_times is None:
        return None
    languages, tasks = generation.lang_to_id, generation.task_to_id
    if not generation.is_multilingual:
        languages, tasks = {}, {}
    first = last_before_times + 1
    _check(vocab_size, (*languages.values(), *tasks.values(), first, first + source.vectors))
    return Speech(
        languages={name.strip("<|>"): token for name, token in languages.items()},
        tasks={name: tasks[name] for name in ("transcribe", "translate") if name in tasks},
        no_timestamps=last_before_times,
        first_timestamp=first,
        latest_start=generation.max_initial_timestamp_index,
    )


def _check(vocab_size: int, ids: tuple[int, ...]) -> None:
    outside = [token for token in ids if not 0 <= token < vocab_size]
    if outside:
        raise OptionError(
            f"{GENERATION_CONFIG}: tokens of languages, tasks and times must be from 0 to "
            f"{vocab_size - 1} (got {outside[:5]}). Correct lang_to_id, task_to_id or "
            "no_timestamps_token_id."
        )
