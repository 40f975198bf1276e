"""A GGUF file as a checkpoint: its config, its tensors, and the files that would lie beside it."""

import json
from collections.abc import Callable, Mapping

from ortolan.modeling.checkpoint.gguf.config import architecture_of, special_ids
from ortolan.modeling.checkpoint.gguf.header import Header
from ortolan.modeling.checkpoint.gguf.tensors import GgufTensors, Heads
from ortolan.modeling.checkpoint.gguf.tokenizer import tokenizer_json

TEMPLATE = "tokenizer.chat_template"

QUERIES = ("num_attention_heads", "n_head")

KEYS = ("num_key_value_heads", "num_kv_heads", *QUERIES)
"""Where configs have the numbers of heads."""


def open_tensors(header: Header, values: Mapping[str, object]) -> GgufTensors:
    """The tensors of a file whose config has some values."""
    heads = Heads(_first(values, QUERIES), _first(values, KEYS))
    return GgufTensors(header, architecture_of(header), heads)


def made_files(header: Header, values: Mapping[str, object]) -> dict[str, Callable[[], str]]:
    """What a folder of Hugging Face would have beside the weights, by name, made when asked for."""
    metadata = header.metadata
    made = {
        "config.json": lambda: json.dumps(values),
        "generation_config.json": lambda: json.dumps(special_ids(metadata)),
    }
    template = metadata.get(TEMPLATE)
    if isinstance(template, str):
        made["chat_template.jinja"] = lambda: template
    if metadata.get("tokenizer.ggml.model", "none") != "none":
        made["tokenizer.json"] = lambda: tokenizer_json(header)
    return made


def _first(values: Mapping[str, object], keys: tuple[str, ...]) -> int:
    """The first number under some keys; 0 without one."""
    return next((value for key in keys if isinstance(value := values.get(key), int)), 0)
