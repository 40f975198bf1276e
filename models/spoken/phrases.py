"""Spoken phrases: text from a small grammar, spoken by espeak-ng, between pauses and in noise.

`python -m spoken.phrases FILE` in `models` writes a recording.

Training knows neither the voices of `UNSEEN_VOICES` nor the phrases that `is_held_out` chooses.
"""

import argparse
import io
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import NamedTuple

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

RATE = 16_000

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COLORS = ("red", "blue", "green", "black", "white", "yellow")
ANIMALS = ("dog", "cat", "horse", "bird", "duck", "frog", "cow", "fox")
ACTIONS = ("sleep", "sing", "wait", "jump", "run")
PLACES = ("here", "outside", "at home", "in the garden", "under the tree", "on the hill")

ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-029")
VARIANTS = ("m1", "m2", "m3", "m4", "m5", "m6", "f1", "f2", "f3", "f4")
UNSEEN_VOICES = ("en-us+m7", "en-gb+m7", "en-us+f5", "en-gb+f5")
VOICES = tuple(f"{accent}+{variant}" for accent, variant in product(ACCENTS, VARIANTS))

FLOOR = 0.01
"""Amplitude below which a sound is silence at its ends."""


class Spoken(NamedTuple):
    """A phrase and its sound `(N,)`, without silence around it."""

    text: str
    samples: NDArray[np.float32]


class Timed(NamedTuple):
    """A phrase and when it begins and ends, in seconds."""

    text: str
    start: float
    end: float


def all_phrases() -> list[str]:
    """Every phrase of the grammar."""
    phrases = []
    for number, color, animal, action, place in product(NUMBERS, COLORS, ANIMALS, ACTIONS, PLACES):
        noun, verb = (animal, f"{action}s") if number == "one" else (_plural(animal), action)
        phrases.append(f"{number} {color} {noun} {verb} {place}")
    return phrases


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("x") else f"{noun}s"


def is_held_out(phrase: str) -> bool:
    """Whether training does not know a phrase: one of ten."""
    return zlib.crc32(phrase.encode()) % 10 == 0


def speak(text: str, *, voice: str, speed: int, pitch: int) -> NDArray[np.float32]:
    """Synthesize a phrase; the speed is in words a minute, the pitch from 0 to 99."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", text]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    samples, rate = soundfile.read(io.BytesIO(_whole(data)), dtype="float32")
    resampled: NDArray[np.float32] = soxr.resample(samples, rate, RATE)
    loud = np.flatnonzero(np.abs(resampled) > FLOOR)
    trimmed: NDArray[np.float32] = resampled[loud[0] : loud[-1] + 1]
    return trimmed


def _whole(data: bytes) -> bytes:
    """A WAV file with its true sizes, which are unknown while it is written to a pipe."""
    sizes = (len(data) - 8).to_bytes(4, "little"), (len(data) - 44).to_bytes(4, "little")
    return data[:4] + sizes[0] + data[8:40] + sizes[1] + data[44:]


def spoken(
    seed: int, *, held_out: bool = False, voices: Sequence[str] = VOICES
) -> Iterator[Spoken]:
    """Speak phrases without end, each by a voice, a speed and a pitch of its own."""
    random = np.random.default_rng(seed)
    phrases = [phrase for phrase in all_phrases() if is_held_out(phrase) == held_out]
    while True:
        text, voice = str(random.choice(phrases)), str(random.choice(voices))
        speed, pitch = int(random.integers(140, 211)), int(random.integers(25, 76))
        yield Spoken(text, speak(text, voice=voice, speed=speed, pitch=pitch))


def recording(
    phrases: Sequence[Spoken], random: np.random.Generator
) -> tuple[NDArray[np.float32], list[Timed]]:
    """Place phrases one after another, with pauses and in noise.

    Returns:
        Samples `(N,)`, and the phrases with their times.
    """
    parts: list[NDArray[np.float32]] = []
    timed, count = [], 0
    for text, samples in phrases:
        pause = int(random.uniform(0.1, 0.9) * RATE)
        loud = samples * np.float32(random.uniform(0.2, 1.0))
        parts += [np.zeros(pause, np.float32), loud]
        start = count + pause
        count = start + len(samples)
        timed.append(Timed(text, start / RATE, count / RATE))
    last = int(random.uniform(0.1, 0.9) * RATE)
    whole = np.concatenate([*parts, np.zeros(last, np.float32)])
    noise = 10 ** random.uniform(-4, -1.7) * random.standard_normal(len(whole))
    return (whole + noise).astype(np.float32), timed


def main(path: str) -> None:
    """Write a recording of six held-out phrases by voices that training never heard."""
    phrases = list(islice(spoken(7, held_out=True, voices=UNSEEN_VOICES), 6))
    samples, timed = recording(phrases, np.random.default_rng(7))
    soundfile.write(path, samples / np.abs(samples).max() * 0.9, RATE)
    for text, start, end in timed:
        print(f"{start:8.2f} {end:8.2f}  {text}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    main(parser.parse_args().file)
