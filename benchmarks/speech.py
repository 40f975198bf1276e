"""Speed of transcription: Ortolan beside transformers, and CTranslate2 if it is installed.

    python benchmarks/speech.py
    pip install --target build/ctranslate2 ctranslate2
    PYTHONPATH=build/ctranslate2 python benchmarks/speech.py -r 9

The model has the shape of Whisper tiny or base and random weights, and writes a fixed number of
tokens for each window of 30 seconds. All ways stay loaded and alternate, each round with another
sound. Ortolan's time includes the spectrogram; the others get theirs ready. Prints a table and
writes it to benchmarks/results/speech.md.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GenerationMixin,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import ortolan
import report
from in_turn import in_turn, rows
from ortolan.export.options import ExportOptions, Int4
from ortolan.runtime.bundle.sources import AudioSource
from ortolan.runtime.inputs.audio import read_chunks
from prepare import say
from script import add_folders, add_timing, count, exit_status

RATE, SECONDS, BINS = 16_000, 30, 80

SHAPES = {"tiny": (384, 4, 6), "base": (512, 6, 8)}
"""Width, layers of each side, and heads."""

VOCABULARY, START, EOS = 51_865, 50_258, 50_257

SPECIAL = {
    EOS: "<|endoftext|>",
    START: "<|startoftranscript|>",
    50_359: "<|transcribe|>",
    50_362: "<|nospeech|>",
    50_363: "<|notimestamps|>",
}
"""Tokens that CTranslate2 looks for."""

PRECISIONS: dict[str, Any] = {"fp32": "fp32", "int8": "int8", "int4": Int4(effort="quick")}

SOURCE = AudioSource(rate=RATE, window=400, hop=160, bins=BINS, frames=3000, vectors=1500)

Samples = NDArray[np.float32]
Transcribe = Callable[[Samples, NDArray[np.float32]], object]


def write_checkpoint(folder: Path, shape: str) -> None:
    """Write the checkpoint, once."""
    if (folder / "config.json").exists():
        return
    torch.manual_seed(0)
    width, layers, heads = SHAPES[shape]
    sides: dict[str, Any] = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", layers),
            ("attention_heads", heads),
            ("ffn_dim", 4 * width),
        )
    }
    config = WhisperConfig(vocab_size=VOCABULARY, d_model=width, num_mel_bins=BINS, **sides)
    model: Any = WhisperForConditionalGeneration(config)
    model.save_pretrained(folder)
    words = {SPECIAL.get(number, f"w{number}"): number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    extractor = {"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": SECONDS}
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))


def by_ortolan(checkpoint: Path, work: Path, name: str, args: argparse.Namespace) -> Transcribe:
    """Transcribe with a bundle."""
    out = work / name
    if not (out / "manifest.json").exists():
        say(f"exporting {name}")
        options = ExportOptions(allow_poor=True, proof="quick")
        ortolan.export(checkpoint, out, precision=PRECISIONS[name], options=options, force=True)
    model = ortolan.load(out, ortolan.Seq2Seq, threads=args.threads)

    def transcribe(samples: Samples, _: NDArray[np.float32]) -> object:
        return model.generate(samples, max_new_tokens=args.tokens, ignore_eos=True).tokens

    return transcribe


def by_transformers(checkpoint: Path, args: argparse.Namespace) -> Transcribe:
    """Transcribe with transformers in float32."""
    torch.set_num_threads(args.threads)
    model: Any = WhisperForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32)
    generate: Any = GenerationMixin.generate

    def transcribe(_: Samples, mel: NDArray[np.float32]) -> object:
        with torch.inference_mode():
            return generate(
                model,
                input_features=torch.from_numpy(mel),
                max_new_tokens=args.tokens,
                min_new_tokens=args.tokens,
                do_sample=False,
            )

    return transcribe


def by_ctranslate2(
    checkpoint: Path, work: Path, precision: str, args: argparse.Namespace
) -> Transcribe:
    """Transcribe with CTranslate2, the engine of faster-whisper, greedily."""
    ctranslate2: Any = import_module("ctranslate2")

    out = work / f"ctranslate2-{precision}"
    if not out.exists():
        say(f"converting for CTranslate2, {precision}")
        converter = ctranslate2.converters.TransformersConverter(str(checkpoint))
        converter.convert(str(out), quantization=precision)
    model = ctranslate2.models.Whisper(
        str(out), device="cpu", compute_type=precision, intra_threads=args.threads
    )

    def transcribe(_: Samples, mel: NDArray[np.float32]) -> object:
        features = ctranslate2.StorageView.from_array(mel)
        return model.generate(
            features,
            [[START]],
            beam_size=1,
            max_length=args.tokens + 1,
            suppress_tokens=[EOS],
            suppress_blank=False,
        )

    return transcribe


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time transcriptions.")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("-n", "--tokens", type=count, default=80, help="tokens for 30 seconds")
    add_timing(parser, rounds=7)
    add_folders(parser)
    return parser.parse_args(arguments)


def side_by_side(args: argparse.Namespace) -> None:
    """Prepare, measure alternately, print and write."""
    work = args.work / f"whisper-{args.shape}"
    checkpoint = work / "checkpoint"
    write_checkpoint(checkpoint, args.shape)
    ways = {name: by_ortolan(checkpoint, work, name, args) for name in PRECISIONS}
    if find_spec("ctranslate2"):
        for precision in ("float32", "int8"):
            ways[f"CTranslate2 {precision}"] = by_ctranslate2(checkpoint, work, precision, args)
    ways["transformers fp32"] = by_transformers(checkpoint, args)
    seconds = in_turn(
        {name: partial(_heard, way) for name, way in ways.items()}, _sound, rounds=args.rounds
    )
    text = "\n".join(_table(args, seconds)) + "\n"
    print(text)
    (args.out / "speech.md").write_text(text, encoding="utf-8")


def _sound(random: np.random.Generator) -> tuple[Samples, NDArray[np.float32]]:
    samples = (0.1 * random.standard_normal(RATE * SECONDS)).astype(np.float32)
    return samples, read_chunks(samples, SOURCE)


def _heard(transcribe: Transcribe, given: tuple[Samples, NDArray[np.float32]]) -> object:
    return transcribe(*given)


def _table(args: argparse.Namespace, seconds: dict[str, list[float]]) -> list[str]:
    lines = [
        "# Transcription",
        "",
        f"{report.machine()['processor']}, {args.threads} threads, {args.rounds} rounds in turn. "
        f"Random weights in the shape of Whisper {args.shape};",
        f"{SECONDS} seconds of sound to {args.tokens} tokens, greedily. Ortolan's time includes "
        "the spectrogram, which the others get ready.",
        "",
        "| | ms, median | range | times as fast as the sound | as transformers |",
        "|---|---:|---:|---:|---:|",
    ]
    speed = rows(
        seconds,
        reference="transformers fp32",
        extra=lambda typical: f"{SECONDS / typical:.0f}",
    )
    return lines + speed


if __name__ == "__main__":
    sys.exit(exit_status(side_by_side, parse()))
