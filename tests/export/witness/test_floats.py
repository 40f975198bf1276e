"""Low-bit checkpoints and GGUF files, as far as transformers reads them on a CPU."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.modeling.checkpoint import gguf_cases
from tests.modeling.checkpoint.packed_files import METHODS, write_packed
from tests.modeling.tiny_models import random_text
from tests.tiny.transformers_types import tiny_config
from torch import nn
from transformers import AutoModelForCausalLM

from ortolan.export.witness.ask import _gguf_keys
from ortolan.export.witness.depth import begins, first_of_each, kinds_of, shortened
from ortolan.export.witness.floats import UnansweredError, _has_cut_blocks, skeleton, unread_key
from ortolan.export.witness.publisher import Publisher
from ortolan.modeling import TransformerModel, load


def difference(source: Path) -> float:
    """Largest difference between logits of our reader and of transformers, relative."""
    ids = random_text(17)
    publisher = Publisher(source, kind="decoder")
    with torch.inference_mode():
        theirs = publisher.model(input_ids=ids, use_cache=False).logits
        ours = load(source, TransformerModel)(ids)
    assert publisher.rounding == 0.0
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("name", ["fp8-blocks", "fp8-default-blocks", "fp8-tensor"])
def test_8_bit_floats_load_without_a_gpu(name: str, tmp_path: Path) -> None:
    write_packed(tmp_path, METHODS[name])
    assert difference(tmp_path) < 1e-5


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("awq", "gptqmodel"),
        ("gptq-4", "optimum"),
        ("compressed-4", "compressed_tensors"),
        ("nf4", "bitsandbytes"),
        ("bitsandbytes-8", "bitsandbytes"),
    ],
)
def test_a_missing_package_is_named(name: str, package: str, tmp_path: Path) -> None:
    if find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    write_packed(tmp_path, METHODS[name])
    with pytest.raises(UnansweredError, match=re.sub("_", ".", package)):
        _ = Publisher(tmp_path, kind="decoder").model


@pytest.mark.parametrize(
    ("shape", "cut"),
    [((96, 64), False), ((96, 96), True), ((96, 80), False), ((32, 64), False)],
    ids=["whole", "cut, but even", "cut, and uneven", "one"],
)
def test_cut_blocks_that_look_whole_are_told(shape: tuple[int, int], cut: bool) -> None:
    assert _has_cut_blocks(nn.Linear(*shape, bias=False), [64, 32] if cut else [32, 32]) is cut


def write_gguf(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a case with a vocabulary, whose size transformers takes from the tokens."""
    case = gguf_cases.CASES[name]
    tokens = [f"t{number}" for number in range(case.values["vocab_size"])]
    words = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": ["t 1"]}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in words.items()}
    changed = case._replace(metadata=case.metadata | metadata)
    monkeypatch.setitem(gguf_cases.CASES, name, changed)
    return gguf_cases.written(name, folder)[1]


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_gguf_file_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(name, tmp_path, monkeypatch)
    assert unread_key(_gguf_keys(file)) is None
    assert difference(file) < 1e-5


def test_keys_that_transformers_does_not_read_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf("llama-linear", tmp_path, monkeypatch)
    assert unread_key(_gguf_keys(file)) == "llama.rope.scaling.type"


def test_tensors_that_transformers_skips_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf("llama-tied-biased", tmp_path, monkeypatch)
    reason = r"does not read blk\.0\.attn_\w+\.bias of this GGUF file"
    with pytest.raises(UnansweredError, match=reason):
        _ = Publisher(file, kind="decoder").model
    _ = Publisher(write_gguf("llama", tmp_path, monkeypatch), kind="decoder").model


def test_an_architecture_that_transformers_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf("olmo2", tmp_path, monkeypatch)
    with pytest.raises(UnansweredError, match=r"cannot load config.json \(GGUF model with arch"):
        _ = Publisher(file, kind="decoder").model


@pytest.mark.parametrize(
    ("model_type", "layers", "is_beginning"),
    [("llama", 1, True), ("qwen3_next", 4, True), ("gemma3_text", 6, True), ("minicpm3", 1, False)],
)
def test_layers_that_stand_for_all(model_type: str, layers: int, is_beginning: bool) -> None:
    config = tiny_config(model_type)
    if getattr(config, "layer_types", None):
        config.layer_types = None
    config.num_hidden_layers = 12
    config = type(config)(**config.to_dict())
    whole = skeleton(AutoModelForCausalLM, config)
    stack = next(part for part in whole.modules() if isinstance(part, nn.ModuleList))
    assert first_of_each(kinds_of(stack)) == layers
    short = skeleton(AutoModelForCausalLM, shortened(config, layers))
    assert begins(whole, short) is is_beginning
