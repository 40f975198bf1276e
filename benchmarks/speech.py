"""Speed of transcription: Ortolan beside transformers, and CTranslate2 if it is installed.

    python benchmarks/speech.py
    python benchmarks/speech.py --model moonshine-tiny
    pip install --target build/ctranslate2 ctranslate2
    PYTHONPATH=build/ctranslate2 python benchmarks/speech.py -r 9

Models have the shapes of published ones and random weights, and write a fixed number of tokens for
30 seconds of sound; wav2vec 2.0 scores its symbols instead. All ways stay loaded and alternate,
each round with another sound. Ortolan's time includes what is computed of the samples first, such
as a spectrogram; the others get that ready. Prints a table and writes it to
benchmarks/results/speech.md or speech-MODEL.md.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers

import ortolan
import report
from in_turn import in_turn, rows
from ortolan.export.options import ExportOptions, Int4
from prepare import say
from script import add_folders, add_timing, count, exit_status

RATE, SECONDS = 16_000, 30

PRECISIONS: dict[str, Any] = {"fp32": "fp32", "int8": "int8", "int4": Int4(effort="quick")}

REFERENCE = "transformers fp32"

Samples = NDArray[np.float32]
Features = dict[str, Any]
"""Inputs of a model of transformers."""

Transcribe = Callable[[Samples, Features], object]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model with random weights.

    Attributes:
        words: for the heading.
        model: name of its class in transformers; the class of its config begins with `config`.
        config: start of the name of the config's class.
        values: of the config.
        extractor: keys of the feature extractor.
        special: tokens that are not words, by id.
        kind: class of the bundle's model.
        tokens: whether it generates tokens; otherwise all symbols are scored at once.
        peers: whether CTranslate2 runs such a model.
    """

    words: str
    model: str
    config: str
    values: dict[str, Any]
    extractor: dict[str, Any]
    special: dict[int, str] = field(default_factory=dict)
    kind: Any = ortolan.Seq2Seq
    tokens: bool = True
    peers: bool = False


START, EOS = 50_258, 50_257


def _whisper(width: int, layers: int, heads: int) -> Shape:
    """Whisper of a width, with as many layers on each side."""
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", layers),
            ("attention_heads", heads),
            ("ffn_dim", 4 * width),
        )
    }
    return Shape(
        words=f"Whisper, {width} wide with {layers} layers on each side",
        model="WhisperForConditionalGeneration",
        config="Whisper",
        values={"vocab_size": 51_865, "d_model": width, "num_mel_bins": 80, **sides},
        extractor={"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": SECONDS},
        special={
            EOS: "<|endoftext|>",
            START: "<|startoftranscript|>",
            50_359: "<|transcribe|>",
            50_362: "<|nospeech|>",
            50_363: "<|notimestamps|>",
        },  # CTranslate2 looks for them
        peers=True,
    )


_AUDIO = 151_676

SHAPES = {
    "whisper-tiny": _whisper(384, 4, 6),
    "whisper-base": _whisper(512, 6, 8),
    "moonshine-tiny": Shape(
        words="Moonshine tiny",
        model="MoonshineForConditionalGeneration",
        config="Moonshine",
        values={"vocab_size": 32_768, "max_position_embeddings": 194},
        extractor={"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": False},
    ),
    "wav2vec2-base": Shape(
        words="wav2vec 2.0 base, which scores 32 symbols every 20 ms",
        model="Wav2Vec2ForCTC",
        config="Wav2Vec2",
        values={"vocab_size": 32, "ctc_loss_reduction": "mean"},
        extractor={"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": True},
        special={0: "<pad>", 1: "|"},
        kind=ortolan.Encoder,
        tokens=False,
    ),
    "qwen3-asr": Shape(
        words="Qwen3-ASR 0.6B",
        model="Qwen3ASRForConditionalGeneration",
        config="Qwen3ASR",
        values={
            "audio_config": {
                "model_type": "qwen3_asr_encoder",
                "num_mel_bins": 128,
                "d_model": 896,
                "encoder_layers": 18,
                "encoder_attention_heads": 14,
                "encoder_ffn_dim": 3584,
                "downsample_hidden_size": 480,
                "n_window": 50,
                "n_window_infer": 800,
                "output_dim": 1024,
            },
            "text_config": {
                "model_type": "qwen3",
                "vocab_size": 151_936,
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "max_position_embeddings": 2048,
                "tie_word_embeddings": True,
            },
            "audio_token_id": _AUDIO,
            "eos_token_id": [151_645],
            "tie_word_embeddings": True,
        },
        extractor={
            "feature_extractor_type": "Qwen3ASRFeatureExtractor",
            "feature_size": 128,
            "sampling_rate": RATE,
            "chunk_length": SECONDS,
            "n_window": 50,
        },
        special={_AUDIO: "<|audio_pad|>"},
        kind=ortolan.Decoder,
    ),
}


