"""Decoders that read images: bundles against transformers, and every way to compute a prompt."""

import base64
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.export import tiny_llava, tiny_models
from tests.runtime.damaged_bundles import edit_json, put
from tests.tiny.media import (
    NEW,
    Pixels,
    answer_of,
    assert_damage_is_found,
    assert_same_every_way,
    assert_verified,
    greedy,
    picture,
    png,
    served,
)
from tests.tiny.tokenizers import of_characters

import ortolan
from ortolan.export.errors import LayoutError
from ortolan.export.layouts.genai import check_convertible
from ortolan.export.options import ExportOptions
from ortolan.runtime import (
    BundleError,
    BundleKindError,
    CertificateError,
    ChatError,
    Decoder,
    InputError,
    Sampling,
    open_bundle,
    verify,
)

FIRST, SECOND = picture(seed=1), picture(seed=2)

PROMPTS: dict[str, list[Any]] = {
    "no image": ["what is this"],
    "an image": [{"image": FIRST}, "what is this"],
    "an image at the end": ["what is ", {"image": FIRST}],
    "two images": ["a ", {"image": FIRST}, " and ", {"image": SECOND}, " say"],
    "two images in a row": [{"image": SECOND}, {"image": FIRST}, "say"],
    "an image twice": [{"image": FIRST}, "and", {"image": FIRST}],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava") / "checkpoint"
    tiny_llava.write(folder)
    return folder


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Any:
    from transformers import LlavaForConditionalGeneration

    return LlavaForConditionalGeneration.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("images") / "bundle"
    ortolan.export(checkpoint, out)
    return out


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return ortolan.load(folder, Decoder)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def expected_tokens(
    model: Decoder, reference: Any, parts: Sequence[Any], **penalties: float
) -> list[int]:
    """Tokens that transformers generates for a prompt whose placeholders are expanded."""
    assert model.tokenizer is not None
    features = model.manifest.features
    assert features is not None
    text = "".join(part if isinstance(part, str) else "<image>" for part in parts)
    ids = [
        token
        for one in model.tokenizer.encode(text)
        for token in [one] * (tiny_llava.VECTORS if one == features.token else 1)
    ]
    images = [part["image"] for part in parts if not isinstance(part, str)]
    given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    if images:
        # the normalization of CLIP, by its published numbers
        mean = np.array([0.48145466, 0.4578275, 0.40821073])
        std = np.array([0.26862954, 0.26130258, 0.27577711])
        pixels = (np.stack(images) / 255 - mean) / std
        given["pixel_values"] = torch.tensor(pixels.transpose(0, 3, 1, 2), dtype=torch.float32)
    return answer_of(reference, given, **penalties)


@pytest.mark.parametrize("name", PROMPTS)
def test_tokens_are_those_of_transformers(name: str, model: Decoder, reference: Any) -> None:
    parts = PROMPTS[name]
    prompt: Any = parts[0] if name == "no image" else parts
    completion = greedy(model, prompt)
    assert list(completion.tokens) == expected_tokens(model, reference, parts)
    images = sum(not isinstance(part, str) for part in parts)
    assert completion.timings.prompt_tokens > tiny_llava.VECTORS * images


def test_an_image_changes_the_answer(model: Decoder) -> None:
    first, second = ([{"image": image}, "what is this"] for image in (FIRST, SECOND))
    assert greedy(model, first).tokens != greedy(model, second).tokens


def test_a_batch_a_stream_a_service_and_drafts_give_the_same(model: Decoder) -> None:
    prompts: list[Any] = [parts for name, parts in PROMPTS.items() if name != "no image"]
    assert_same_every_way(model, prompts)
    with model.stream(prompts[0], max_new_tokens=NEW, ignore_eos=True) as stream:
        text = "".join(stream)
    assert text == stream.completion.text


def test_a_prefix_cache_tells_images_apart(model: Decoder) -> None:
    rest: list[Any] = [{"image": picture(seed=seed)} for seed in range(3, 12)]  # more than a block
    prompts = [[{"image": image}, *rest, "?"] for image in (FIRST, SECOND, FIRST)]
    alone = [greedy(model, [prompt])[0].tokens for prompt in prompts]
    assert alone[0] != alone[1]
    done = served(model, prompts, slots=1)
    assert [completion.tokens for completion in done] == alone
    assert [completion.timings.cached_tokens for completion in done] == [0, 0, 128]


def data_url(image: Pixels) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"


def question(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [part, {"type": "text", "text": "say <image>"}]}]


