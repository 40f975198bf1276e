"""A decoder whose image vectors see each other: Gemma 3, against transformers."""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image
from tests.export import tiny_gemma3
from tests.runtime.damaged_bundles import edit_json, put
from tests.tiny.media import NEW, answer_of, assert_same_every_way, greedy, picture, served
from transformers import Gemma3Processor, PreTrainedTokenizerFast

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.options import ExportOptions
from ortolan.runtime import Decoder, InputError, load, verify
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.pictures import Picture, run_around, runs
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.errors import BundleError
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.inputs.media import MediaPrompt
from ortolan.runtime.inputs.medium import Medium

pytestmark = pytest.mark.slow

TEXTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "windows": {
        **{"head_dim": 128, "query_pre_attn_scalar": 128},
        **{"num_attention_heads": 1, "num_key_value_heads": 1},
    },
}
"""Language models whose states hold all tokens, or the last ones only: heads of 128 channels have
the smallest steps."""


WIDE, TALL = picture(20, 30), picture(33, 9)

PROMPTS: dict[str, list[Any]] = {
    "first": [{"image": WIDE}, "what is this"],
    "last, after a line break": ["what is\n", {"image": TALL}],
    "two, one in a row": ["a ", {"image": WIDE}, {"image": TALL}, "\n say"],
    "beyond windows": ["so long. " * 40, {"image": WIDE}, " and " * 30, {"image": TALL}, "?"],
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gemma3")
    for name, text in TEXTS.items():
        tiny_gemma3.write(folder / name, text=text)
        ortolan.export(folder / name, folder / name / "bundle")
    return {name: folder / name for name in TEXTS}


@pytest.fixture(scope="module")
def models(checkpoints: dict[str, Path]) -> dict[str, Decoder]:
    return {name: load(folder / "bundle", Decoder) for name, folder in checkpoints.items()}


@lru_cache(maxsize=2)
def reference(folder: Path) -> tuple[Any, Any]:
    """Processor and model of transformers."""
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folder / "tokenizer.json"), extra_special_tokens=tiny_gemma3.NAMED
    )
    images = transformers.Gemma3ImageProcessorPil.from_pretrained(folder)
    processor: Any = Gemma3Processor(images, tokenizer, image_seq_length=tiny_gemma3.VECTORS)
    return processor, transformers.Gemma3ForConditionalGeneration.from_pretrained(folder)


def processed(folder: Path, parts: Sequence[Any]) -> Any:
    """Inputs that transformers' processor makes of a prompt."""
    processor, _ = reference(folder)
    text = "".join(part if isinstance(part, str) else "<start_of_image>" for part in parts)
    images = [Image.fromarray(part["image"]) for part in parts if not isinstance(part, str)]
    return processor(images=[images], text=[text], return_tensors="pt")


