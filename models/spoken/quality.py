"""Transcripts of bundles and of PyTorch, in `models`: python -m spoken.quality BUNDLE...

Prints, for each, the word error rate, the mean error of the times, and how many transcripts equal
those of PyTorch, on held-out phrases of known voices and of voices that training never heard. A
recording has eight phrases, and about 18 seconds in five windows.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

import ortolan

from .phrases import UNSEEN_VOICES, VOICES, Timed, recording, spoken

HERE = Path(__file__).parent

RECORDINGS, PHRASES = 30, 8

VOICES_OF = {"known voices": (1001, VOICES), "unseen voices": (1002, UNSEEN_VOICES)}

Heard = list[Timed]


class Recorded(NamedTuple):
    """A sound `(N,)` and what is said in it."""

    samples: NDArray[np.float32]
    phrases: list[Timed]


Transcribe = Callable[[Sequence[NDArray[np.float32]]], list[Heard]]


def by_bundle(path: str) -> Transcribe:
    """Transcripts of a bundle, all sounds together."""
    model = ortolan.load(path, ortolan.Seq2Seq)

    def transcribe(sounds: Sequence[NDArray[np.float32]]) -> list[Heard]:
        return [
            [Timed(own.text, own.start, own.end) for own in transcript.segments if own.text]
            for transcript in model.transcribe(list(sounds))
        ]

    return transcribe


def by_pytorch(folder: Path = HERE) -> Transcribe:
    """Transcripts of transformers, one by one."""
    model: Any = WhisperForConditionalGeneration.from_pretrained(folder)
    extractor: Any = WhisperFeatureExtractor.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    first_time = model.generation_config.no_timestamps_token_id + 1

    def one(samples: NDArray[np.float32]) -> Heard:
        mel = extractor._np_extract_fbank_features(samples[None], "cpu")
        with torch.inference_mode():
            found = model.generate(
                torch.tensor(np.array(mel), dtype=torch.float32),
                return_timestamps=True,
                return_segments=True,
            )
        heard = []
        for segment in found["segments"][0]:
            words = [token for token in segment["tokens"].tolist() if token < first_time]
            text = tokenizer.decode(words, skip_special_tokens=True).strip()
            if text:
                heard.append(Timed(text, float(segment["start"]), float(segment["end"])))
        return heard

    return lambda sounds: [one(samples) for samples in sounds]


def recorded(name: str, count: int = RECORDINGS) -> list[Recorded]:
    """Held-out recordings of one of `VOICES_OF`."""
    seed, voices = VOICES_OF[name]
    phrases = list(islice(spoken(seed, held_out=True, voices=voices), count * PHRASES))
    random = np.random.default_rng(seed)
    return [
        Recorded(*recording(phrases[PHRASES * number :][:PHRASES], random))
        for number in range(count)
    ]


def word_errors(expected: Sequence[str], heard: Sequence[str]) -> int:
    """Fewest words to insert, delete or replace (Levenshtein 1966)."""
    row = list(range(len(heard) + 1))
    for word in expected:
        above, row = row, [row[0] + 1]
        for place, other in enumerate(heard):
            row.append(min(above[place + 1] + 1, row[place] + 1, above[place] + (word != other)))
    return row[-1]


def figures(asked: Sequence[Recorded], heard: Sequence[Heard]) -> tuple[float, float]:
    """The word error rate, and the mean error in seconds of the times of right recordings."""
    wrong = total = 0
    errors: list[float] = []
    for (_, phrases), found in zip(asked, heard, strict=True):
        expected = " ".join(phrase.text for phrase in phrases).split()
        wrong += word_errors(expected, " ".join(own.text for own in found).split())
        total += len(expected)
        if [phrase.text for phrase in phrases] == [own.text for own in found]:
            errors += [
                abs(ours - theirs)
                for phrase, own in zip(phrases, found, strict=True)
                for ours, theirs in ((own.start, phrase.start), (own.end, phrase.end))
            ]
    return wrong / total, float(np.mean(errors)) if errors else float("nan")


def main(paths: Sequence[str]) -> None:
    """Print a table."""
    ways = {"PyTorch": by_pytorch(), **{path: by_bundle(path) for path in paths}}
    for name in VOICES_OF:
        asked, first = recorded(name), None
        seconds = sum(len(own.samples) for own in asked) / 16_000
        print(f"{name}: {len(asked)} recordings, {seconds:.0f} seconds", flush=True)
        for way, transcribe in ways.items():
            heard = transcribe([own.samples for own in asked])
            first = first or heard
            equal = np.mean(
                [
                    [own.text for own in a] == [own.text for own in b]
                    for a, b in zip(first, heard, strict=True)
                ]
            )
            rate, error = figures(asked, heard)
            print(
                f"  {way}: {rate:.2%} of words wrong, times {error:.3f} s off; "
                f"{equal:.1%} of recordings as PyTorch",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
