"""Convert a Llama checkpoint to GGUF, then to the quantization type to compute with.

    python -m workers.to_gguf CHECKPOINT FOLDER TYPE [TEXT ...]

TYPE is the end of a LLAMA_FTYPE_ constant, such as MOSTLY_Q4_0. With files of text, an importance
matrix guides the rounding; see importance.py. llama.cpp's own script recognizes tokenizers by the
hash of their output and rejects all others; this file has none, only ids. Weights are written in
float32, one tensor at a time, and quantized by llama.cpp. Supports only Llama.
"""

import ctypes
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

from workers.llama_weights import Array, gguf_name, rope_factors, rotary, tensors, values_of


def describe(writer: Any, config: Mapping[str, Any]) -> None:
    """Write the keys that llama.cpp reads."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rotary(config)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(llama_cpp.LLAMA_FTYPE_ALL_F32)
    writer.add_tokenizer_model("none")


def write_float32(checkpoint: Path, path: Path) -> None:
    """Write a checkpoint as GGUF in float32.

    Raises:
        ValueError: the checkpoint is not a Llama.
    """
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama":
        raise ValueError(f"{checkpoint}: must be a llama (got {config['model_type']}).")
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, config)
    stored = list(tensors(checkpoint))
    for tensor in stored:
        size = 4 * math.prod(tensor.shape)
        name = gguf_name(tensor.name, config["num_hidden_layers"])
        writer.add_tensor_info(name, tensor.shape, np.dtype(np.float32), size)
    factors = rope_factors(config)
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in stored:
        writer.write_tensor_data(values_of(tensor, config))
    if factors is not None:
        writer.write_tensor_data(factors)
    writer.close()


def entries(values: Mapping[str, Array]) -> Any:
    """An importance matrix as llama.cpp reads it. It ends with an empty element."""
    kind, pointer = llama_cpp.llama_model_imatrix_data, ctypes.POINTER(ctypes.c_float)
    rows = [
        kind(name.encode(), row.ctypes.data_as(pointer), row.size) for name, row in values.items()
    ]
    return (kind * (len(rows) + 1))(*rows)


def main() -> None:
    """Write FOLDER/model.gguf."""
    (checkpoint, folder), kind = map(Path, sys.argv[1:3]), sys.argv[3]
    texts = [Path(text) for text in sys.argv[4:]]
    folder.mkdir()
    file_type = getattr(llama_cpp, f"LLAMA_FTYPE_{kind}")
    path = folder / "model.gguf"
    if file_type == llama_cpp.LLAMA_FTYPE_ALL_F32:
        write_float32(checkpoint, path)
        return
    source = folder / "float32.gguf"
    write_float32(checkpoint, source)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    if texts:
        from workers.importance import importance  # PyTorch, which takes seconds to import

        matrix = importance(checkpoint, texts)  # the entries point into it
        params.imatrix = entries(matrix)
    status = llama_cpp.llama_model_quantize(
        str(source).encode(), str(path).encode(), ctypes.byref(params)
    )
    source.unlink()
    if status != 0:
        raise SystemExit(f"llama_model_quantize failed with status {status}.")


if __name__ == "__main__":
    main()
