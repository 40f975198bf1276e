"""Decoders that read images in tiles: bundles against the processor and model of transformers."""

import itertools
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image
from tests.export import lfm2_vl_processor, tiny_tiles
from tests.runtime.damaged_bundles import edit_json, put
from tests.tiny.media import NEW, answer_of, assert_same_every_way, greedy, picture, png
from transformers import Idefics3Processor, InternVLProcessor, PreTrainedTokenizerFast
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

import ortolan
from ortolan.export.errors import OptionError
from ortolan.runtime import Decoder, InputError, TokenizerError, load, verify
from ortolan.runtime.bundle.parts import ClosestShape, Tiles
from ortolan.runtime.bundle.sources import ImageSource
from ortolan.runtime.inputs.tiles import closest, cut

pytestmark = pytest.mark.slow

TYPES = ("idefics3", "internvl", "lfm2_vl", "smolvlm")

NAMED_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}

SIZES = [
    (8, 8), (32, 32), (30, 17), (17, 30), (3, 3), (1, 40), (40, 1), (100, 33), (33, 100), (5, 37),
    (64, 64), (31, 32), (63, 21), (9, 200), (200, 9), (13, 13), (1, 1), (25, 18), (19, 19),
    (120, 7),
]  # fmt: skip
"""Heights and widths of images."""


WIDE, TALL, SQUARE = picture(12, 30), picture(30, 7), picture(20, 20)

PROMPTS: dict[str, list[Any]] = {
    "wide": [{"image": WIDE}, "what is this"],
    "tall, at the end": ["what is ", {"image": TALL}],
    "two images": ["a ", {"image": WIDE}, " and ", {"image": SQUARE}, " say"],
    "two in a row": [{"image": SQUARE}, {"image": TALL}, "say"],
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiles")
    for name in TYPES:
        tiny_tiles.write(folder / name, name)
    return {name: folder / name for name in TYPES}


@pytest.fixture(scope="module")
def bundles(checkpoints: dict[str, Path]) -> dict[str, Path]:
    for folder in checkpoints.values():
        ortolan.export(folder, folder / "bundle")
    return {name: folder / "bundle" for name, folder in checkpoints.items()}


@pytest.fixture(scope="module")
def models(bundles: dict[str, Path]) -> dict[str, Decoder]:
    return {name: load(folder, Decoder) for name, folder in bundles.items()}


class OfImages(InternVLProcessor):
    """Without the processor of videos, which needs another package."""

    def check_argument_for_proper_class(self, *_: Any) -> None: ...


@lru_cache(maxsize=3)
def image_processor(name: str, folder: Path) -> Any:
    kind = {"idefics3": "Idefics3", "internvl": "GotOcr2", "smolvlm": "SmolVLM"}[name]
    return getattr(transformers, f"{kind}ImageProcessorPil").from_pretrained(folder)


@lru_cache(maxsize=3)
def reference(name: str, folder: Path) -> tuple[Any, Any]:
    """Processor and model. SmolVLM's own needs a package for videos, and writes the same texts."""
    import transformers

    kind = {
        "idefics3": "Idefics3",
        "internvl": "InternVL",
        "lfm2_vl": "Lfm2Vl",
        "smolvlm": "SmolVLM",
    }[name]
    model = getattr(transformers, f"{kind}ForConditionalGeneration").from_pretrained(folder)
    if name == "lfm2_vl":
        return lfm2_vl_processor.processor(folder), model
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folder / "tokenizer.json"), extra_special_tokens=NAMED_TOKENS
    )
    images = image_processor(name, folder)
    processor: Any = (
        OfImages(images, tokenizer, image_seq_length=4)
        if name == "internvl"
        else Idefics3Processor(images, tokenizer, image_seq_len=4)
    )
    return processor, model


