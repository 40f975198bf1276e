"""Speed of four tasks beside other runtimes: speech, images, translation and encoding.

    python benchmarks/tasks.py whisper-tiny
    python benchmarks/tasks.py smolvlm --threads 2 -r 5
    python benchmarks/tasks.py models/numerals --batch 1 --beams 4
    python benchmarks/tasks.py bert-22m

Compares Ortolan in several precisions with transformers, and, where installed, CTranslate2 (Whisper
and translation) and onnxruntime on the export of transformers (encoding). A model has the shape of
a published one and random weights, or it is a Marian checkpoint with a recipe, whose held-out
sentences are translated. All stay loaded in this process and alternate, each round with another
input. Ortolan's time includes what is computed of sounds and images first, such as a spectrogram;
the others get that ready. Prints a table and writes it to benchmarks/results/TASK-MODEL.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import make_checkpoint
import ortolan
import report
from ortolan.export.options import ExportOptions, Int4
from ortolan.modeling.training.data import Pairs, read_data
from ortolan.modeling.training.recipe import read_recipe
from prepare import say
from script import add_folders, add_timing, count, exit_status

REFERENCE = "transformers fp32"

RATE, SECONDS = 16_000, 30
QUESTION_TOKENS, SENTENCE_TOKENS = 32, 96

IMAGE = 1000
"""Token whose places take the vectors of an image."""

START, EOS = 50_258, 50_257
"""Tokens of Whisper. CTranslate2 looks for all of its special tokens."""

WHISPER = {
    EOS: "<|endoftext|>",
    START: "<|startoftranscript|>",
    50_359: "<|transcribe|>",
    50_362: "<|nospeech|>",
    50_363: "<|notimestamps|>",
}

PARTS = (
    *("<image>", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model with random weights: its classes in transformers, config, processor and tokens."""

    task: str
    words: str
    classes: str
    head: str = "ForConditionalGeneration"
    config: Mapping[str, Any]
    processor: Mapping[str, Any] = field(default_factory=dict)
    special: Mapping[int, str] = field(default_factory=dict)


SHAPES = {
    "whisper-tiny": Shape(
        task="speech",
        words="Whisper tiny",
        classes="Whisper",
        config={"vocab_size": 51_865},  # its defaults are Whisper tiny
        processor={"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": SECONDS},
        special=WHISPER,
    ),
    "moonshine-tiny": Shape(
        task="speech",
        words="Moonshine tiny",
        classes="Moonshine",
        config={"vocab_size": 32_768, "max_position_embeddings": 194},
        processor={"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": False},
    ),
    "wav2vec2-base": Shape(
        task="speech",
        words="wav2vec 2.0 base, which scores 32 symbols every 20 ms",
        classes="Wav2Vec2",
        head="ForCTC",
        config={"vocab_size": 32, "ctc_loss_reduction": "mean"},
        processor={"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": True},
        special={0: "<pad>", 1: "|"},
    ),
    "smolvlm": Shape(
        task="images",
        words="SmolVLM 256M, which reads 5 tiles of 64 vectors",
        classes="Idefics3",
        config={
            "vision_config": {
                **{"model_type": "idefics3_vision", "image_size": 512, "patch_size": 16},
                **{"hidden_size": 768, "intermediate_size": 3072},
                **{"num_hidden_layers": 12, "num_attention_heads": 12},
            },
            "text_config": {**make_checkpoint.LLAMA, **make_checkpoint.SHAPES["135m"]},
            "image_token_id": IMAGE,
            "scale_factor": 4,
        },
        processor={
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": 1024},
            "max_image_size": {"longest_edge": 512},
        },
        special=dict(enumerate(PARTS, IMAGE)),
    ),
    "bert-22m": Shape(
        task="encoding",
        words="MiniLM-L6, a BERT with 22 million weights",
        classes="Bert",
        head="Model",
        config={
            **{"vocab_size": 30_522, "hidden_size": 384, "intermediate_size": 1536},
            **{"num_hidden_layers": 6, "num_attention_heads": 12},
        },
    ),
}


