"""Uses a bundle by the public API: opens, loads and runs it, and sometimes verifies it."""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.arguments import CallersError
from tests.hostile.targets import DECODER, IMAGES, OUTPUTS, PROMPTS, SEQ2SEQ, Target, probe

import ortolan
from ortolan import runtime
from ortolan.errors import OrtolanError
from ortolan.runtime import attention_maps
from ortolan.runtime.inspect import description

WARM = (
    *("attention_maps", "bundle.packed", "verification.replay", "chat.chat", "jinja.template"),
    *("inputs.tokenizer", "loading", "serving.service"),
)
"""Lazy modules, imported here once rather than in each child."""

for name in (
    *(f"ortolan.runtime.{name}" for name in WARM),
    "onnxruntime",
    "llguidance",
    "PIL.Image",
):
    import_module(name)

VERIFIED = 0.12
"""Share of bundles to verify, which takes ten times as long."""

METHODS = {"decoder": (*DECODER, "session"), "encoder": OUTPUTS, "encoder-decoder": SEQ2SEQ}


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
    probe(model)
    inputs = IMAGES if hasattr(model.manifest.source, "channels") else PROMPTS
    methods = METHODS[model.manifest.kind]
    with suppress(OrtolanError, CallersError, TimeoutError):
        Target(bundle="", methods=methods, inputs=inputs).send(model, random)
    if verifies and random.random() < VERIFIED:
        say("verify")
        runtime.verify(folder, threads=1, isolate=False)
    if "attention" in model.manifest.graphs:
        say("maps")
        attention_maps.attention_maps(folder, [1, 2, 3] if model.tokenizer is None else "a b")
