"""certificate.npz: arrays with types and shapes fixed before they are read."""

import io
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import CertificateError

__all__ = ["Shapes", "damaged", "pack", "unpack"]

_HEADER_BYTES = 1024
"""Bytes of an array header, at most. Those here have 128."""

_MAGIC = np.lib.format.magic(1, 0)

_PREFIX = struct.Struct("<8sH")
"""Magic and version, then the size of the header, as in numpy.lib.format 1.0."""

Shapes = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""Type and shape by name of array."""


def damaged(expected: str, got: str) -> CertificateError:
    """Return the error for inconsistent parts of a certificate."""
    return CertificateError(
        f"certificate: expected {expected}, got {got}. "
        "The certificate is damaged or of another model: export the bundle again."
    )


def pack(arrays: Mapping[str, NDArray[Any]], expected: Shapes) -> bytes:
    """Return an archive of arrays, always the same bytes for the same arrays.

    Raises:
        CertificateError: an array has an unexpected type or shape.
    """
    for name, (dtype, shape) in expected.items():
        if arrays[name].dtype != dtype or arrays[name].shape != shape:
            raise damaged(
                f"{name} as {dtype} {shape}", f"{arrays[name].dtype} {arrays[name].shape}"
            )
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **{name: arrays[name] for name in expected})
    return packed.getvalue()


def unpack(data: bytes, expected: Shapes) -> dict[str, NDArray[Any]]:
    """Read arrays without allocating more memory than expected.

    numpy's own reader allocates whatever the header of an array says.

    Raises:
        CertificateError: unexpected or unreadable arrays.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = sorted(info.filename for info in archive.infolist())
            if names != sorted(f"{name}.npy" for name in expected):
                raise damaged(f"the arrays {', '.join(expected)}", ", ".join(names)[:300])
            return {
                name: _read_array(archive, name, dtype, shape)
                for name, (dtype, shape) in expected.items()
            }
    # RuntimeError: encrypted, or (NotImplementedError) a compression that this Python lacks
    except (zipfile.BadZipFile, ValueError, EOFError, RuntimeError, OSError) as error:
        raise damaged("an archive of arrays", str(error)[:300]) from error


def _read_array(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > size + _HEADER_BYTES:
        raise damaged(f"{size} bytes for {name}, not compressed", f"{info.file_size}")
    with archive.open(info) as file:
        start = file.read(_PREFIX.size)
        if len(start) < _PREFIX.size:
            raise damaged(f"an array for {name}", f"{len(start)} bytes")
        magic, header_size = _PREFIX.unpack(start)
        if magic != _MAGIC:
            raise damaged(f"an array of version 1.0 for {name}", repr(magic))
        header = file.read(header_size).rstrip()
        if header != _header(dtype, shape):
            raise damaged(f"{name} as {dtype} {shape}", repr(header)[:300])
        values = file.read()
    if len(values) != size:
        raise damaged(f"{size} bytes for {name}", f"{len(values)}")
    return np.frombuffer(values, dtype).reshape(shape)


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of an array without padding, which differs between versions of numpy.

    Headers are compared as text: parsing one would run Python's parser on untrusted input.
    """
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        stream, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()[_PREFIX.size :].rstrip()