def write_checkpoint(folder: Path, shape: Shape) -> None:
    """Write a checkpoint with random weights, once."""
    if (folder / "config.json").exists():
        return
    torch.manual_seed(0)
    config = getattr(transformers, f"{shape.classes}Config")(**shape.config)
    kind: Any = getattr(transformers, f"{shape.classes}{shape.head}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "preprocessor_config.json").write_text(json.dumps(shape.processor))
    size = (shape.config.get("text_config") or shape.config)["vocab_size"]
    words = {shape.special.get(number, f"w{number}"): number for number in range(size)}
    if shape.head == "ForCTC":
        (folder / "vocab.json").write_text(json.dumps(words))
    else:
        tokenizer = Tokenizer(models.WordLevel(words, next(iter(words))))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.add_special_tokens([*shape.special.values()])
        tokenizer.save(str(folder / "tokenizer.json"))
    kind(config).to(torch.bfloat16).save_pretrained(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is computed, on inputs as Ortolan reads them and as transformers does.

    Attributes:
        name: of the results.
        words: the model and its input, for the heading.
        draw: makes both forms of an input.
        ours: computes with a bundle.
        theirs: computes with a model of transformers.
        agreement: says how far an output is that of transformers; not for random tokens.
    """

    name: str
    words: str
    draw: Callable[[np.random.Generator], tuple[Any, Any]]
    ours: Callable[[Any, Any], Any]
    theirs: Callable[[Any, Any], Any]
    agreement: Callable[[Any, Any], str] | None = None


Way = tuple[int, Callable[[Any], Any]]
"""The form of an input that a way of computing reads, 0 for Ortolan's, and the way."""


def generate(model: Any, tokens: int, **inputs: Any) -> Any:
    """Greedy tokens of a model of transformers."""
    # Not the method of the model: Whisper's adds tokens and rules of its own.
    own: Any = transformers.GenerationMixin.generate
    return own(model, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, **inputs)


def speech(checkpoint: Path, shape: Shape, args: argparse.Namespace) -> Task:
    """Transcribe sounds to a fixed number of tokens, or score symbols."""
    loader: Any = transformers.AutoFeatureExtractor
    extractor = loader.from_pretrained(checkpoint)
    scores = shape.head == "ForCTC"

    def draw(random: np.random.Generator) -> tuple[Any, Any]:
        samples = (0.1 * random.standard_normal(RATE * SECONDS)).astype(np.float32)
        return samples, extractor(samples, sampling_rate=RATE, return_tensors="pt")

    def ours(model: Any, samples: Any) -> Any:
        if scores:
            return model.transcribe(samples)
        return model.generate(samples, max_new_tokens=args.tokens, ignore_eos=True)

    def theirs(model: Any, features: Any) -> Any:
        return model(**features) if scores else generate(model, args.tokens, **features)

    words = f"{SECONDS} seconds of sound" + ("" if scores else f" to {args.tokens} tokens")
    return Task(
        name=f"speech-{args.model}",
        words=f"{shape.words}; {words}",
        draw=draw,
        ours=ours,
        theirs=theirs,
    )


def images(_: Path, shape: Shape, args: argparse.Namespace) -> Task:
    """Read an image and a question, to the first token."""
    question = range(1, QUESTION_TOKENS + 1)
    text = " ".join(f"w{number}" for number in question)
    ids = torch.tensor([[*[IMAGE] * 5 * 64, *question]])

    def draw(random: np.random.Generator) -> tuple[Any, Any]:
        image = random.integers(0, 256, (640, 640, 3)).astype(np.uint8)
        tiles = torch.from_numpy(random.random((1, 5, 3, 512, 512), dtype=np.float32))
        return [{"image": image}, text], {"input_ids": ids, "pixel_values": tiles}

    return Task(
        name=f"images-{args.model}",
        words=f"{shape.words}; from an image and {QUESTION_TOKENS} tokens to the first token",
        draw=draw,
        ours=lambda model, prompt: model.generate(prompt, max_new_tokens=1),
        theirs=lambda model, inputs: generate(model, 1, **inputs),
    )


def encoding(_: Path, shape: Shape, args: argparse.Namespace) -> Task:
    """Encode texts of one length."""

    def draw(random: np.random.Generator) -> tuple[Any, Any]:
        ids = random.integers(1000, shape.config["vocab_size"], (args.texts, args.tokens))
        return ids.tolist(), ids

    def theirs(model: Any, ids: Any) -> Any:
        batches = torch.split(torch.from_numpy(ids), args.batch)
        return torch.cat([model(part, torch.ones_like(part))[0] for part in batches]).numpy()

    def cosine(vectors: Any, expected: Any) -> str:
        norms = np.linalg.norm(vectors, axis=-1) * np.linalg.norm(expected, axis=-1)
        return f"{((vectors * expected).sum(-1) / norms).mean():.5f}"

    return Task(
        name=f"encoding-{args.model}",
        words=f"{shape.words}; {args.texts} texts of {args.tokens} tokens",
        draw=draw,
        ours=lambda model, ids: np.stack(model.states(ids)),
        theirs=theirs,
        agreement=cosine,
    )


def translation(checkpoint: Path, args: argparse.Namespace) -> Task:
    """Translate held-out sentences from text to text, some at once."""
    held_out = read_data(read_recipe(checkpoint / "recipe.toml"), checkpoint, Pairs).held_out
    sources = [source for source, _ in held_out["numbers"][: args.texts]]
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))

    def draw(random: np.random.Generator) -> tuple[Any, Any]:
        shuffled = [sources[place] for place in random.permutation(len(sources))]
        parts = [shuffled[at : at + args.batch] for at in range(0, len(sources), args.batch)]
        return parts, parts

    def ours(model: Any, parts: Any) -> list[str]:
        limits = {"beams": args.beams, "max_new_tokens": SENTENCE_TOKENS}
        return [done.text for part in parts for done in model.generate(part, **limits)]

    def theirs(model: Any, parts: Any) -> list[str]:
        tokenizer.enable_padding(pad_id=model.config.pad_token_id)
        texts: list[str] = []
        for encodings in map(tokenizer.encode_batch_fast, parts):
            ids = torch.tensor([encoding.ids for encoding in encodings])
            mask = torch.tensor([encoding.attention_mask for encoding in encodings])
            limits = {"num_beams": args.beams, "max_new_tokens": SENTENCE_TOKENS}
            done = model.generate(ids, attention_mask=mask, do_sample=False, **limits)
            texts += tokenizer.decode_batch(done.tolist())
        return texts

    def same(texts: Any, expected: Any) -> str:
        return f"{np.mean([a == b for a, b in zip(texts, expected, strict=True)]):.1%}"

    return Task(
        name=f"translation-{checkpoint.name}",
        words=f"{args.texts} sentences, {args.batch} at once, beams: {args.beams}",
        draw=draw,
        ours=ours,
        theirs=theirs,
        agreement=same,
    )