def test_a_message_holds_an_image_in_any_form(model: Decoder, tmp_path: Path) -> None:
    url = data_url(FIRST)
    data = base64.b64decode(url.partition(",")[2])
    (tmp_path / "image.png").write_bytes(data)
    parts: dict[str, dict[str, Any]] = {
        "data URL": {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        "array": {"type": "image", "image": FIRST},
        "bytes": {"type": "image", "image": data},
        "path": {"type": "image", "image": tmp_path / "image.png"},
    }
    options: Any = {"max_new_tokens": NEW, "ignore_eos": True, "sampling": Sampling()}
    replies = [model.chat(question(part), n=1, **options)[0] for part in parts.values()]
    assert all(reply.completion.tokens == replies[0].completion.tokens for reply in replies)
    other = model.chat(question({"type": "image", "image": SECOND}), **options)
    assert other.completion.tokens != replies[0].completion.tokens
    # the placeholder in the user's text is only text, and stands for no image
    message = question(parts["path"])
    message[0]["content"][1]["text"] = "say "
    shorter = model.chat(message, **options).completion.timings.prompt_tokens
    more = replies[0].completion.timings.prompt_tokens - shorter
    assert shorter > tiny_llava.VECTORS
    assert 0 < more < tiny_llava.VECTORS
    with model.serve(slots=1) as service:
        for part in parts.values():
            ticket = service.chat(question(part), **options)
            assert ticket.reply().completion.tokens == replies[0].completion.tokens
    conversation = model.conversation()
    conversation.messages += question(parts["path"])
    conversation.messages += [{"role": "assistant", "content": "yes"}]
    assert (
        conversation.ask("and?", max_new_tokens=2).completion.timings.prompt_tokens
        > tiny_llava.VECTORS
    )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "Nothing is"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "Nothing is"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,???"}}, "base64"),
        ({"type": "image_url", "image_url": "data:"}, "expected an object"),
        ({"type": "image_url"}, "expected an object"),
        ({"type": "image", "image": "/etc/passwd"}, "expected the bytes of a file"),
        ({"type": "image"}, "expected the bytes of a file"),
        ({"type": "video", "video": b""}, 'expected "text", "image_url" or "input_audio"'),
        ({"type": "image_url", "image_url": {"url": data_url(FIRST)}, "text": ""}, "Leave it out"),
    ],
)
def test_an_invalid_part_of_a_message_is_refused(
    part: dict[str, Any], message: str, model: Decoder
) -> None:
    with pytest.raises(ChatError, match=message):
        model.chat(question(part))


@pytest.mark.parametrize("data", [b"", b"no image", data_url(FIRST).encode()])
def test_a_file_that_is_no_image_is_refused(data: bytes, model: Decoder) -> None:
    with pytest.raises(InputError):
        model.generate([{"image": data}, "say"])
    with pytest.raises(InputError):
        model.chat(question({"type": "image", "image": data}))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([{"image": FIRST}, 3], "must be a text or"),
        ([{"picture": FIRST}], "must be a text or"),
        ([{"image": FIRST, "detail": "low"}], "must be a text or"),
        ([{"image": FIRST}, "<image>"], "1 images and 2 placeholders"),
        ([{"image": "missing.png"}], "missing.png"),
    ],
)
def test_an_invalid_prompt_is_refused(prompt: Any, message: str, model: Decoder) -> None:
    with pytest.raises(InputError, match=message):
        model.generate(prompt)


def test_vectors_have_no_log_probabilities(model: Decoder) -> None:
    with pytest.raises(InputError, match="prompt_logprobs"):
        model.generate([{"image": FIRST}], prompt_logprobs=1)


