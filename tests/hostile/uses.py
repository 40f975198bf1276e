"""What is done with a bundle: opened, loaded, used once, and at times verified. Public API only."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import ortolan
from ortolan import runtime
from ortolan.runtime import attention_maps
from ortolan.runtime.bundle.manifest import ImageSource
from ortolan.runtime.encoder import Encoder
from ortolan.runtime.inspect import description

WARM = (
    *("attention_maps", "bundle.packed", "verification.replay", "chat.chat", "jinja.template"),
    *("inputs.tokenizer", "loading", "serving.service"),
)
"""Modules that are imported when they are first needed, which would be in each child."""

for name in WARM:
    import_module(f"ortolan.runtime.{name}")
import_module("onnxruntime")

__all__ = ["use"]

VERIFIED = 0.12
"""The share of bundles that are verified too, which takes ten times as long."""


def use(folder: Path, random: Random, say: Callable[[str], None], *, verifies: bool) -> None:
    """Go as far with a bundle as it lets.

    Args:
        folder: of the bundle.
        random: chooses what is done with it.
        say: called with the name of each stage.
        verifies: whether a share of them is verified.
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
    return "a b" if model.tokenizer is not None else [1, 2, 3]


def _decode(model: Any, random: Random) -> None:
    given = _input(model)
    match random.randrange(5):
        case 0:
            model.generate([given, given], max_new_tokens=3)
        case 1 if model.tokenizer is not None:
            for _ in model.stream(given, max_new_tokens=3, sampling=ortolan.Sampling(seed=1)):
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
            model.generate(given, max_new_tokens=3)


def _write(model: Any, random: Random) -> None:
    given = _input(model)
    if random.random() < 0.3:
        model.generate([given, given], beams=2, max_new_tokens=3)
    else:
        model.generate(given, max_new_tokens=3)


def _encode(model: Encoder, random: Random) -> None:
    given = _input(model)
    source = model.manifest.source
    if isinstance(source, ImageSource):
        sizes = (source.height, source.width, source.channels)
        given = np.zeros(sizes, np.uint8)
    ask: dict[str, Callable[[Any], object]] = {
        "labels": model.classify,
        "embedding": model.embed,
        "states": model.states,
        "logits": model.logits,
    }
    ask[model.manifest.output_kind.name]([given] * random.choice([1, 1, 3]))


_USES: dict[str, Callable[[Any, Random], None]] = {
    "decoder": _decode,
    "encoder": _encode,
    "encoder-decoder": _write,
}
