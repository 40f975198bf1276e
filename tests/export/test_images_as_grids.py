"""Decoders that read images as rows and columns of vectors: Qwen3-VL and Qwen 3.5."""

import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.export import tiny_qwen3_vl
from tests.runtime.damaged_bundles import edit_json, put
from tests.tiny.encoders import QWEN3_5_VL
from tests.tiny.media import NEW, answer_of, assert_same_every_way, greedy, picture, served

import ortolan
from ortolan.export.options import ExportOptions
from ortolan.runtime import BundleError, Decoder, verify
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.shifts import Shift

pytestmark = pytest.mark.slow

TALL, WIDE, SMALL = picture(61, 19), picture(17, 50), picture()

AROUND = f"{tiny_qwen3_vl.START}{tiny_qwen3_vl.PAD}{tiny_qwen3_vl.END}"
"""An image in a text."""

PROMPTS: dict[str, Any] = {
    "no image": "what is this",
    "a wide image": [{"image": WIDE}, "what is this"],
    "an image at the end": ["what is ", {"image": TALL}],
    "several images": ["a ", {"image": TALL}, " and ", {"image": WIDE}, {"image": SMALL}, "say"],
    "an image twice": [{"image": WIDE}, "and", {"image": WIDE}],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_vl") / "checkpoint"
    tiny_qwen3_vl.write(folder)
    return folder


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("grids") / "bundle"
    ortolan.export(checkpoint, out)
    return out


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return ortolan.load(folder, Decoder)


def expected_tokens(model: Decoder, checkpoint: Path, prompts: Sequence[Any]) -> list[list[int]]:
    """Tokens that transformers generates, with its own image processor."""
    from transformers import AutoModelForImageTextToText
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    reference: Any = AutoModelForImageTextToText.from_pretrained(checkpoint)
    processor = Qwen2VLImageProcessorPil.from_pretrained(checkpoint)
    assert model.tokenizer is not None
    features = model.manifest.features
    assert features is not None
    rows = []
    for prompt in prompts:
        parts = [prompt] if isinstance(prompt, str) else prompt
        images = [part["image"] for part in parts if not isinstance(part, str)]
        seen = processor(images=images, return_tensors="pt") if images else {}
        counts = iter((seen["image_grid_thw"].prod(1) // 4).tolist() if images else ())
        text = "".join(part if isinstance(part, str) else AROUND for part in parts)
        ids = [
            token
            for one in model.tokenizer.encode(text)
            for token in [one] * (next(counts) if one == features.token else 1)
        ]
        given = {"input_ids": torch.tensor([ids]), **seen}
        if images:
            given["mm_token_type_ids"] = (given["input_ids"] == features.token).int()
        rows.append(answer_of(reference, given))
    return rows


def test_tokens_are_those_of_transformers(model: Decoder, checkpoint: Path) -> None:
    prompts = [*PROMPTS.values()]
    got = [list(greedy(model, [prompt])[0].tokens) for prompt in prompts]
    assert got == expected_tokens(model, checkpoint, prompts)


def test_a_batch_a_service_and_drafts_give_the_same(model: Decoder) -> None:
    prompts = [*PROMPTS.values()]
    assert_same_every_way(model, prompts)


def test_a_cached_prefix_keeps_its_positions(model: Decoder) -> None:
    rest: list[Any] = [{"image": picture(40, 40, seed=seed)} for seed in range(4, 12)]
    prompts = [[*rest, {"image": image}, "say"] for image in (TALL, WIDE, TALL)]
    alone = [greedy(model, [prompt])[0].tokens for prompt in prompts]
    done = served(model, prompts, slots=1)
    assert [completion.tokens for completion in done] == alone
    assert [completion.timings.cached_tokens for completion in done] == [0, 128, 128]


def test_images_of_other_proportions_differ_even_with_the_same_values(model: Decoder) -> None:
    white = np.full((16, 48, 3), 255, np.uint8)
    prompts: list[Any] = [[{"image": image}, "say"] for image in (white, white.swapaxes(0, 1))]
    first, second = (model._reader(model.tokenizer).prompts([prompt], {})[0] for prompt in prompts)
    assert first.pictures[0].columns == 6
    assert second.pictures[0].columns == 2
    assert not {*first.pictures[0].ids} & {*second.prompt}


def logits_after(runner: Runner, parts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    for part in parts:
        last = runner.chunk(0, part, positions=[len(part) - 1]).copy()
    return last


def test_chunks_rewinding_and_snapshots_keep_positions(model: Decoder) -> None:
    (request,) = model._reader(model.tokenizer).prompts([PROMPTS["several images"]], {})
    engine, ids = model._engine, request.prompt
    whole = Runner(engine, engine.slots())
    expected = logits_after(whole, [ids])
    cuts = [0, 5, 13, 27, 31, len(ids)]
    cut = Runner(engine, engine.slots())
    got = logits_after(cut, [ids[start:end] for start, end in pairwise(cuts)])
    np.testing.assert_allclose(got, expected, atol=2e-4)
    # back into the first image, and forward again
    cut.slots.rewind(13)
    np.testing.assert_allclose(logits_after(cut, [ids[13:]]), expected, atol=2e-4)
    # a snapshot of a part, after another row has been there
    held = whole.slots.view(start=0, end=40).copy()
    assert held.shifts
    other = Runner(engine, engine.slots())
    logits_after(other, [list(range(3, 90))])
    other.restore(held)
    np.testing.assert_allclose(logits_after(other, [ids[40:]]), expected, atol=2e-4)
    # a row that forgets its images counts from 0
    other.slots.rewind(0)
    text = list(range(3, 40))
    plain = logits_after(Runner(engine, engine.slots()), [text])
    np.testing.assert_allclose(logits_after(other, [text]), plain, atol=2e-4)


def test_positions_of_an_image_are_its_rows_and_columns(model: Decoder) -> None:
    pictures = model._engine.pictures
    assert pictures is not None
    held = pictures.hold(np.ones((6, 96), np.float32), columns=3)
    placed = pictures.place([3, 4, *held.ids, 5])
    assert placed.positions[0].T.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 2, 3, 3, 3, 5],
        [0, 1, 2, 3, 4, 2, 3, 4, 5],
    ]
    assert placed.shifts == [Shift(8, 3)]


def test_a_service_computes_the_same_in_chunks_of_any_size(model: Decoder) -> None:
    prompts: list[Any] = [PROMPTS["several images"], PROMPTS["no image"], PROMPTS["a wide image"]]
    options: Any = {"max_new_tokens": NEW, "ignore_eos": True, "logprobs": 2}
    done = []
    for slots, chunk in ((1, 128), (3, 16)):
        with model.serve(slots=slots, chunk=chunk, cache_bytes=0) as service:
            tickets = [service.submit(prompt, **options) for prompt in prompts]
            done.append([ticket.completion() for ticket in tickets])
    for one, other in zip(*done, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == other.logprobs  # to the bit


def test_a_chat_writes_the_tokens_around_an_image(model: Decoder) -> None:
    content = [{"type": "image", "image": WIDE}, {"type": "text", "text": "say"}]
    reply = model.chat([{"role": "user", "content": content}], max_new_tokens=2)
    # 12 vectors between two tokens, and the texts around them
    assert reply.completion.timings.prompt_tokens == 12 + 2 + len("user:say</s>A:")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("positions", "sequence", "position_ids"),
        ("positions", "columns", "positions"),
        ("tiles", {"grid": {"by": "longest_side", "pixels": 64}}, "whole images as grids"),
    ],
)
def test_another_manifest_is_refused(
    key: str, value: Any, message: str, folder: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "copy"))
    edit_json(copied, "manifest.json", put("images", key, value=value))
    with pytest.raises(BundleError, match=message):
        ortolan.load(copied)


