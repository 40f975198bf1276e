"""A GGUF file as a checkpoint: its tensors, and the files that a folder would contain."""

import json
from collections.abc import Callable, Mapping

from ortolan.modeling.checkpoint.file_tensors import FileTensors
from ortolan.modeling.checkpoint.gguf.config import architecture_of, special_ids
from ortolan.modeling.checkpoint.gguf.header import Header
from ortolan.modeling.checkpoint.gguf.tensors import Heads, read_tensors
from ortolan.modeling.checkpoint.gguf.tokenizer import tokenizer_json

TEMPLATE = "tokenizer.chat_template"

QUERIES = ("num_attention_heads", "n_head")

KEYS = ("num_key_value_heads", "num_kv_heads", *QUERIES)
"""Config keys for the number of heads."""


def open_tensors(header: Header, values: Mapping[str, object]) -> FileTensors:
    """Open the tensors of a file with a config."""
    heads = Heads(_first(values, QUERIES), _first(values, KEYS))
    return read_tensors(header, architecture_of(header), heads)


def derived_files(header: Header, values: Mapping[str, object]) -> dict[str, Callable[[], str]]:
    """Files that a Hugging Face folder would contain next to the weights, generated on demand."""
    metadata = header.metadata
    files = {
        "config.json": lambda: json.dumps(values),
        "generation_config.json": lambda: json.dumps(special_ids(metadata)),
    }
    template = metadata.get(TEMPLATE)
    if isinstance(template, str):
        files["chat_template.jinja"] = lambda: template
    if metadata.get("tokenizer.ggml.model", "none") != "none":
        files["tokenizer.json"] = lambda: tokenizer_json(header)
    return files


def _first(values: Mapping[str, object], keys: tuple[str, ...]) -> int:
    """The first integer under some keys; 0 if there is none."""
    return next((value for key in keys if isinstance(value := values.get(key), int)), 0)
