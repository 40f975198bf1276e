"""Compares a tiny model of transformers with its bundle.

The weights are random and large, norms and biases included, so that an ignored weight shows. The
reference computes whole sequences without a cache; the bundle must agree on a prompt, on decode
steps after it, and on two inputs of different lengths in one batch.

Shape letters: B sequences, S tokens, V logits.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tests.modeling.tiny_encoders import pooled_output, reference_output
from tests.modeling.tiny_models import reference_model
from tests.tiny.encoders import PAD
from transformers import GenerationMixin

import ortolan
from ortolan.export.witness.compare import Comparison as Answers
from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.interface import OUTPUT
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.sound_sources import AudioSource, WaveSource
from ortolan.runtime.bundle.source import IDS, LENGTHS, MEL, PATCHES, PIXELS, WAVE
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.inputs.audio import read_chunks, wave_of
from ortolan.runtime.inputs.images import read_pixels
from ortolan.runtime.inputs.patches import read_whole
from ortolan.runtime.inputs.readers import patch_feeds
from ortolan.runtime.verification.probes import probe_sound, probe_wave

PROMPT, STEPS = 33, 40

SHORTER = 20
"""Tokens of the second prompt, and of the second source, of a batch."""

FIRST_ID = 5
"""Lower ids are special tokens of some model."""

Numbers = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison; see `ortolan.export.coverage.Row`."""

    kind: str
    error: float
    tokens_equal: bool | None


def save_tiny(values: dict[str, Any], folder: Path, *, spread: float) -> Any:
    """Save a tiny model of transformers with random weights, and return it.

    Args:
        values: its config; without `architectures`, a causal language model.
        folder: the folder of the checkpoint.
        spread: the standard deviation of its weights.
    """
    (architecture,) = values.get("architectures", [None])
    rest = {key: value for key, value in values.items() if key != "architectures"}
    model = reference_model(rest, architecture=architecture, spread=spread)
    model.save_pretrained(folder)
    return model


def loaded(folder: Path) -> Any:
    """The model of transformers of a checkpoint."""
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    kind = getattr(transformers, architecture)
    return kind.from_pretrained(folder, attn_implementation="eager").eval()


def compare(model: Any, folder: Path) -> Comparison:
    """Compare a model of transformers with its bundle."""
    bundle = open_bundle(folder)
    engine, kind = Engine(bundle, threads=1), bundle.manifest.kind
    if kind == "encoder":
        return Comparison(kind=kind, error=_encoder_error(model, engine), tokens_equal=None)
    if kind == "decoder":
        error, equal = _decoder_error(model, engine), _generates_the_same(model, folder)
    else:
        error, equal = _seq2seq_error(model, engine), _translates_the_same(model, folder)
    return Comparison(kind=kind, error=error, tokens_equal=equal)


def assert_alike(got: Any, wanted: Any, tolerance: float) -> None:
    """Texts and tokens are equal, and numbers are within a part of the largest, as in a witness."""
    if isinstance(wanted, dict):
        assert list(got) == list(wanted)
    answers = Answers(tolerance)
    answers.compare(got, wanted)
    assert answers.first is None, f"{answers.first}"