def test_the_language_model_alone_has_plain_positions(checkpoint: Path, tmp_path: Path) -> None:
    bundle = ortolan.export(checkpoint, tmp_path / "bundle", options=ExportOptions(text_only=True))
    graph = next(iter(bundle.graphs.values()))
    assert "position_ids" not in {value.name for value in graph.inputs}
    assert "ai.onnx::RotaryEmbedding" not in graph.operators


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_low_bit_bundles_read_grids(precision: Any, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    ortolan.export(checkpoint, out, precision=precision, options=ExportOptions(allow_poor=True))
    assert verify(out, isolate=False).verdict != "FAIL"
    model = ortolan.load(out, Decoder)
    prompts = [PROMPTS["several images"], PROMPTS["a wide image"]]
    alone = [greedy(model, [prompt])[0].tokens for prompt in prompts]
    assert [done.tokens for done in greedy(model, prompts)] == alone


def test_qwen3_5_reads_grids_between_recurrent_layers(tmp_path: Path) -> None:
    tiny_qwen3_vl.write(tmp_path / "checkpoint", QWEN3_5_VL)
    ortolan.export(tmp_path / "checkpoint", tmp_path / "bundle")
    assert verify(tmp_path / "bundle", isolate=False).verdict == "PASS"
    model = ortolan.load(tmp_path / "bundle", Decoder)
    prompts = [*PROMPTS.values()]
    got = [list(greedy(model, [prompt])[0].tokens) for prompt in prompts]
    assert got == expected_tokens(model, tmp_path / "checkpoint", prompts)
    assert [list(done.tokens) for done in greedy(model, prompts)] == got