def bundle(checkpoint: Path, task: Task, precision: str, args: argparse.Namespace) -> Any:
    """A loaded bundle."""
    out = args.work / task.name / precision
    if not (out / "manifest.json").exists():
        say(f"exporting {precision}")
        options: dict[str, Any] = {"allow_poor": True, "proof": "quick"}
        if precision != "fp32" and not task.name.startswith("speech"):
            options["prefill_precision"] = "int8"
            options["graphs"] = "unified" if task.name.startswith("encoding") else "split"
        given: Any = Int4(effort="quick") if precision == "int4" else precision
        ortolan.export(checkpoint, out, precision=given, options=ExportOptions(**options))
    return ortolan.load(out, device="cpu", threads=args.threads)


def in_ctranslate2(
    checkpoint: Path, task: Task, precision: str, args: argparse.Namespace
) -> Callable[[Any], Any]:
    """Transcribe or translate with CTranslate2."""
    ctranslate2: Any = import_module("ctranslate2")
    out = args.work / task.name / f"ctranslate2-{precision}"
    if not out.exists():
        say(f"converting for CTranslate2, {precision}")
        converter = ctranslate2.converters.TransformersConverter(str(checkpoint))
        converter.convert(str(out), quantization=precision)
    is_speech = task.name.startswith("speech")
    kind = ctranslate2.models.Whisper if is_speech else ctranslate2.Translator
    model = kind(str(out), device="cpu", compute_type=precision, intra_threads=args.threads)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = tokenizer.get_vocab()

    def transcribe(features: Any) -> Any:
        mel = ctranslate2.StorageView.from_array(features["input_features"].numpy())
        limits = {"beam_size": 1, "max_length": args.tokens + 1, "suppress_tokens": [EOS]}
        return model.generate(mel, [[START]], suppress_blank=False, **limits)

    def translate(parts: Any) -> list[str]:
        texts = []
        limits = {"beam_size": args.beams, "max_decoding_length": SENTENCE_TOKENS}
        for part in parts:
            words = [tokenizer.encode(text).tokens for text in part]
            done = model.translate_batch(words, **limits)
            texts += [tokenizer.decode([ids[word] for word in r.hypotheses[0]]) for r in done]
        return texts

    return transcribe if is_speech else translate