def _error(got: Numbers, expected: Numbers) -> float:
    """The largest difference over the largest number."""
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def _ids(length: int, vocab_size: int, seed: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(FIRST_ID, vocab_size, length).tolist()
    return ids


def _texts(vocab_size: int, *, after: Sequence[int] = ()) -> list[list[int]]:
    """Two sequences: a prompt and the tokens of all steps."""
    lengths = (PROMPT, SHORTER)
    return [[*after, *_ids(n + STEPS - len(after), vocab_size, n)] for n in lengths]


# --- decoders -------------------------------------------------------------------------------------


def _decoder_error(model: Any, engine: Engine) -> float:
    texts = _texts(engine.manifest.vocab_size)
    expected = [_reference(model, input_ids=torch.tensor([text]))[0] for text in texts]
    return max(
        _text_error(Runner(engine, engine.slots(len(rows))), texts[: len(rows)], expected)
        for rows in (texts[:1], texts)
    )


def _text_error(
    runner: Runner, texts: Sequence[Sequence[int]], expected: Sequence[Numbers]
) -> float:
    """Prefill each prompt, then decode in steps of the whole batch."""
    got: list[list[Numbers]] = []
    for row, text in enumerate(texts):
        prompt = text[:-STEPS]
        got.append(list(runner.chunk(row, prompt, positions=range(len(prompt)))))
    runner.select(range(len(texts)))
    for place in range(-STEPS, 0):
        runner.step([text[place] for text in texts])
        for row, rows in enumerate(got):
            rows.append(runner.logits_BV[row].copy())
    return max(_error(np.array(rows), whole) for rows, whole in zip(got, expected, strict=False))


def _generates_the_same(model: Any, folder: Path) -> bool:
    """Whether a batch generates the tokens that transformers finds most likely."""
    bundle = ortolan.load(folder, ortolan.Decoder, threads=1)
    prompts = [text[:-STEPS] for text in _texts(bundle.manifest.vocab_size)]
    done = bundle.generate(prompts, max_new_tokens=STEPS, ignore_eos=True)
    for prompt, completion in zip(prompts, done, strict=True):
        whole = torch.tensor([[*prompt, *completion.tokens]])
        logits = _reference(model, input_ids=whole)[0, len(prompt) - 1 : -1]
        if tuple(logits.argmax(-1).tolist()) != completion.tokens:
            return False
    return True


def _reference(model: Any, **inputs: torch.Tensor) -> Numbers:
    """The output of transformers without a cache."""
    outputs: Numbers = reference_output(model, **inputs).float().numpy()
    return outputs


# --- encoders, and encoder-decoders ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Two inputs of an encoder.

    Attributes:
        arguments: for `Seq2Seq.generate`.
        feeds: for the graph.
        inputs: for transformers.
    """

    arguments: list[Any]
    feeds: dict[str, NDArray[Any]]
    inputs: dict[str, torch.Tensor]

    def alone(self, row: int) -> dict[str, torch.Tensor]:
        """One of them, for transformers."""
        return {name: value[row : row + 1] for name, value in self.inputs.items()}


def _sources(manifest: Manifest) -> Sources:
    source = manifest.source
    if isinstance(source, ImageSource):
        shape = (2, source.height, source.width, source.channels)
        images = list(np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8))
        pixels = np.stack([read_pixels(image, source) for image in images])
        inputs = {"pixel_values": torch.from_numpy(pixels)}
        return Sources(arguments=images, feeds={PIXELS: pixels}, inputs=inputs)
    if isinstance(source, PatchSource):
        image = np.random.default_rng(0).integers(0, 256, (25, 41, 3)).astype(np.uint8)
        pixels = read_whole(image, source)
        feeds = patch_feeds(pixels, source)
        grid = torch.tensor([[side // source.patch for side in pixels.shape[1:]]])
        inputs = {
            "pixel_values": torch.from_numpy(feeds[PATCHES]).transpose(0, 1),
            "pixel_attention_mask": torch.ones(1, int(grid.prod()), dtype=torch.int64),
            "spatial_shapes": grid,
        }
        return Sources(arguments=[image], feeds=feeds, inputs=inputs)
    if isinstance(source, AudioSource):
        sounds = [probe_sound(source, number) for number in range(2)]
        mel = np.concatenate([read_chunks(sound, source) for sound in sounds])
        inputs = {"input_features": torch.from_numpy(mel)}
        return Sources(arguments=sounds, feeds={MEL: mel}, inputs=inputs)
    if isinstance(source, WaveSource):
        # Of one length, since no wave is padded.
        sounds = [probe_wave(source, number, PROMPT)[: source.reach(PROMPT)] for number in range(2)]
        waves = np.stack([wave_of(sound, source) for sound in sounds])
        inputs = {"input_values": torch.from_numpy(waves)}
        return Sources(arguments=sounds, feeds={WAVE: waves}, inputs=inputs)
    if source is not None and not isinstance(source, TextSource):
        raise TypeError(f"no inputs for {source}")
    vocab_size = manifest.vocab_size if source is None else source.vocab_size or manifest.vocab_size
    texts = [_ids(length, vocab_size, length) for length in (PROMPT, SHORTER)]
    if isinstance(source, TextSource) and (filler := source.padding) is not None:
        texts = [[*text, *[filler] * (source.max_tokens - len(text))] for text in texts]
    lengths = np.array([len(text) for text in texts], np.int32)
    longest = max(map(len, texts))
    ids = np.array([[*text, *[PAD] * (longest - len(text))] for text in texts])
    mask = torch.arange(longest) < torch.from_numpy(lengths)[:, None]
    return Sources(
        arguments=texts,
        feeds={IDS: ids, LENGTHS: lengths},
        inputs={"input_ids": torch.from_numpy(ids), "attention_mask": mask.long()},
    )


def _encoder_error(model: Any, engine: Engine) -> float:
    sources = _sources(engine.manifest)
    inputs = sources.inputs
    if "pixel_values" in inputs and hasattr(model, "logit_scale"):
        # a model of images and texts wants both
        inputs = inputs | {"input_ids": torch.tensor([[0, model.config.text_config.eos_token_id]])}
    got = engine.encode(sources.feeds)[OUTPUT]
    output = reference_output if got.ndim == 3 else pooled_output
    expected = output(model, **inputs).float().numpy()
    if LENGTHS not in sources.feeds or got.ndim < 3:
        return _error(got, expected)
    mask = sources.inputs["attention_mask"].bool().numpy()
    return _error(got[mask], expected[mask])


def _seq2seq_error(model: Any, engine: Engine) -> float:
    sources, start = _sources(engine.manifest), engine.manifest.tokens.start
    if start is None:
        raise ValueError("This bundle has no start token.")
    texts = _texts(engine.manifest.vocab_size, after=[start])
    expected = [
        _reference(model, **sources.alone(row), decoder_input_ids=torch.tensor([text]))[0]
        for row, text in enumerate(texts)
    ]
    slots = engine.slots(len(texts))
    slots.sources.put(range(len(texts)), engine.encode_source(sources.feeds))
    return _text_error(Runner(engine, slots), texts, expected)


def _translates_the_same(model: Any, folder: Path) -> bool:
    """Whether two sources give the greedy sequences of transformers."""
    bundle = ortolan.load(folder, ortolan.Seq2Seq, threads=1)
    sources, ends = _sources(bundle.manifest), set(bundle.manifest.tokens.eos)
    for row, completion in enumerate(bundle.generate(sources.arguments, max_new_tokens=STEPS)):
        with torch.inference_mode():
            # not the method of the model: Whisper's adds tokens and rules of its own
            generate: Any = GenerationMixin.generate
            options = {"max_new_tokens": STEPS, "do_sample": False, "num_beams": 1}
            # without the cache, which has one layer for each of the encoder
            (text,) = generate(model, **sources.alone(row), **options, use_cache=False).tolist()
        written = text[1:]  # after the start token
        last = next((place for place, token in enumerate(written) if token in ends), len(written))
        if tuple(written[: last + 1]) != completion.tokens:
            return False
    return True
