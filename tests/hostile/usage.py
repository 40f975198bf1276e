"""Uses a bundle by the public API: opens, loads and runs it once, and sometimes verifies it."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import ortolan
from ortolan import runtime
from ortolan.runtime import attention_maps
from ortolan.runtime.bundle.sources import AudioSource, ImageSource, PatchSource, WaveSource
from ortolan.runtime.encoder import Encoder
from ortolan.runtime.inspect import description

WARM = (
    *("attention_maps", "bundle.packed", "verification.replay", "chat.chat", "jinja.template"),
    *("inputs.tokenizer", "loading", "serving.service"),
)
"""Lazy modules, imported here once rather than in each child."""

for name in WARM:
    import_module(f"ortolan.runtime.{name}")
import_module("onnxruntime")

VERIFIED = 0.12
"""Share of bundles to verify, which takes ten times as long."""


def use(folder: Path, random: Random, say: Callable[[str], None], *, verifies: bool) -> None:
    """Go as far with a bundle as possible.

    Args:
        folder: of the bundle.
        random: chooses how to use it.
        say: called with the name of each stage.
        verifies: verify a share of the bundles.
    """
    say("open")
    bundle = runtime.open_bundle(folder)
    if random.random() < 0.1:
        say("inspect")
        description.describe(bundle)
    say("load")
    model: Any = ortolan.load(folder, threads=1, weights=random.choice(["map", "map", "copy"]))
    say("use")
    _USES[model.manifest.kind](model, random)
    if verifies and random.random() < VERIFIED:
        say("verify")
        runtime.verify(folder, threads=1, isolate=False)
    if "attention" in model.manifest.graphs:
        say("maps")
        attention_maps.attention_maps(folder, _input(model))


def _input(model: Any) -> Any:
    if isinstance(model.manifest.source, AudioSource | WaveSource):
        return np.linspace(-1, 1, 9000, dtype=np.float32)
    return "a b" if model.tokenizer is not None else [1, 2, 3]


def _decode(model: Any, random: Random) -> None:
    value = _input(model)
    if model.manifest.features is not None and random.random() < 0.5:
        image = np.zeros(random.choice([(9, 20, 3), (40, 24, 3)]), np.uint8)
        sound = np.linspace(-1, 1, 9000, dtype=np.float32)
        part = {"image": image} if model.manifest.media == "images" else {"audio": sound}
        model.generate([part, "a b"], max_new_tokens=3)
        return
    match random.randrange(5):
        case 0:
            model.generate([value, value], max_new_tokens=3)
        case 1 if model.tokenizer is not None:
            for _ in model.stream(value, max_new_tokens=3, sampling=ortolan.Sampling(seed=1)):
                pass
        case 2 if model.tokenizer is not None:
            messages = [{"role": "user", "content": "a"}]
            names = {file.name for file in model.manifest.files}
            if "chat_template.jinja" in names:
                model.chat(messages, max_new_tokens=3)
        case 3:
            model.logits([1, 2, 3, 4, 5])
            with model.session() as session:
                session.append([1, 2, 3])
                session.append([4])
        case _:
            model.generate(value, max_new_tokens=3)


def _write(model: Any, random: Random) -> None:
    value = _input(model)
    if isinstance(value, np.ndarray) and random.random() < 0.5:
        model.transcribe([value, np.tile(value, 3)])
    elif random.random() < 0.3:
        model.generate([value, value], beams=2, max_new_tokens=3)
    else:
        model.generate(value, max_new_tokens=3)


def _encode(model: Encoder, random: Random) -> None:
    value = _input(model)
    source = model.manifest.source
    if isinstance(source, ImageSource):
        sizes = (source.height, source.width, source.channels)
        value = np.zeros(sizes, np.uint8)
    elif isinstance(source, PatchSource):
        value = np.zeros((*random.choice([(8, 8), (3, 50)]), source.channels), np.uint8)
    methods: dict[str, Callable[[Any], object]] = {
        "labels": model.classify,
        "embedding": model.embed,
        "states": model.states,
        "logits": model.logits,
        "ctc": model.logits if random.random() < 0.5 else model.transcribe,
    }
    methods[model.manifest.output_kind.name]([value] * random.choice([1, 1, 3]))


_USES: dict[str, Callable[[Any, Random], None]] = {
    "decoder": _decode,
    "encoder": _encode,
    "encoder-decoder": _write,
}