def in_onnxruntime(model: Any, task: Task, args: argparse.Namespace) -> Callable[[Any], Any]:
    """Encode with onnxruntime on the export of transformers, with its fusions."""
    onnxruntime: Any = import_module("onnxruntime")
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    out = args.work / task.name / "onnxruntime"
    if not out.exists():
        ids = torch.ones(2, 8, dtype=torch.int64)
        feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        exporter: Any = OnnxExporter
        config = OnnxConfig(dynamic=True, ort_fusions="cpu")
        exporter().export(model, feeds, config=config).save_pretrained(out)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(str(out / "model.onnx"), options)

    def encode(ids: Any) -> Any:
        parts = [ids[at : at + args.batch] for at in range(0, len(ids), args.batch)]
        feeds = [{"input_ids": part, "attention_mask": np.ones_like(part)} for part in parts]
        return np.concatenate([session.run(None, feed)[0] for feed in feeds])

    return encode


def in_turn(ways: Mapping[str, Way], task: Task, rounds: int) -> str:
    """Time every way on inputs that it has not seen, after one to warm up, as a table."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    outputs = {}
    for turn in range(rounds + 1):
        given = task.draw(np.random.default_rng(turn))
        for name, (form, compute) in ways.items():
            began = time.perf_counter()
            outputs[name] = compute(given[form])
            seconds[name].append(time.perf_counter() - began)
    rows = []
    for name, (_, *measured) in seconds.items():
        reference = seconds[REFERENCE][1:]
        ratio = report.Ratio.of(b / a for a, b in zip(measured, reference, strict=True))
        row = [name, f"{1000 * median(measured):.1f}", str(ratio)]
        if task.agreement is not None:
            row.append(task.agreement(outputs[name], outputs[REFERENCE]))
        rows.append(row)
    header = ["", "ms", "times as fast as transformers", "agreement"][: len(rows[0])]
    return report.table(header, rows)


def measure(args: argparse.Namespace) -> None:
    """Prepare, measure alternately, print and write."""
    shape = SHAPES.get(args.model)
    if shape is None:
        checkpoint = Path(args.model).resolve()
        task = translation(checkpoint, args)
        kind: Any = transformers.MarianMTModel
    else:
        checkpoint = args.work / args.model / "checkpoint"
        write_checkpoint(checkpoint, shape)
        task = {"speech": speech, "images": images, "encoding": encoding}[shape.task](
            checkpoint, shape, args
        )
        kind = getattr(transformers, f"{shape.classes}{shape.head}")
    reference = kind.from_pretrained(checkpoint, dtype=torch.float32)
    torch.set_num_threads(args.threads)
    ways: dict[str, Way] = {}
    for name in args.precisions:
        ways[name] = 0, partial(task.ours, bundle(checkpoint, task, name, args))
    if task.name.startswith("encoding"):
        ways["onnxruntime fp32"] = 1, in_onnxruntime(reference, task, args)
    if task.name.startswith(("translation", "speech-whisper")) and find_spec("ctranslate2"):
        for precision in ("float32", "int8"):
            compute = in_ctranslate2(checkpoint, task, precision, args)
            ways[f"CTranslate2 {precision}"] = 1, compute
    ways[REFERENCE] = 1, torch.inference_mode()(partial(task.theirs, reference))
    text = (
        f"# {task.name}\n\n{report.machine()['processor']}, {args.threads} threads, "
        f"{args.rounds} rounds in turn. {task.words}.\n\n{in_turn(ways, task, args.rounds)}\n"
    )
    print(text)
    (args.out / f"{task.name}.md").write_text(text, encoding="utf-8")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help=f"{', '.join(SHAPES)}, or the folder of a translator")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "int8", "int4"])
    parser.add_argument("-n", "--tokens", type=count, default=80, help="of a sound, or of a text")
    parser.add_argument("--texts", type=count, default=200, help="to translate or encode")
    parser.add_argument("--batch", type=count, default=32, help="texts at once")
    parser.add_argument("--beams", type=count, default=1)
    add_timing(parser, rounds=7)
    add_folders(parser)
    args = parser.parse_args(arguments)
    if args.model not in SHAPES and not (Path(args.model) / "recipe.toml").exists():
        parser.error(f"{args.model}: name a folder with recipe.toml or one of {', '.join(SHAPES)}.")
    return args


if __name__ == "__main__":
    sys.exit(exit_status(measure, parse()))
