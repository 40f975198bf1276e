"""Transcripts of sounds: by an encoder-decoder, with times if it writes them, or with CTC."""

from collections.abc import Mapping
from copy import deepcopy
from itertools import groupby
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.sources import sound_inputs
from ortolan.export.witness.topic import Topic
from ortolan.export.witness.topics.media_inputs import sounds, whole_features
from ortolan.runtime.bundle.sound_sources import AudioSource
from ortolan.runtime.transcription.recording import TOKENS_PER_SECOND

FORCING = ("task", "language", "forced_decoder_ids")
"""Settings of `generate` that name the tokens before a text."""


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Sounds, for a bundle with the trained model's numbers that transcribes."""
    manifest, source = bundled.manifest, bundled.reads
    output = manifest.output
    is_ctc = output is not None and output.kind == "ctc" and bool(output.labels)
    if not bundled.has_exact_numbers or not (is_ctc or manifest.kind == "encoder-decoder"):
        return {}
    asked = sounds(bundled)
    if manifest.speech is not None:
        return asked
    if isinstance(source, AudioSource):  # which writes no times, and so hears one window
        return {name: own[: source.samples] for name, own in asked.items()}
    # long waves are cut in different ways
    return {name: own for name, own in asked.items() if len(own) <= source.samples}


def ours(bundled: Bundled, samples: NDArray[np.float32]) -> Answer:
    """The text of CTC, or the tokens of each segment, with those of times, and its end in seconds.

    transformers lets a segment that is alone in its window start with the window.
    """
    transcript = bundled.model.transcribe(samples)
    if bundled.manifest.kind == "encoder":
        return " ".join(transcript.text.split())
    segments = transcript.segments
    ends = [own.end for own in segments if bundled.manifest.speech is not None]
    return {"tokens": [list(own.tokens) for own in segments], "ends": ends}


@torch.inference_mode()
def theirs(publisher: Publisher, samples: NDArray[np.float32]) -> Answer:
    """The same from the most probable symbols, or from `generate`."""
    model = publisher.model
    if not model.config.is_encoder_decoder:
        logits = model(**sound_inputs(publisher, samples)).logits
        return " ".join(publisher.tokenizer.decode(logits[0].argmax(-1)).split())
    model.generation_config = generation = deepcopy(publisher.generation)
    inputs = whole_features(publisher, samples)
    seconds = len(samples) / publisher.feature_extractor.sampling_rate
    start = [generation.decoder_start_token_id]
    if getattr(generation, "no_timestamps_token_id", None) is not None:
        _name_task(generation)
        found = model.generate(**inputs, return_timestamps=True, return_segments=True)
        segments, no_times = found["segments"][0], generation.no_timestamps_token_id
        heard = _heard(segments, seconds)
        return {
            "tokens": [_whole(own["tokens"].tolist(), no_times) for own in heard],
            # a bundle's times are within the sound
            "ends": [min(float(own["end"]), seconds) for own in heard],
        }
    options: dict[str, Any] = {}
    if model.config.model_type == "whisper":  # an old file, without names of tokens
        start += [token for _, token in getattr(generation, "forced_decoder_ids", None) or ()]
    else:
        options = {"do_sample": False, "max_new_tokens": ceil(seconds * TOKENS_PER_SECOND)}
    ids = model.generate(**inputs, **options)[0].tolist()
    written = ids[len(start) :] if ids[: len(start)] == start else ids
    tokens = [token for token in written if token != model.config.eos_token_id]
    return {"tokens": [tokens], "ends": []}


def _name_task(generation: Any) -> None:
    """Transcribe where a checkpoint forces nothing; see `known.NO_TASK`."""
    is_free = not any(getattr(generation, name, None) for name in FORCING)
    if is_free and getattr(generation, "task_to_id", None):
        generation.task = "transcribe"


def _heard(found: Any, seconds: float) -> list[Any]:
    """Segments of the windows that begin before a sound ends; see `known.SILENCE`."""
    segments: list[Any] = []
    for _, window in groupby(found, key=lambda own: id(own["result"])):
        if segments and float(segments[-1]["end"]) >= seconds:
            break
        segments += window
    return segments


def _whole(tokens: list[int], no_times: int) -> list[int]:
    """Tokens of a segment, without the time that starts the next one."""
    return tokens[:-1] if len(tokens) > 1 and min(tokens[-2:]) > no_times else tokens


TRANSCRIPTS = Topic(name="transcripts", questions=questions, ours=ours, theirs=theirs)
