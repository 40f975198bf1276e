"""The tensors of a folder of safetensors files, a slice at a time.

A file is opened for one slice and closed again, so that nothing stays mapped and reading a
model costs the memory of the slice. Pickles are refused: loading one runs its code.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ortolan.modeling.errors import CheckpointError

MAX_HEADER_BYTES = 8 << 20
"""A header of zero-size tensors costs a thousand times its size to parse."""

MAX_INDEX_BYTES = 16 << 20

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""What weights may be stored in; anything else is quantized, and means nothing by itself."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class SafetensorsFolder:
    """The tensors of one or many safetensors files.

    Raises:
        CheckpointError: no such files, only pickles, or a file that is torn.
    """

    def __init__(self, path: Path) -> None:
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in _weight_files(path):
            for name, shape in _read_header(file):
                if name in self._files:
                    raise CheckpointError(
                        f"{file.name}: expected each tensor once, got {name} again "
                        f"(first in {self._files[name].name}). Remove the stale file."
                    )
                self._files[name] = file
                self._shapes[name] = shape

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return dict(self._shapes)

    def files(self) -> list[Path]:
        """The files, sorted by name."""
        return sorted(set(self._files.values()))

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """The slice `[start:stop]` along `axis` of one tensor, in its stored dtype.

        Raises:
            CheckpointError: it is stored in something other than floating point.
        """
        with safe_open(str(self._files[name]), framework="pt") as file:
            view = file.get_slice(name)
            piece: Tensor = view[start:stop] if axis == 0 else view[:, start:stop]
            if piece.dtype not in FLOATS:
                raise CheckpointError(
                    f"{name}: expected bf16, fp16 or fp32, got {piece.dtype}. "
                    "Export the checkpoint that this one was quantized from."
                )
            return piece.clone()


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files of a folder: the only one, or (as transformers does) an index's."""
    index, single = path / "model.safetensors.index.json", path / "model.safetensors"
    if single.is_file():
        return [single]
    if index.is_file():
        return _indexed_files(path, index)
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise CheckpointError(
            f"{path / pickles[0]}: expected safetensors, got a pickle, which can run code when "
            "loaded. In a place you trust, convert it with transformers: "
            "AutoModelForCausalLM.from_pretrained(SOURCE).save_pretrained(TARGET)."
        )
    raise CheckpointError(
        f"{path}: expected model.safetensors or model.safetensors.index.json, got neither. "
        "Check the path."
    )


def _indexed_files(path: Path, index: Path) -> list[Path]:
    """The files that an index names, all of them beside it."""
    entries = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(
            f"{index}: expected an object weight_map, got {entries!r:.80}. "
            "The download is incomplete."
        )
    files = []
    for name in sorted(set(map(str, entries.values()))):
        file = path / name
        if file.name != name or file.suffix != ".safetensors":
            raise CheckpointError(
                f"{index}: expected names of safetensors files beside it, got {name!r:.80}. "
                "Do not trust this checkpoint."
            )
        if not file.is_file():
            raise CheckpointError(
                f"{index}: expected {name} beside it, got no such file. The download is incomplete."
            )
        files.append(file)
    return files


def read_json(file: Path, limit: int) -> dict[str, object]:
    """The object in a JSON file of at most `limit` bytes.

    Raises:
        CheckpointError: the file is larger, or holds something else.
    """
    values = read_json_value(file, limit)
    if not isinstance(values, dict):
        raise CheckpointError(
            f"{file}: expected a JSON object, got {type(values).__name__}. Fetch it again."
        )
    return values


def read_json_value(file: Path, limit: int) -> object:
    """The content of a JSON file of at most `limit` bytes.

    Raises:
        CheckpointError: the file is larger, or no JSON.
    """
    size = file.stat().st_size
    if size > limit:
        raise CheckpointError(
            f"{file}: expected at most {limit} bytes, got {size}. This is not a {file.name}."
        )
    try:
        value: object = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: expected JSON, got {error}. Fetch it again.") from error
    return value


def _read_header(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one file, its header bounded before it is parsed."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
    size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
    if not 0 < size <= min(MAX_HEADER_BYTES, file.stat().st_size):
        raise CheckpointError(
            f"{file}: expected a safetensors header of at most {MAX_HEADER_BYTES} bytes, "
            f"got {size}. The file is torn, or a pointer that was never fetched."
        )
    try:
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                yield name, tuple(tensors.get_slice(name).get_shape())
    except SafetensorError as error:
        raise CheckpointError(
            f"{file}: expected a whole safetensors file, got {error}. Fetch it again."
        ) from error