def test_penalties_are_those_of_transformers(model: Decoder, reference: Any) -> None:
    parts = PROMPTS["two images"]
    expected = expected_tokens(model, reference, parts, repetition_penalty=1.5)
    assert expected != expected_tokens(model, reference, parts)
    sampling = Sampling(repetition_penalty=1.5)
    assert list(greedy(model, parts, sampling=sampling).tokens) == expected


def test_a_model_of_text_takes_no_images(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    of_characters().save(str(tokenizer))
    ortolan.export(
        tiny_models.decoder(tiny_models.llama()),
        tmp_path / "bundle",
        options=ExportOptions(tokenizer=tokenizer),
    )
    model = ortolan.load(tmp_path / "bundle", Decoder)
    with pytest.raises(BundleKindError, match="reads text only"):
        model.generate([{"image": FIRST}, "say"])


def test_verification_covers_the_encoder(folder: Path) -> None:
    assert_verified(folder)


@pytest.mark.parametrize("part", ["vision", "."])
def test_a_damaged_weight_is_found(part: str, copied: Path) -> None:
    assert_damage_is_found(copied, part, "projections.1.weight", "expected the encoder of images")


def test_another_encoder_is_refused(copied: Path) -> None:
    edit_json(copied / "vision", "manifest.json", put("source", "mean", value=[0.5, 0.5, 0.5]))
    with pytest.raises(BundleError, match="expected the encoder of images"):
        ortolan.load(copied)
    shutil.rmtree(copied / "vision")
    with pytest.raises(BundleError):
        ortolan.load(copied)


@pytest.mark.parametrize(
    "edit", [put("images", "token", value=7), put("images", "vectors", value=4)]
)
def test_another_meaning_of_the_vectors_is_found(edit: Callable[[Any], None], copied: Path) -> None:
    edit_json(copied, "manifest.json", edit)
    with suppress(CertificateError):  # not as many placeholders as vectors
        assert verify(copied, isolate=False).verdict == "FAIL"


@pytest.mark.parametrize(
    "edit", [put("images", "token", value=10_000), put("images", "size", value=8)]
)
def test_vectors_that_do_not_fit_are_refused(edit: Callable[[Any], None], copied: Path) -> None:
    edit_json(copied, "manifest.json", edit)
    with pytest.raises(BundleError):
        open_bundle(copied)


def test_onnxruntime_genai_has_no_such_layout(folder: Path) -> None:
    with pytest.raises(LayoutError, match="reads images"):
        check_convertible(open_bundle(folder))


def test_an_export_replaces_the_encoder_too(checkpoint: Path, copied: Path) -> None:
    ortolan.export(checkpoint, copied, precision="int8", force=True)
    assert verify(copied, isolate=False).verdict == "PASS"
    images = open_bundle(copied / "vision").manifest
    assert images.precision == "int8"
    assert open_bundle(copied).manifest.provenance.left_out == ()


@pytest.mark.slow
def test_the_language_model_alone(checkpoint: Path, reference: Any, tmp_path: Path) -> None:
    bundle = ortolan.export(checkpoint, tmp_path / "bundle", options=ExportOptions(text_only=True))
    assert bundle.manifest.features is None
    assert not (tmp_path / "bundle" / "vision").exists()
    assert bundle.manifest.provenance.left_out == ("multi_modal_projector", "vision_tower")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "precision", "options"),
    [
        ("cpu", "int4", ExportOptions(graphs="split", allow_poor=True)),
        ("cpu", "fp16", ExportOptions()),
        ("cpu", "fp32", ExportOptions(attention="portable")),
        ("webgpu", "fp32", ExportOptions()),
        ("cuda", "fp16", ExportOptions()),
    ],
)
def test_other_graphs_read_images_too(
    device: Any, precision: Any, options: ExportOptions, checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    ortolan.export(checkpoint, out, device=device, precision=precision, options=options)
    assert verify(out, device="cpu", isolate=False).verdict != "FAIL"
    other = ortolan.load(out, Decoder, device="cpu")
    first, second = ([{"image": image}, "what is this"] for image in (FIRST, SECOND))
    assert greedy(other, [first, second])[0].tokens == greedy(other, [first])[0].tokens
    assert greedy(other, first).tokens != greedy(other, second).tokens
