"""Decoders that read images, beyond what holds for all (`tests/cases/images.py`)."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.cases.grids import QWEN_VL
from tests.cases.images import (
    FIRST,
    GEMMA_WHOLE,
    OF_LLAVA,
    TALL,
    VECTORS,
    WIDE,
    by_llava,
    gemma_processor,
    write_gemma,
)
from tests.cases.run import Runs
from transformers import Gemma3ForConditionalGeneration

import ortolan
from ortolan.export.errors import LayoutError, OptionError
from ortolan.export.layouts.genai import check_convertible
from ortolan.export.options import ExportOptions
from ortolan.runtime import BundleError, Decoder, InputError, Sampling, open_bundle, verify
from ortolan.runtime.engine.pictures import Picture, Shift
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.inputs.media import MediaPrompt
from ortolan.runtime.inputs.medium import Medium


@pytest.fixture
def llava(runs: Runs) -> Decoder:
    model: Decoder = runs(OF_LLAVA).model
    return model


def test_a_placeholder_in_the_text_of_a_user_is_only_text(llava: Decoder) -> None:
    def count(text: str) -> int:
        content = [{"type": "image", "image": FIRST}, {"type": "text", "text": text}]
        reply = llava.chat([{"role": "user", "content": content}], max_new_tokens=1)
        return reply.completion.timings.prompt_tokens

    assert 0 < count("say <image>") - count("say ") < VECTORS


def test_penalties_are_those_of_transformers(runs: Runs) -> None:
    run = runs(OF_LLAVA)
    prompt = OF_LLAVA.inputs["two images"]
    sampling = Sampling(repetition_penalty=1.5)
    done = run.model.generate(prompt, max_new_tokens=8, ignore_eos=True, sampling=sampling)
    ((_, tokens),) = by_llava(run.checkpoint, [prompt], repetition_penalty=1.5)
    assert list(done.tokens) == tokens
    assert by_llava(run.checkpoint, [prompt])[0][1] != tokens


def test_onnxruntime_genai_has_no_such_layout(runs: Runs) -> None:
    with pytest.raises(LayoutError, match="reads images"):
        check_convertible(open_bundle(runs(OF_LLAVA).bundle))


def test_an_export_replaces_the_encoder_too(runs: Runs, tmp_path: Path) -> None:
    run = runs(OF_LLAVA)
    copy = run.copied(tmp_path)
    ortolan.export(run.checkpoint, copy, precision="int8", force=True)
    assert verify(copy, isolate=False).verdict == "PASS"
    assert open_bundle(copy / "vision").manifest.precision == "int8"
    assert open_bundle(copy).manifest.provenance.left_out == ()


@pytest.mark.slow
@pytest.mark.parametrize("case", [GEMMA_WHOLE, QWEN_VL], ids=lambda case: case.name)
def test_the_language_model_alone_has_no_trace_of_images(
    case: Any, runs: Runs, tmp_path: Path
) -> None:
    options = ExportOptions(text_only=True)
    bundle = ortolan.export(runs(case).checkpoint, tmp_path / "bundle", options=options)
    assert bundle.manifest.features is None
    assert not (tmp_path / "bundle" / "vision").exists()
    assert set(bundle.manifest.graphs) == {"decoder"}
    assert "position_ids" not in {value.name for value in bundle.graphs["decoder"].inputs}
    assert "ai.onnx::RotaryEmbedding" not in bundle.graphs["decoder"].operators
    assert bundle.manifest.provenance.left_out != ()


# --- Gemma 3: vectors of an image see each other --------------------------------------------------


@pytest.fixture
def gemma(runs: Runs) -> Decoder:
    model: Decoder = runs(GEMMA_WHOLE).model
    return model


def held(model: Decoder, count: int) -> Picture:
    """An image of so many vectors."""
    assert model._engine.pictures is not None
    vectors = np.random.default_rng(count).normal(size=(count, 32)).astype(np.float32)
    return model._engine.pictures.hold(vectors)


def request_of(model: Decoder, prompt: Any) -> Any:
    (request,) = model._reader(model.tokenizer).prompts([prompt], {"max_new_tokens": 1})
    return request


@pytest.mark.slow
@pytest.mark.parametrize("name", GEMMA_WHOLE.inputs)
def test_logits_of_every_token_are_those_of_transformers(name: str, runs: Runs) -> None:
    run, prompt = runs(GEMMA_WHOLE), GEMMA_WHOLE.inputs[name]
    request = request_of(run.model, prompt)
    runner = Runner(run.model._engine, run.model._engine.slots())
    got = runner.teacher_forced(request.prompt)
    text = "".join(part if isinstance(part, str) else "<start_of_image>" for part in prompt)
    images = [Image.fromarray(part["image"]) for part in prompt if not isinstance(part, str)]
    given = gemma_processor(run.checkpoint)(images=[images], text=[text], return_tensors="pt")
    assert request.tokens == given["input_ids"][0].tolist()
    with torch.inference_mode():
        model = Gemma3ForConditionalGeneration.from_pretrained(run.checkpoint)
        wanted = model(**given).logits[0].numpy()
    assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.slow
def test_an_odd_number_of_vectors_is_computed_from_its_start(gemma: Decoder) -> None:
    engine, image = gemma._engine, held(gemma, 15)
    ids = [9, *image.ids, 9]
    runner = Runner(engine, engine.slots(), exact=True)
    wanted = runner.prefill(0, ids)
    runner.slots.rewind(7, row=0)
    assert runner.rewind_to_cut(0, ids) == 1
    np.testing.assert_array_equal(runner.prefill(0, ids[1:]), wanted)
    free = Runner(engine, engine.slots())
    free.prefill(0, ids)
    free.slots.rewind(7, row=0)
    assert free.rewind_to_cut(0, ids) == 7


@pytest.mark.slow
def test_chunks_never_end_within_an_image(gemma: Decoder) -> None:
    engine, image = gemma._engine, held(gemma, 16)
    for before, most in itertools.product((0, 1, 15, 60, 64), (4, 16, 64)):
        ids = [7] * before + [*image.ids] + [7] * 30
        runner, starts = Runner(engine, engine.slots(), chunk=most), []
        for start, part in runner.chunks(0, ids):
            starts.append(start)
            runner.chunk(0, part, positions=[0])
        assert all(not before < start < before + 16 for start in starts)
        assert runner.slots.lengths[0] == len(ids)


@pytest.mark.slow
def test_a_manifest_without_the_right_graph_is_refused(runs: Runs, tmp_path: Path) -> None:
    out = runs(GEMMA_WHOLE).copied(tmp_path)
    manifest = json.loads((out / "manifest.json").read_text())
    graphs = manifest["graphs"]
    for changed, message in (
        ({"decoder": graphs["both_ways"], "both_ways": graphs["decoder"]}, "attention of a token"),
        ({"decoder": graphs["decoder"]}, "both_ways"),
    ):
        (out / "manifest.json").write_text(json.dumps(manifest | {"graphs": changed}))
        with pytest.raises(BundleError, match=message):
            open_bundle(out)


@pytest.mark.slow
def test_adjacent_images_are_refused(gemma: Decoder) -> None:
    assert gemma.manifest.features is not None
    token = gemma.manifest.features.token
    media = (Medium("images", WIDE), Medium("images", TALL))
    with pytest.raises(InputError, match="next to each other"):
        gemma.generate(MediaPrompt([5, token, token], media))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda", "precision": "fp16"}, "need the cpu"),
        ({"options": ExportOptions(attention="portable")}, "need fused attention"),
    ],
)
def test_devices_and_attention_without_a_kernel_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_gemma(tmp_path)
    with pytest.raises(OptionError, match=message):
        ortolan.export(tmp_path, tmp_path / "bundle", **changes)


# --- Qwen3-VL: rows and columns of vectors --------------------------------------------------------


@pytest.fixture
def qwen(runs: Runs) -> Decoder:
    model: Decoder = runs(QWEN_VL).model
    return model


@pytest.mark.slow
def test_a_restored_part_and_a_row_that_forgets_its_images_keep_positions(qwen: Decoder) -> None:
    engine = qwen._engine
    ids = request_of(qwen, QWEN_VL.inputs["several images"]).prompt

    def logits(runner: Runner, part: Sequence[int]) -> NDArray[np.float32]:
        return runner.chunk(0, part, positions=[len(part) - 1]).copy()

    whole, other = (Runner(engine, engine.slots()) for _ in range(2))
    expected = logits(whole, ids)
    kept = whole.slots.view(start=0, end=40).copy()
    assert kept.shifts
    logits(other, list(range(3, 90)))  # another text has been there
    other.restore(kept)
    np.testing.assert_allclose(logits(other, ids[40:]), expected, atol=2e-4)
    other.slots.rewind(0)
    text = list(range(3, 40))
    plain = logits(Runner(engine, engine.slots()), text)
    np.testing.assert_allclose(logits(other, text), plain, atol=2e-4)


@pytest.mark.slow
def test_positions_of_an_image_are_its_rows_and_columns(qwen: Decoder) -> None:
    pictures = qwen._engine.pictures
    assert pictures is not None
    image = pictures.hold(np.ones((6, 96), np.float32), columns=3)
    placed = pictures.place([3, 4, *image.ids, 5])
    assert placed.positions[0].T.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 2, 3, 3, 3, 5],
        [0, 1, 2, 3, 4, 2, 3, 4, 5],
    ]
    assert placed.shifts == [Shift(8, 3)]