def expected(name: str, folder: Path, parts: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Ids of a prompt and the tokens that transformers generates for it."""
    processor, model = reference(name, folder)
    placeholder = tiny_tiles.PLACEHOLDERS[name]
    text = "".join(part if isinstance(part, str) else placeholder for part in parts)
    images = [Image.fromarray(part["image"]) for part in parts if not isinstance(part, str)]
    given = processor(images=[images], text=[text], return_tensors="pt")
    ids: list[int] = given["input_ids"][0].tolist()
    used = ("input_ids", "pixel_values", "pixel_attention_mask", "spatial_shapes")
    given = {key: given[key] for key in used if key in given}
    return ids, answer_of(model, given)


def tiles_of(model: Decoder) -> Tiles:
    features = model.manifest.features
    assert features is not None
    assert isinstance(features.tiles, Tiles)
    return features.tiles


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_tokens_are_those_of_transformers(
    name: str, prompt: str, models: dict[str, Decoder], checkpoints: dict[str, Path]
) -> None:
    parts = PROMPTS[prompt]
    ids, tokens = expected(name, checkpoints[name], parts)
    completion = greedy(models[name], parts)
    assert completion.timings.prompt_tokens == len(ids)
    assert list(completion.tokens) == tokens


@pytest.mark.parametrize("name", ["idefics3", "internvl", "smolvlm"])
@pytest.mark.parametrize("size", SIZES)
def test_tiles_are_those_of_transformers(
    name: str, size: tuple[int, int], models: dict[str, Decoder], checkpoints: dict[str, Path]
) -> None:
    model = models[name]
    assert model._encoder is not None
    processor = image_processor(name, checkpoints[name])
    for channels in (1, 3, 4):
        values = picture(*size, channels)
        image = Image.fromarray(values[..., 0] if channels == 1 else values)
        parts = model._encoder.cut(values, tiles_of(model))
        if name == "internvl":
            theirs = processor(image, return_tensors="np", crop_to_patches=True)
            expected = theirs["pixel_values"]
            assert theirs["num_patches"] == [parts.rows * parts.columns + 1]
        else:
            theirs = processor(image, return_tensors="np", return_row_col_info=True)
            expected = theirs["pixel_values"][0]
            assert (parts.rows, parts.columns) == (theirs["rows"][0][0], theirs["cols"][0][0])
        np.testing.assert_allclose(parts.pixels, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("smolvlm", {"do_image_splitting": False}),
        ("internvl", {"min_patches": 3, "max_patches": 8, "resample": 2}),
        ("lfm2_vl", {"do_image_splitting": False, "max_image_tokens": 9}),
        ("smolvlm", {"size": {"longest_edge": tiny_tiles.SIDE}}),
        ("smolvlm", {"resample": 3}),
        ("internvl", {"crop_to_patches": True}),
        ("internvl", {"max_patches": 1}),
        ("internvl", {"max_patches": 5}),
    ],
)
def test_other_settings_are_those_of_the_processor(
    name: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    tiny_tiles.write(tmp_path, name, **keys)
    ortolan.export(tmp_path, tmp_path / "bundle")
    model = load(tmp_path / "bundle", Decoder)
    for prompt in ("wide", "two images"):
        ids, tokens = expected(name, tmp_path, PROMPTS[prompt])
        completion = greedy(model, PROMPTS[prompt])
        assert completion.timings.prompt_tokens == len(ids)
        assert list(completion.tokens) == tokens


@pytest.mark.parametrize(
    "tower",
    [
        {"use_qk_norm": True, "norm_type": "rms_norm"},
        {"attention_bias": True, "use_mean_pooling": False},
    ],
)
def test_other_encoders_of_internvl_give_the_same_tokens(
    tower: dict[str, Any], tmp_path: Path
) -> None:
    tiny_tiles.write(tmp_path, "internvl", tower=tower)
    ortolan.export(tmp_path, tmp_path / "bundle")
    assert verify(tmp_path / "bundle", isolate=False).verdict == "PASS"
    model = load(tmp_path / "bundle", Decoder)
    for prompt in ("wide", "two images"):
        ids, tokens = expected("internvl", tmp_path, PROMPTS[prompt])
        completion = greedy(model, PROMPTS[prompt])
        assert completion.timings.prompt_tokens == len(ids)
        assert list(completion.tokens) == tokens


@pytest.mark.parametrize(("least", "most"), [(1, 12), (1, 1), (2, 7), (1, 40), (6, 6)])
def test_rows_and_columns_are_those_of_transformers(
    least: int, most: int, models: dict[str, Decoder]
) -> None:
    images = models["internvl"]._encoder
    assert images is not None
    source = images.manifest.source
    assert isinstance(source, ImageSource)
    shape = ClosestShape(least=least, most=most)
    sides = [*range(1, 25), 31, 40, 57, 64, 80, 97, 128, 333]
    for height, width in itertools.product(sides, sides):
        columns, rows = get_optimal_tiled_canvas(
            (height, width), (source.height, source.width), least, most
        )
        assert closest((height, width), source, shape) == (rows, columns)


@pytest.mark.parametrize("name", ["internvl", "lfm2_vl", "smolvlm"])
def test_a_batch_a_stream_and_a_service_give_the_same(
    name: str, models: dict[str, Decoder]
) -> None:
    model = models[name]
    prompts = list(PROMPTS.values())
    assert_same_every_way(model, prompts, drafts=False)


@pytest.mark.parametrize("name", ["internvl", "lfm2_vl", "smolvlm"])
def test_a_chat_reads_tiles(
    name: str, models: dict[str, Decoder], checkpoints: dict[str, Path]
) -> None:
    model = models[name]
    image = {"type": "image", "image": png(WIDE)}
    message = {"role": "user", "content": [image, {"type": "text", "text": "say"}]}
    ids, tokens = expected(name, checkpoints[name], ["user:", {"image": WIDE}, "say</s>A:"])
    completion = model.chat([message], max_new_tokens=NEW, ignore_eos=True).completion
    assert completion.timings.prompt_tokens == len(ids)
    assert list(completion.tokens) == tokens


def test_tiles_of_the_same_colors_but_another_shape_are_told_apart(
    models: dict[str, Decoder],
) -> None:
    wide, tall = np.zeros((8, 30, 3), np.uint8), np.zeros((30, 8, 3), np.uint8)
    model = models["smolvlm"]
    prompts: list[Any] = [[{"image": wide}, "say"], [{"image": tall}, "say"]]
    alone = [greedy(model, prompt) for prompt in prompts]
    lengths = [done.timings.prompt_tokens for done in alone]
    assert lengths[0] != lengths[1]  # a line break after each row
    assert [greedy(model, prompt).tokens for prompt in reversed(prompts)] == [
        done.tokens for done in reversed(alone)
    ]


def test_a_damaged_image_and_a_missing_tokenizer_are_refused(
    bundles: dict[str, Path], models: dict[str, Decoder]
) -> None:
    with pytest.raises(InputError):
        greedy(models["smolvlm"], [{"image": b"no image"}, "say"])
    with pytest.raises(InputError, match="must be an array of uint8"):
        greedy(models["smolvlm"], [{"image": np.zeros((8, 8, 3))}, "say"])
    model = load(bundles["smolvlm"], Decoder)
    model.tokenizer = None
    with pytest.raises(TokenizerError):
        greedy(model, [{"image": WIDE}, "say"])


@pytest.mark.parametrize("name", TYPES)
def test_verification_covers_tiles(name: str, bundles: dict[str, Path]) -> None:
    report = verify(bundles[name], isolate=False)
    assert report.verdict == "PASS"
    assert report.media is not None
    assert report.media.verdict == "PASS"


@pytest.mark.parametrize(
    ("name", "keys", "value"),
    [
        ("smolvlm", ("grid", "pixels"), 40),
        ("smolvlm", ("split",), False),
        ("smolvlm", ("whole",), "x"),
        ("internvl", ("grid", "most"), 2),
        ("internvl", ("split",), False),
        ("lfm2_vl", ("grid", "pixels"), 383),
        ("lfm2_vl", ("end",), ""),
    ],
)
def test_another_cut_is_found(
    name: str, keys: tuple[str, ...], value: Any, bundles: dict[str, Path], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(bundles[name], tmp_path / "bundle"))
    edit_json(out, "manifest.json", put("images", "tiles", *keys, value=value))
    assert verify(out, isolate=False).verdict == "FAIL"


def test_more_vectors_than_a_prompt_holds_are_refused(tmp_path: Path) -> None:
    tiny_tiles.write(tmp_path, "smolvlm", size={"longest_edge": 4000})
    with pytest.raises(OptionError, match="at most 8192 vectors"):
        ortolan.export(tmp_path, tmp_path / "bundle")
    tiny_tiles.write(tmp_path, "smolvlm", size={"longest_edge": 5000})
    with pytest.raises(OptionError, match="longest_edge of at most 4096"):
        ortolan.export(tmp_path, tmp_path / "bundle")
    tiny_tiles.write(tmp_path, "internvl", max_patches=65)
    with pytest.raises(OptionError, match="max_patches must be from 1 to 64"):
        ortolan.export(tmp_path, tmp_path / "bundle")
    tiny_tiles.write(tmp_path, "internvl", min_patches=5, max_patches=4)
    with pytest.raises(OptionError, match=r"in this order \(got 5 and 4\)"):
        ortolan.export(tmp_path, tmp_path / "bundle")
    tiny_tiles.write(tmp_path, "internvl", do_resize=False)
    with pytest.raises(OptionError, match="do_resize"):
        ortolan.export(tmp_path, tmp_path / "bundle")
    tiny_tiles.write(tmp_path, "smolvlm", max_image_size={"longest_edge": 16})
    with pytest.raises(OptionError, match="8 x 8 pixels"):
        ortolan.export(tmp_path, tmp_path / "bundle")


def test_whole_tiles_fill_the_image(models: dict[str, Decoder]) -> None:
    model = models["smolvlm"]
    assert model._encoder is not None
    source = model._encoder.manifest.source
    parts = cut(np.full((10, 32, 3), 255, np.uint8), source, tiles_of(model))  # type: ignore[arg-type]
    assert (parts.rows, parts.columns, len(parts.pixels)) == (2, 4, 9)
    np.testing.assert_allclose(parts.pixels, 1.0, atol=1e-6)
