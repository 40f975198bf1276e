"""Random images, and what the tests of decoders that read images or sounds have in common."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.runtime.damaged_bundles import damage

from ortolan.runtime import BundleError, Decoder, PromptLookup, open_bundle, verify

NEW = 8
"""Tokens of an answer."""

Pixels = NDArray[np.uint8]


def picture(height: int = 8, width: int = 8, channels: int = 3, *, seed: int = 0) -> Pixels:
    """Noise."""
    generator = np.random.default_rng((height, width, seed))
    return generator.integers(0, 256, (height, width, channels)).astype(np.uint8)


def png(pixels: Pixels) -> bytes:
    """The file of a picture."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def greedy(model: Decoder, prompt: Any, **options: Any) -> Any:
    """The answer of `NEW` tokens, or a list of answers."""
    return model.generate(prompt, max_new_tokens=NEW, ignore_eos=True, **options)


def answer_of(reference: Any, given: Mapping[str, Any], **options: Any) -> list[int]:
    """The `NEW` tokens that a model of transformers generates."""
    ends: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0}
    ids: list[int] = reference.generate(
        **given, **ends, max_new_tokens=NEW, do_sample=False, **options
    )[0].tolist()
    return ids[-NEW:]


def served(model: Decoder, prompts: Sequence[Any], *, slots: int = 3) -> list[Any]:
    """The answers of a service, to one prompt after the other if it has one slot."""
    options: Any = {"max_new_tokens": NEW, "ignore_eos": True}
    with model.serve(slots=slots) as service:
        if slots == 1:
            return [service.submit(prompt, **options).completion() for prompt in prompts]
        tickets = [service.submit(prompt, **options) for prompt in prompts]
        return [ticket.completion() for ticket in tickets]


def assert_same_every_way(model: Decoder, prompts: Sequence[Any], *, drafts: bool = True) -> None:
    """A batch, a service and drafts give the answers of each prompt alone."""
    alone = [greedy(model, [prompt])[0].tokens for prompt in prompts]
    assert [done.tokens for done in greedy(model, prompts)] == alone
    assert [done.tokens for done in served(model, prompts)] == alone
    if drafts:
        lookup = [greedy(model, [prompt], draft=PromptLookup())[0].tokens for prompt in prompts]
        assert lookup == alone


def assert_verified(folder: Path) -> None:
    """A bundle and its encoder pass."""
    report = verify(folder, isolate=False)
    assert report.verdict == "PASS"
    assert report.media is not None
    assert report.media.verdict == "PASS"


def assert_damage_is_found(bundle: Path, part: str, ending: str, message: str) -> None:
    """A changed weight of a part of a bundle, `.` for the decoder, fails its verification."""
    graphs = open_bundle(bundle / part).graphs.values()
    names = [tensor.name for graph in graphs for tensor in graph.external]
    weight = next(name for name in names if name.endswith((ending, "up.weight")))

    def change(values: NDArray[Any]) -> None:
        values[0] *= 1.5

    damage(bundle / part, weight, change)
    if part != ".":
        with pytest.raises(BundleError, match=message):
            verify(bundle, isolate=False)
    assert verify(bundle / part, isolate=False).verdict == "FAIL"