def expected(folder: Path, parts: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Ids of a prompt and the tokens that transformers generates for it."""
    given = processed(folder, parts)
    ids: list[int] = given["input_ids"][0].tolist()
    return ids, answer_of(reference(folder)[1], given)


def vectors_of(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).normal(size=(count, 32)).astype(np.float32)


def request_of(model: Decoder, parts: Any) -> Any:
    (request,) = model._reader(model.tokenizer).prompts([parts], {"max_new_tokens": 1})
    return request


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_tokens_and_logits_are_those_of_transformers(
    name: str, prompt: str, models: dict[str, Decoder], checkpoints: dict[str, Path]
) -> None:
    model, parts = models[name], PROMPTS[prompt]
    ids, tokens = expected(checkpoints[name], parts)
    completion = greedy(model, parts)
    assert completion.timings.prompt_tokens == len(ids)
    assert list(completion.tokens) == tokens
    request = request_of(model, parts)
    assert request.tokens == ids
    logits_SV = Runner(model._engine, model._engine.slots()).teacher_forced(request.prompt)
    with torch.inference_mode():
        given = processed(checkpoints[name], parts)
        theirs = reference(checkpoints[name])[1](**given).logits[0].numpy()
    assert np.abs(logits_SV - theirs).max() <= 1e-4 * np.abs(theirs).max()


def test_vectors_see_those_after_them(models: dict[str, Decoder]) -> None:
    """The same vectors as tokens of a causal prompt give other logits."""
    engine = models["whole"]._engine
    assert engine.pictures is not None
    image = engine.pictures.hold(vectors_of(6))

    def states(ids: Sequence[int]) -> NDArray[Any]:
        runner = Runner(engine, engine.slots())
        runner.chunk(0, ids, positions=[0])
        return np.asarray(runner.slots.snapshot().buffers[-1])

    longer = states(image.ids)
    assert not np.allclose(longer[:, :, :3], states(image.ids[:3]), atol=1e-3)


SIZES = [(16, 16), (15, 17), (1, 40), (40, 1), (3, 3), (100, 33), (7, 64), (1, 1), (31, 31)]


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_transformers(
    size: tuple[int, int], models: dict[str, Decoder], checkpoints: dict[str, Path]
) -> None:
    encoder = models["whole"]._encoder
    assert encoder is not None
    processor, model = reference(checkpoints["whole"])
    for mode in ("L", "RGB", "RGBA"):  # what an array can be; files are read elsewhere
        image = Image.fromarray(picture(*size)).convert(mode)
        theirs = processor.image_processor(image, return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(encoder.pixels(np.asarray(image)), theirs, atol=1e-5)
    with torch.inference_mode():
        output: Any = model.get_image_features(torch.from_numpy(theirs)[None])
        features = output.pooler_output[0].numpy()
    ours = encoder.vectors(encoder.pixels(np.asarray(image.convert("RGB"))))
    assert np.abs(ours - features).max() <= 1e-4 * np.abs(features).max()


def test_a_batch_a_stream_and_a_service_give_the_same(models: dict[str, Decoder]) -> None:
    model = models["windows"]
    prompts = [*PROMPTS.values()]
    assert_same_every_way(model, prompts, drafts=False)


@pytest.mark.parametrize("name", TEXTS)
def test_a_prefix_may_end_within_an_image(name: str, models: dict[str, Decoder]) -> None:
    """One block of the prefix cache ends there, whatever the parity of what is left."""
    model = models[name]
    for before in (115, 116):
        start = ["x" * before, {"image": WIDE}]
        prompts = [[*start, "what?"], [*start, "who?"], ["x" * before, {"image": TALL}, "who?"]]
        alone = [greedy(model, [prompt])[0].tokens for prompt in prompts]
        done = served(model, prompts, slots=1)
        assert [completion.tokens for completion in done] == alone
        assert [completion.timings.cached_tokens for completion in done] in (
            [0, 128, 0],
            [0, 127, 0],
        )


def test_a_chat_writes_the_texts_around_an_image(
    models: dict[str, Decoder], checkpoints: dict[str, Path]
) -> None:
    model, folder = models["whole"], checkpoints["whole"]
    said = {"type": "text", "text": "say <start_of_image>"}
    message = {"role": "user", "content": [{"type": "image", "image": WIDE}, said]}
    (question,) = [model._chat.question([message], {"sampling": Sampling()})]
    assert isinstance(question.prompt, MediaPrompt)
    text = [{"image": WIDE}, "say SAFE<end_of_turn>\n<start_of_turn>model\n"]
    ids = processed(folder, ["<start_of_turn>user\n", *text])["input_ids"][0].tolist()
    safe = model.tokenizer.encode("SAFE") if model.tokenizer else []
    place = next(n for n in range(len(ids)) if ids[n : n + len(safe)] == safe)
    ours = request_of(model, question.prompt).tokens
    assert ours[:place] == ids[:place]
    tail = len(ids) - place - len(safe)
    assert ours[-tail:] == ids[-tail:]
    plain = {"role": "user", "content": [{"type": "image", "image": WIDE}, said | {"text": "say"}]}
    parts = ["<start_of_turn>user\n", {"image": WIDE}, "say<end_of_turn>\n<start_of_turn>model\n"]
    completion = model.chat([plain], max_new_tokens=NEW, ignore_eos=True, sampling=Sampling())
    assert list(completion.completion.tokens) == expected(folder, parts)[1]


def test_a_conversation_continues_after_an_image(models: dict[str, Decoder]) -> None:
    model = models["windows"]
    options: Any = {"max_new_tokens": 4, "sampling": Sampling()}
    conversation = model.conversation()
    image = {"type": "image", "image": WIDE}
    conversation.messages += [
        {"role": "user", "content": [image, {"type": "text", "text": "what?"}]},
        {"role": "assistant", "content": "yes"},
    ]
    for question in ("and?", "where?"):
        asked = [*conversation.messages, {"role": "user", "content": question}]
        fresh = model.chat(asked, **options)
        reply = conversation.ask(question, **options)
        assert reply.completion.tokens == fresh.completion.tokens
    assert reply.completion.timings.cached_tokens > tiny_gemma3.VECTORS


# --- exactness ------------------------------------------------------------------------------------


def prompts_of_vectors(image: Picture) -> Iterator[list[int]]:
    """Prompts with an image of 16 vectors after an even or odd number of tokens, or none."""
    words = [5 + index % 60 for index in range(300)]
    for before, after in ((0, 5), (17, 3), (40, 0), (131, 9), (250, 20)):
        yield [*words[:before], *image.ids, *words[:after]]


@pytest.mark.parametrize("name", TEXTS)
def test_cuts_and_restored_states_change_no_bit(name: str, models: dict[str, Decoder]) -> None:
    engine = models[name]._engine
    assert engine.pictures is not None
    image = engine.pictures.hold(vectors_of(16))

    def result(runner: Runner, ids: Sequence[int]) -> list[Any]:
        logits = runner.prefill(1, ids)
        return [logits, *runner.slots.snapshot(row=1).buffers]

    def new(chunk: int) -> Runner:
        return Runner(engine, engine.slots(2), exact=True, chunk=chunk)

    for ids in prompts_of_vectors(image):
        whole = new(128)
        wanted = result(whole, ids)
        for chunk in (16, 32):
            assert all(map(np.array_equal, result(new(chunk), ids), wanted))
        place = ids.index(image.ids[0])
        for length in (place + 1, place + 8, place + 13, len(ids) - 1):
            if length >= len(ids) or length < 1:
                continue
            whole.slots.rewind(length, row=1)
            start = whole.settle(1, ids)
            assert length - 1 <= start <= length
            assert all(map(np.array_equal, result(whole, ids[start:]), wanted))


def test_an_odd_number_of_vectors_is_computed_from_its_start(models: dict[str, Decoder]) -> None:
    engine = models["whole"]._engine
    assert engine.pictures is not None
    image = engine.pictures.hold(vectors_of(15))
    ids = [9, *image.ids, 9]
    runner = Runner(engine, engine.slots(), exact=True)
    wanted = runner.prefill(0, ids)
    runner.slots.rewind(7, row=0)
    assert runner.settle(0, ids) == 1
    np.testing.assert_array_equal(runner.prefill(0, ids[1:]), wanted)
    free = Runner(engine, engine.slots())
    free.prefill(0, ids)
    free.slots.rewind(7, row=0)
    assert free.settle(0, ids) == 7


def test_chunks_never_end_within_an_image(models: dict[str, Decoder]) -> None:
    engine = models["whole"]._engine
    assert engine.pictures is not None
    image = engine.pictures.hold(vectors_of(16))
    for before, most in itertools.product((0, 1, 15, 60, 64), (4, 16, 64)):
        ids = [7] * before + [*image.ids] + [7] * 30
        runner, starts = Runner(engine, engine.slots()), []
        for start, part in runner.chunks(0, ids, most=most):
            starts.append(start)
            runner.chunk(0, part, positions=[0])
        assert all(not before < start < before + 16 for start in starts)
        assert runner.slots.lengths[0] == len(ids)


def test_runs_of_vectors_are_found() -> None:
    first = 1 << 62
    ids = [1, first, first + 1, 2, 3, first]
    assert [(run.start, run.stop) for run in runs(ids)] == [(0, 1), (1, 3), (3, 5), (5, 6)]
    found = [run_around(ids, place) for place in range(7)]
    assert [(run.start, run.stop) for run in found if run.start < run.stop] == [(1, 3)]


# --- proof, and what is refused -------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_verification_covers_vectors_that_see_each_other(
    name: str, checkpoints: dict[str, Path]
) -> None:
    report = verify(checkpoints[name] / "bundle", isolate=False)
    assert report.verdict == "PASS"
    assert report.exact is not None
    assert report.exact.different == ()


def copied(checkpoints: dict[str, Path], folder: Path) -> Path:
    return Path(shutil.copytree(checkpoints["whole"] / "bundle", folder / "bundle"))


@pytest.mark.parametrize(
    ("keys", "value"),
    [(("wrapping", "before"), "\n<start_of_image>"), (("wrapping", "marker"), "x")],
)
def test_other_texts_around_an_image_are_found(
    keys: tuple[str, ...], value: Any, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    out = copied(checkpoints, tmp_path)
    edit_json(out, "manifest.json", put("images", *keys, value=value))
    assert verify(out, isolate=False).verdict == "FAIL"


def test_a_manifest_and_graphs_that_disagree_are_refused(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    out = copied(checkpoints, tmp_path)
    manifest = json.loads((out / "manifest.json").read_text())
    edit_json(out, "manifest.json", put("images", "attention", value="causal"))
    with pytest.raises(BundleError, match="both_ways"):
        open_bundle(out, trust=True)
    graphs = manifest["graphs"]
    swapped = {"decoder": graphs["both_ways"], "both_ways": graphs["decoder"]}
    (out / "manifest.json").write_text(json.dumps(manifest | {"graphs": swapped}))
    with pytest.raises(BundleError, match="attention of a token to"):
        open_bundle(out, trust=True)
    alone = {"decoder": graphs["decoder"]}
    (out / "manifest.json").write_text(json.dumps(manifest | {"graphs": alone}))
    with pytest.raises(BundleError, match="both_ways"):
        open_bundle(out, trust=True)


def test_adjacent_images_are_refused(models: dict[str, Decoder]) -> None:
    model = models["whole"]
    features = model.manifest.features
    assert features is not None
    media = (Medium("images", WIDE), Medium("images", TALL))
    with pytest.raises(InputError, match="next to each other"):
        model.generate(MediaPrompt([5, features.token, features.token], media))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"device": "cuda", "precision": "fp16"}, "need the cpu"), ({}, "need fused attention")],
)
def test_devices_and_attention_without_a_kernel_are_refused(
    changes: dict[str, Any], message: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    options = ExportOptions() if changes else ExportOptions(attention="portable")
    with pytest.raises(OptionError, match=message):
        ortolan.export(checkpoints["whole"], tmp_path / "bundle", options=options, **changes)


def test_pan_and_scan_is_refused_if_it_is_on(tmp_path: Path) -> None:
    tiny_gemma3.write(tmp_path, do_pan_and_scan=True)
    with pytest.raises(OptionError, match="do_pan_and_scan"):
        ortolan.export(tmp_path, tmp_path / "bundle")


def test_the_language_model_alone_has_no_such_graph(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    bundle = ortolan.export(
        checkpoints["whole"], tmp_path / "bundle", options=ExportOptions(text_only=True)
    )
    assert set(bundle.manifest.graphs) == {"decoder"}


@pytest.mark.parametrize(
    ("name", "precision", "options"),
    [
        ("windows", "int8", ExportOptions(allow_poor=True)),
        ("whole", "int4", ExportOptions(graphs="split", allow_poor=True)),
        ("windows", "int4", ExportOptions(allow_poor=True, cache="int8")),
        ("windows", "fp16", ExportOptions()),
        ("whole", "fp32", ExportOptions(graphs="split", attention_maps=True)),
    ],
)
def test_other_graphs_read_images_too(
    name: str, precision: Any, options: ExportOptions, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    ortolan.export(checkpoints[name], out, precision=precision, options=options)
    assert verify(out, isolate=False).verdict != "FAIL"
    model = load(out, Decoder)
    prompts = [PROMPTS["first"], PROMPTS["last, after a line break"]]
    alone = [greedy(model, [prompt])[0].tokens for prompt in prompts]
    assert [done.tokens for done in greedy(model, prompts)] == alone
