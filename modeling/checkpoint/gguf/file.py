"""A GGUF file as a checkpoint: its config, its tensors, and the files that would lie beside it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from ortolan.modeling.checkpoint.gguf.config import architecture_of, hf_values, special_ids
from ortolan.modeling.checkpoint.gguf.header import Header, read_header
from ortolan.modeling.checkpoint.gguf.tensors import GgufTensors, Heads
from ortolan.modeling.checkpoint.gguf.tokenizer import tokenizer_json
