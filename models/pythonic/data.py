"""Text that every machine has: the source of Python's standard library."""

import fnmatch
import lzma
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ortolan.modeling.training import Texts


def read(*, held_out: tuple[str, ...], exclude: tuple[str, ...] = ()) -> Texts:
    """Read the standard library of the running Python, sorted by path."""
    root = Path(sysconfig.get_path("stdlib"))
    train: list[str] = []
    measured: list[str] = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(fnmatch.fnmatch(name, pattern) for pattern in exclude):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # the standard library tests decoding with such files
        is_held_out = any(name.startswith(f"{folder}/") for folder in held_out)
        (measured if is_held_out else train).append(text)
    return Texts(train=train, held_out=measured, figures=lambda: xz_bits_per_byte(measured))


def xz_bits_per_byte(texts: Sequence[str]) -> dict[str, float]:
    """Bits per byte of `xz -9`, file by file and for all files together."""
    files = [text.encode() for text in texts]
    total = sum(map(len, files))
    single = sum(len(lzma.compress(file, preset=9)) for file in files)
    together = len(lzma.compress(b"".join(files), preset=9))
    return {
        "xz_bits_per_byte_by_file": 8 * single / total,
        "xz_bits_per_byte_together": 8 * together / total,
    }
