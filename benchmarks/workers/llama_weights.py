"""Weights of a Llama checkpoint in llama.cpp's layout.

Source of names and layout: convert_hf_to_gguf.py of llama.cpp.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

HEADS = {  # config keys of the number of heads, for matrices with rotary positions
    "self_attn.q_proj": "num_attention_heads",
    "self_attn.k_proj": "num_key_value_heads",
}


class Tensor:
    """A tensor of a safetensors file, read on demand.

    Attributes:
        name: its name in the checkpoint.
        shape: its shape.
    """

    def __init__(self, file: Path, start: int, name: str, entry: Mapping[str, Any]) -> None:
        self.name = name
        self.shape: tuple[int, ...] = tuple(entry["shape"])
        self._file = file
        self._dtype: str = entry["dtype"]
        self._start = start + entry["data_offsets"][0]

    def read(self) -> Array:
        """The values as float32."""
        stored = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}[self._dtype]
        values = np.fromfile(self._file, stored, count=math.prod(self.shape), offset=self._start)
        if self._dtype == "BF16":
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values.astype(np.float32, copy=False).reshape(self.shape)


def tensors(checkpoint: Path) -> Iterator[Tensor]:
    """Yield all tensors of a checkpoint.

    Source: https://github.com/huggingface/safetensors#format
    """
    for path in sorted(checkpoint.glob("*.safetensors")):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                yield Tensor(path, 8 + length, name, entry)


def gguf_name(name: str, layers: int) -> str:
    """llama.cpp's name of a tensor."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    found = names.get_name(name, (".weight",))
    assert found is not None, name
    return found


def interleaved(rows: Array, heads: int) -> Array:
    """Reorder the rows of each head: rotated pairs are halves apart here, adjacent in llama.cpp.

    Args:
        rows: `(heads * D, hidden)`.
        heads: number of heads.
    """
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def values_of(tensor: Tensor, config: Mapping[str, Any]) -> Array:
    """Values of a tensor in llama.cpp's layout."""
    values = tensor.read()
    inner = tensor.name.removesuffix(".weight").split(".", 3)[-1]
    return interleaved(values, config[HEADS[inner]]) if inner in HEADS else values


def rotary(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters of rotary positions, wherever the transformers version stores them."""
    scaling = config.get("rope_scaling") or {"rope_type": "default"}
    return config.get("rope_parameters") or {"rope_theta": config["rope_theta"], **scaling}


def rope_factors(config: Mapping[str, Any]) -> Array | None:
    """Divisors of the rotary frequencies; None if all are 1.

    Source: Llama 3.1's scaling, as in transformers' `_compute_llama3_parameters`.

    Raises:
        ValueError: the scaling is not supported.
    """
    scaling = rotary(config)
    if scaling["rope_type"] == "default":
        return None
    if scaling["rope_type"] != "llama3":
        raise ValueError(f"rope_scaling must be llama3 or absent (got {scaling['rope_type']}).")
    size = config["head_dim"]
    lengths = 2 * math.pi * scaling["rope_theta"] ** (np.arange(0, size, 2) / size)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / lengths
    share = np.clip((turns - low) / (high - low), 0, 1)
    factors: Array = (1 / ((1 - share) / scaling["factor"] + share)).astype(np.float32)
    return factors
