import builtins
import contextlib
import io
import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from ortolan.runtime import limits
from ortolan.runtime.bundle.manifest import ImageSource
from ortolan.runtime.errors import InputError, MissingExtraError
from ortolan.runtime.inputs import images
from ortolan.runtime.inputs.images import read_pixels

SOURCE = ImageSource(
    channels=3,
    height=6,
    width=8,
    mean=(0.5, 0.4, 0.3),
    std=(0.5, 0.25, 0.2),
    scale=1 / 255,
    resample="bilinear",
)
GREY = msgspec.structs.replace(SOURCE, channels=1, mean=(0.0,), std=(1.0,), scale=1.0)


def picture(height: int = 6, width: int = 8, channels: int = 3) -> NDArray[np.uint8]:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def contents(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def scaled(values_HWC: NDArray[np.uint8]) -> NDArray[np.float64]:
    """By hand, `(channels, height, width)`."""
    planes = [
        (values_HWC[..., channel] / 255 - SOURCE.mean[channel]) / SOURCE.std[channel]
        for channel in range(3)
    ]
    return np.stack(planes)


def error_of(image: Any, source: ImageSource = SOURCE) -> str:
    with pytest.raises(InputError, match=r": expected .*, got ") as caught:
        read_pixels(image, source)
    return str(caught.value)


# --- what is read -----------------------------------------------------------------------------


def test_array_of_the_right_size_is_scaled_and_channels_come_first() -> None:
    pixels = read_pixels(picture(), SOURCE)

    assert pixels.shape == (3, 6, 8)
    assert pixels.dtype == np.float32
    assert pixels.flags.c_contiguous
    np.testing.assert_allclose(pixels, scaled(picture()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_file_of_any_format_gives_what_its_array_gives(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "image"
    path.write_bytes(contents(Image.fromarray(picture()), kind))

    for given in (path, str(path), path.read_bytes()):
        np.testing.assert_array_equal(read_pixels(given, SOURCE), read_pixels(picture(), SOURCE))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF"])
def test_formats_with_loss_are_read(kind: str) -> None:
    flat = np.full((6, 8, 3), 200, np.uint8)

    got = read_pixels(contents(Image.fromarray(flat), kind), SOURCE)

    np.testing.assert_allclose(got, scaled(flat), atol=0.05)


@pytest.mark.parametrize(
    "resample", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
)
def test_other_size_is_resized_as_the_manifest_says(resample: Any) -> None:
    source = msgspec.structs.replace(SOURCE, resample=resample)
    large = picture(31, 17)
    method = Image.Resampling[resample.upper()]
    expected = scaled(np.asarray(Image.fromarray(large).resize((8, 6), method)))

    for given in (large, contents(Image.fromarray(large))):
        np.testing.assert_allclose(read_pixels(given, source), expected, rtol=1e-5, atol=1e-6)


def test_colours_become_grey_and_grey_becomes_colours() -> None:
    colours, grey = picture(), picture(channels=1)
    expected = np.asarray(Image.fromarray(colours).convert("L"))

    np.testing.assert_array_equal(read_pixels(colours, GREY)[0], expected)
    np.testing.assert_array_equal(
        read_pixels(contents(Image.fromarray(colours)), GREY)[0], expected
    )
    repeated = np.repeat(grey[..., None], 3, -1)
    for given in (grey, grey[..., None], contents(Image.fromarray(grey))):
        np.testing.assert_array_equal(read_pixels(given, SOURCE), read_pixels(repeated, SOURCE))


def test_transparency_and_palettes_become_the_channels_of_the_encoder() -> None:
    clear = picture(channels=4)
    expected = read_pixels(np.ascontiguousarray(clear[..., :3]), SOURCE)
    np.testing.assert_array_equal(read_pixels(clear, SOURCE), expected)
    np.testing.assert_array_equal(read_pixels(contents(Image.fromarray(clear)), SOURCE), expected)

    palette = Image.fromarray(picture()).quantize(16)
    expected = read_pixels(np.asarray(palette.convert("RGB")), SOURCE)
    np.testing.assert_array_equal(read_pixels(contents(palette), SOURCE), expected)


def test_photograph_is_turned_upright() -> None:
    image = Image.fromarray(picture(8, 6))
    turned = Image.Exif()
    turned[0x0112] = 6
    upright = np.asarray(image.rotate(-90, expand=True))

    got = read_pixels(contents(image, "PNG", exif=turned), SOURCE)

    np.testing.assert_array_equal(got, read_pixels(upright, SOURCE))


def test_first_frame_of_several_is_taken() -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    data = contents(frames[0], "GIF", save_all=True, append_images=frames[1:])

    expected = read_pixels(np.asarray(frames[0]), SOURCE)
    np.testing.assert_allclose(read_pixels(data, SOURCE), expected, atol=0.05)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        picture().astype(np.float32),
        picture().astype(np.int64),
        np.zeros((6, 8, 5), np.uint8),
        np.zeros((2, 6, 8, 3), np.uint8),
        np.zeros(8, np.uint8),
        np.zeros((0, 8, 3), np.uint8),
        np.zeros((6, 8, 0), np.uint8),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_array_that_is_no_picture_is_refused(array: NDArray[Any]) -> None:
    error_of(array)


@pytest.mark.parametrize("given", [None, 5, [[0, 1]], ("a", "b")])
def test_what_is_neither_file_nor_array_is_refused(given: Any) -> None:
    assert type(given).__name__ in error_of(given)


def test_file_that_is_no_image_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "notes.png"
    path.write_text("def main():")

    assert "notes.png" in error_of(path)
    assert "PNG" in error_of(path)
    path.write_bytes(b"")
    assert "something else" in error_of(path)


def test_format_that_runs_a_program_is_not_tried(tmp_path: Path) -> None:
    path = tmp_path / "drawing.png"
    Image.fromarray(picture()).save(path, "EPS")

    assert "something else" in error_of(path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM"])
def test_torn_image_is_refused(kind: str) -> None:
    data = contents(Image.fromarray(picture(40, 40)), kind)

    for length in range(0, len(data) - 60, max(1, len(data) // 25)):
        error_of(data[:length])


def test_random_changes_raise_only_input_errors() -> None:
    random = np.random.default_rng(0)
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"):
        data = contents(Image.fromarray(picture(16, 16)), kind)
        for _ in range(40):
            mutant = bytearray(data)
            for at in random.integers(0, len(data), 6):
                mutant[at] = random.integers(0, 256)
            with contextlib.suppress(InputError):
                assert np.isfinite(read_pixels(bytes(mutant), SOURCE)).all()


def test_missing_file_folder_and_pipe_are_refused(tmp_path: Path) -> None:
    assert "got none" in error_of(tmp_path / "nowhere.png")
    assert "something else" in error_of(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "something else" in error_of(tmp_path / "pipe")
    error_of("a\0b")
    error_of("x" * 100_000)


def png(width: int, height: int) -> bytes:
    """A file of some bytes that promises that many pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        checked = name + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(b""))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rows + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [1 << 13, 10_000, 12_000, 60_000])
def test_image_that_promises_too_much_is_refused_before_it_is_decoded(side: int) -> None:
    # one pixel over the limit, over the size that Pillow warns of, and over what it refuses
    assert f"{limits.MAX_IMAGE_PIXELS} pixels" in error_of(png(side + 1, side))


def test_array_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_IMAGE_PIXELS", 48)
    read_pixels(picture(6, 8), SOURCE)

    assert "48 pixels, got 8 by 7" in error_of(picture(7, 8))


def test_file_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "image.bmp"
    path.write_bytes(contents(Image.fromarray(picture()), "BMP"))
    monkeypatch.setattr(limits, "MAX_IMAGE_BYTES", path.stat().st_size)
    read_pixels(path, SOURCE)
    monkeypatch.setattr(limits, "MAX_IMAGE_BYTES", path.stat().st_size - 1)

    assert "bytes" in error_of(path)


def test_sixteen_bits_are_refused_rather_than_cut(tmp_path: Path) -> None:
    deep = Image.fromarray(np.full((6, 8), 40_000, np.uint16))

    assert "8 bits" in error_of(contents(deep))


# --- without Pillow ---------------------------------------------------------------------------


@pytest.fixture
def without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "PIL":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **options)

    for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("without_pillow")
def test_without_pillow_files_are_refused_with_the_command_and_arrays_are_read() -> None:
    np.testing.assert_allclose(
        read_pixels(picture(), SOURCE), scaled(picture()), rtol=1e-5, atol=1e-6
    )
    for given in (b"x", picture(7, 8), picture(channels=1)):
        with pytest.raises(MissingExtraError, match=r'pip install "ortolan\[vision\]"'):
            images.read_pixels(given, SOURCE)