def write_checkpoint(folder: Path, shape: Shape) -> None:
    """Write the checkpoint, once."""
    if (folder / "config.json").exists():
        return
    torch.manual_seed(0)
    config = getattr(transformers, f"{shape.config}Config")(**shape.values)
    model: Any = getattr(transformers, shape.model)(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    vocabulary = shape.values.get("vocab_size") or shape.values["text_config"]["vocab_size"]
    words = {shape.special.get(number, f"w{number}"): number for number in range(vocabulary)}
    (folder / "preprocessor_config.json").write_text(json.dumps(shape.extractor))
    if not shape.tokens:
        (folder / "vocab.json").write_text(json.dumps(words))
        return
    tokenizer = Tokenizer(models.WordLevel(words, next(iter(words))))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([*shape.special.values()])
    tokenizer.save(str(folder / "tokenizer.json"))


def by_ortolan(
    checkpoint: Path, shape: Shape, work: Path, name: str, args: argparse.Namespace
) -> Transcribe:
    """Transcribe with a bundle."""
    out = work / name
    if not (out / "manifest.json").exists():
        say(f"exporting {name}")
        options = ExportOptions(allow_poor=True, proof="quick")
        ortolan.export(checkpoint, out, precision=PRECISIONS[name], options=options, force=True)
    model = ortolan.load(out, shape.kind, threads=args.threads)

    def transcribe(samples: Samples, _: Features) -> object:
        if not shape.tokens:
            return model.transcribe(samples)
        source = [{"audio": samples}] if shape.kind is ortolan.Decoder else samples
        return model.generate(source, max_new_tokens=args.tokens, ignore_eos=True).tokens

    return transcribe


def by_transformers(checkpoint: Path, shape: Shape, args: argparse.Namespace) -> Transcribe:
    """Transcribe with transformers in float32."""
    torch.set_num_threads(args.threads)
    kind = getattr(transformers, shape.model)
    model: Any = kind.from_pretrained(checkpoint, dtype=torch.float32)
    generate: Any = transformers.GenerationMixin.generate

    def transcribe(_: Samples, features: Features) -> object:
        with torch.inference_mode():
            if not shape.tokens:
                return model(**features).logits.argmax(-1)
            return generate(
                model,
                **features,
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

    def transcribe(_: Samples, features: Features) -> object:
        mel = ctranslate2.StorageView.from_array(features["input_features"].numpy())
        return model.generate(
            mel,
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
    parser.add_argument("--model", choices=SHAPES, default="whisper-tiny")
    parser.add_argument("-n", "--tokens", type=count, default=80, help="tokens for 30 seconds")
    add_timing(parser, rounds=7)
    add_folders(parser)
    return parser.parse_args(arguments)


def side_by_side(args: argparse.Namespace) -> None:
    """Prepare, measure alternately, print and write."""
    shape, work = SHAPES[args.model], args.work / args.model
    checkpoint = work / "checkpoint"
    write_checkpoint(checkpoint, shape)
    ways = {name: by_ortolan(checkpoint, shape, work, name, args) for name in PRECISIONS}
    if shape.peers and find_spec("ctranslate2"):
        for precision in ("float32", "int8"):
            ways[f"CTranslate2 {precision}"] = by_ctranslate2(checkpoint, work, precision, args)
    ways[REFERENCE] = by_transformers(checkpoint, shape, args)
    extractor: Any = transformers.AutoFeatureExtractor
    seconds = in_turn(
        {name: partial(_heard, way) for name, way in ways.items()},
        partial(_sound, shape, extractor.from_pretrained(checkpoint)),
        rounds=args.rounds,
    )
    text = "\n".join(_table(args, shape, seconds)) + "\n"
    print(text)
    name = "speech.md" if args.model == "whisper-tiny" else f"speech-{args.model}.md"
    (args.out / name).write_text(text, encoding="utf-8")


def _sound(shape: Shape, extractor: Any, random: np.random.Generator) -> tuple[Samples, Features]:
    """Samples, and what transformers reads of them."""
    samples = (0.1 * random.standard_normal(RATE * SECONDS)).astype(np.float32)
    features = dict(extractor(samples, sampling_rate=RATE, return_tensors="pt"))
    if shape.kind is ortolan.Decoder:
        chunks = features["input_features"].shape[-1] // 100
        features["input_ids"] = torch.full((1, 13 * chunks), _AUDIO)
        features["input_features_mask"] = torch.ones((1, 100 * chunks), dtype=torch.long)
    return samples, features


def _heard(transcribe: Transcribe, given: tuple[Samples, Features]) -> object:
    return transcribe(*given)


def _table(args: argparse.Namespace, shape: Shape, seconds: dict[str, list[float]]) -> list[str]:
    task = f"{SECONDS} seconds of sound"
    if shape.tokens:
        task = f"{task} to {args.tokens} tokens, greedily"
    lines = [
        "# Transcription",
        "",
        f"{report.machine()['processor']}, {args.threads} threads, {args.rounds} rounds in turn. "
        f"Random weights in the shape of {shape.words};",
        f"{task}. Ortolan's time includes what is computed of the samples first, such as a "
        "spectrogram, which the others get ready.",
        "",
        "| | ms, median | range | times as fast as the sound | as transformers |",
        "|---|---:|---:|---:|---:|",
    ]
    speed = rows(seconds, reference=REFERENCE, extra=lambda typical: f"{SECONDS / typical:.0f}")
    return lines + speed


if __name__ == "__main__":
    sys.exit(exit_status(side_by_side, parse()))
