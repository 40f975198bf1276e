import contextlib
import io
import os
import re
import struct
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.tiny_encoder import IMAGE

from ortolan.distribution import pip_install
from ortolan.runtime import limits
from ortolan.runtime.bundle.image_sources import Fit, ImageSource
from ortolan.runtime.errors import InputError, MissingExtraError
from ortolan.runtime.inputs import images
from ortolan.runtime.inputs.images import read_pixels

SOURCE = msgspec.structs.replace(IMAGE, height=6, width=8)
GRAY = msgspec.structs.replace(SOURCE, channels=1, mean=(0.0,), std=(1.0,), scale=1.0)


def picture(height: int = 6, width: int = 8, channels: int = 3) -> NDArray[np.uint8]:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


PICTURE = Image.fromarray(picture())


def contents(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def normalized(values_HWC: NDArray[np.uint8]) -> NDArray[np.float64]:
    return ((values_HWC / 255 - SOURCE.mean) / SOURCE.std).transpose(2, 0, 1)


def error_of(image: Any) -> str:
    return refusal(lambda: read_pixels(image, SOURCE))


# --- images that are read ---------------------------------------------------------------------


def test_an_array_of_the_right_size_is_normalized_with_channels_first() -> None:
    pixels = read_pixels(picture(), SOURCE)
    assert pixels.shape == (3, 6, 8)
    assert pixels.dtype == np.float32
    assert pixels.flags.c_contiguous
    np.testing.assert_allclose(pixels, normalized(picture()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_a_lossless_file_equals_its_array(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "image"
    path.write_bytes(contents(PICTURE, kind))
    for image in (path, str(path), path.read_bytes()):
        np.testing.assert_array_equal(read_pixels(image, SOURCE), read_pixels(picture(), SOURCE))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF"])
def test_lossy_formats_are_read(kind: str) -> None:
    flat = np.full((6, 8, 3), 200, np.uint8)
    pixels = read_pixels(contents(Image.fromarray(flat), kind), SOURCE)
    np.testing.assert_allclose(pixels, normalized(flat), atol=0.05)


@pytest.mark.parametrize(
    "resample", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
)
def test_another_size_is_resized_by_the_method_of_the_manifest(resample: Any) -> None:
    source = msgspec.structs.replace(SOURCE, resample=resample)
    large = Image.fromarray(picture(31, 17))
    resized = np.asarray(large.resize((8, 6), Image.Resampling[resample.upper()]))
    for image in (picture(31, 17), contents(large)):
        pixels = read_pixels(image, source)
        np.testing.assert_allclose(pixels, normalized(resized), rtol=1e-5, atol=1e-6)


def test_color_and_gray_are_converted() -> None:
    gray = picture(channels=1)
    for image in (picture(), contents(PICTURE)):
        np.testing.assert_array_equal(read_pixels(image, GRAY)[0], np.asarray(PICTURE.convert("L")))
    expected = read_pixels(np.repeat(gray[..., None], 3, -1), SOURCE)
    for image in (gray, gray[..., None], contents(Image.fromarray(gray))):
        np.testing.assert_array_equal(read_pixels(image, SOURCE), expected)


def test_16_bits_are_read_if_their_values_fit_into_8() -> None:
    data = contents(Image.fromarray(np.full((6, 8), 255, np.uint16)))
    white = np.full((6, 8, 3), 255, np.uint8)
    np.testing.assert_array_equal(read_pixels(data, SOURCE), read_pixels(white, SOURCE))


def test_transparency_is_dropped_and_palettes_become_colors() -> None:
    clear = picture(channels=4)
    expected = read_pixels(np.ascontiguousarray(clear[..., :3]), SOURCE)
    for image in (clear, contents(Image.fromarray(clear))):
        np.testing.assert_array_equal(read_pixels(image, SOURCE), expected)
    palette = PICTURE.quantize(16)
    expected = read_pixels(np.asarray(palette.convert("RGB")), SOURCE)
    np.testing.assert_array_equal(read_pixels(contents(palette), SOURCE), expected)


def test_exif_rotation_is_applied() -> None:
    image, exif = Image.fromarray(picture(8, 6)), Image.Exif()
    exif[0x0112] = 6
    upright = np.asarray(image.rotate(-90, expand=True))
    pixels = read_pixels(contents(image, exif=exif), SOURCE)
    np.testing.assert_array_equal(pixels, read_pixels(upright, SOURCE))


# --- images that are refused ------------------------------------------------------------------


def png(width: int, height: int) -> bytes:
    """Return a tiny file that claims this size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        checked = name + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(b""))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rows + chunk(b"IEND", b"")


EDGE = msgspec.structs.replace(SOURCE, fit=Fit(resize=224, crop=(6, 8)))
INSIDE = msgspec.structs.replace(SOURCE, fit=Fit(resize=(6, 8), inside=True, pad=True))

IMAGES: dict[str, Any] = {
    "floats": picture().astype(np.float32),
    "long integers": picture().astype(np.int64),
    **{
        f"shape {shape}": np.zeros(shape, np.uint8)
        for shape in ((6, 8, 5), (2, 6, 8, 3), (8,), (0, 8, 3), (6, 8, 0))
    },
    **{f"{value}": value for value in (None, 5, [[0, 1]], ("a", "b"))},
    "a text": b"def main():",
    "empty": b"",
    "a program": contents(PICTURE, "EPS"),  # EPS runs one
    "16 bits": contents(Image.fromarray(np.full((6, 8), 40_000, np.uint16))),
    "a missing file": "nowhere.png",
    "a folder": ".",
    "NUL in its name": "a\0b",
    # just above our limit, and above Pillow's limits of a warning and of an error
    **{f"{side} pixels": png(side + 1, side) for side in (1 << 13, 10_000, 12_000, 60_000)},
    "memory": png(1, limits.MAX_IMAGE_PIXELS),
    **{f"{size} pixels": png(*size) for size in ((0, 5), (5, 0), (0, 0))},
}

REFUSED: dict[str, tuple[Any, ImageSource]] = {
    **{name: (image, SOURCE) for name, image in IMAGES.items()},
    "would grow huge": (np.zeros((1, 20_000, 3), np.uint8), EDGE),
    "too narrow": (np.zeros((1, 40, 3), np.uint8), INSIDE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_image_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: read_pixels(*REFUSED[name])) == snapshot


def test_a_file_is_refused_by_name(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes.png").write_bytes(b"def main():")
    for name in ("pipe", "notes.png", "x" * 100_000):
        text = refusal(partial(read_pixels, tmp_path / name, SOURCE), tmp_path)
        assert re.sub("x{9,}", "LONG", text) == snapshot


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM"])
def test_a_truncated_image_is_refused(kind: str) -> None:
    data = contents(Image.fromarray(picture(40, 40)), kind)
    for length in range(0, len(data) - 60, max(1, len(data) // 25)):
        error_of(data[:length])


def test_random_changes_raise_only_input_errors() -> None:
    random = np.random.default_rng(0)
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"):
        data = contents(Image.fromarray(picture(16, 16)), kind)
        for _ in range(40):
            mutant = bytearray(data)
            for place in random.integers(0, len(data), 6):
                mutant[place] = random.integers(0, 256)
            with contextlib.suppress(InputError):
                assert np.isfinite(read_pixels(bytes(mutant), SOURCE)).all()


def test_sizes_are_accepted_at_the_limit_and_refused_above(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "image.bmp"
    path.write_bytes(contents(PICTURE, "BMP"))
    size = path.stat().st_size
    monkeypatch.setattr(limits, "MAX_IMAGE_PIXELS", 48)
    monkeypatch.setattr(limits, "MAX_IMAGE_BYTES", size)
    read_pixels(picture(6, 8), SOURCE)
    read_pixels(path, SOURCE)
    assert "8 by 7 pixels, more than 48" in error_of(picture(7, 8))
    monkeypatch.setattr(limits, "MAX_IMAGE_BYTES", size - 1)
    assert f"more than {size - 1} bytes" in error_of(path)


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"\xff" * 40])
def test_a_broken_exif_leaves_the_image_as_it_is_or_is_refused(exif: bytes) -> None:
    with contextlib.suppress(InputError):
        pixels = read_pixels(contents(PICTURE, "JPEG", exif=exif), SOURCE)
        np.testing.assert_array_equal(pixels, read_pixels(contents(PICTURE, "JPEG"), SOURCE))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "GIF"])
def test_only_the_first_frame_of_an_animation_is_decoded(kind: str) -> None:
    frames = [Image.new("RGB", (8, 6), color) for color in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = contents(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    expected = read_pixels(np.asarray(frames[0]), SOURCE)
    np.testing.assert_allclose(read_pixels(data, SOURCE), expected, atol=0.05)


def test_without_pillow_arrays_are_read_and_files_name_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    read_pixels(picture(), SOURCE)
    for image in (b"x", picture(7, 8), picture(channels=1)):
        with pytest.raises(MissingExtraError, match=re.escape(pip_install("vision"))):
            read_pixels(image, SOURCE)


@pytest.mark.parametrize("background", [None, "white"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "CMYK"])
def test_strips_are_converted_as_the_whole_image(
    monkeypatch: pytest.MonkeyPatch, mode: str, background: Any
) -> None:
    image = Image.fromarray(picture(channels=4 if mode == "RGBA" else 3)).convert(mode)
    data = contents(image, "TIFF" if mode == "CMYK" else "PNG")
    source = msgspec.structs.replace(SOURCE, background=background)
    whole = read_pixels(data, source)
    monkeypatch.setattr(images, "STRIP_PIXELS", 16)  # two of six rows
    np.testing.assert_array_equal(read_pixels(data, source), whole)


def test_an_image_that_needs_too_much_memory_is_refused_before_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_IMAGE_MEMORY", 6 * (8 * 16 + 16) - 1)
    assert "decoding it would need" in error_of(contents(PICTURE, "WEBP"))
    read_pixels(contents(PICTURE, "PNG"), SOURCE)
