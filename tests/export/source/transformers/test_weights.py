"""Weights of checkpoints under the names of transformers, read a few rows at a time."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion
from tests.export.source.transformers.tiny import tiny_model
from tests.modeling.checkpoint.formats import reconfigure
from tests.modeling.checkpoint.packed_files import METHODS
from tests.refusals import refusal
from tests.tiny.transformers_types import TYPES
from torch import Tensor
from transformers import PreTrainedModel

from ortolan.export.source.transformers.experts import INTERLEAVED, interleaved
from ortolan.export.source.transformers.skeleton import build_skeleton
from ortolan.export.source.transformers.weights import convert_weights
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.lazy_tensor import LazyTensor
from ortolan.modeling.weights import TensorWeights

FAST = ("apertus", "bert", "gpt2", "llama", "mixtral", "phi3")
FILE = "model.safetensors"


def published(folder: Path, model_type: str, **changes: Any) -> PreTrainedModel:
    """A model saved by transformers."""
    model = tiny_model(model_type, deviation=0.1, **changes)
    model.save_pretrained(folder)
    return model


def opened(folder: Path, model: PreTrainedModel) -> TensorWeights:
    skeleton = build_skeleton(model.config.to_dict())
    return TensorWeights(convert_weights(open_checkpoint(folder).tensors, skeleton))


def check(folder: Path, model: PreTrainedModel) -> None:
    weights = opened(folder, model)
    for name, expected in model.state_dict().items():
        assert weights.shape(name) == expected.shape
        if not expected.dim():
            assert torch.equal(weights.rows(name, 0, 1), expected), name
            continue
        length = len(expected)
        pieces = [weights.rows(name, at, min(at + 3, length)) for at in range(0, length, 3)]
        assert torch.equal(torch.cat(pieces), expected), name


@pytest.mark.parametrize("model_type", FAST)
def test_rows_are_those_that_transformers_saved(model_type: str, tmp_path: Path) -> None:
    check(tmp_path, published(tmp_path, model_type))


NOT_READ = {
    "deepseek_v4": "it has integer weights, which are refused",
    "emu3": "its language model is saved under a type that transformers cannot open alone",
    "gemma3": "it is saved as a model of images and text, whose head is tied",
    "mllama": "its language model is saved under a type that transformers cannot open alone",
}
"""Types whose tiny model is saved as another type."""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted({*TYPES} - {*FAST} - {*NOT_READ}))
def test_rows_of_every_type_are_those_that_transformers_saved(
    model_type: str, tmp_path: Path
) -> None:
    try:
        model = published(tmp_path, model_type)
    except Exception as error:
        pytest.skip(f"no tiny model: {error!r:.100}")
    check(tmp_path, model)


def test_a_quantized_layer_is_turned_where_transformers_has_its_inputs_first(
    tmp_path: Path,
) -> None:
    model, expected = published(tmp_path, "gpt2"), dict[str, Tensor]()
    method = METHODS["gptq-4"]
    tensors = load_file(tmp_path / FILE)
    for name in [name for name in tensors if name.endswith("c_proj.weight")]:
        packed = method.pack(tensors.pop(name).T.contiguous())
        expected[name] = packed.dequantized.T
        stem = name.removesuffix("weight")
        tensors |= {f"{stem}{part}": value.contiguous() for part, value in packed.stored.items()}
    save_file(tensors, tmp_path / FILE)
    reconfigure(tmp_path, quantization_config=method.config)
    weights = opened(tmp_path, model)
    for name, value in expected.items():
        torch.testing.assert_close(weights.rows(name, 0, len(value)), value)


def test_experts_are_read_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = published(tmp_path, "mixtral")
    names: list[str] = []
    tensors = open_checkpoint(tmp_path).tensors
    name_of = {id(tensor): name for name, tensor in tensors.items()}
    read = LazyTensor.read

    def counted(tensor: LazyTensor, start: int, stop: int, axis: int = 0) -> Tensor:
        names.extend([name_of[id(tensor)]] if id(tensor) in name_of else [])
        return read(tensor, start, stop, axis)

    monkeypatch.setattr(LazyTensor, "read", counted)
    weights = TensorWeights(convert_weights(tensors, build_skeleton(model.config.to_dict())))
    assert not names
    weights.rows("model.layers.1.mlp.experts.gate_up_proj", 2, 3)
    assert len(names) == 2
    assert all("layers.1" in name and "experts.2" in name for name in names)


def test_rows_of_gate_and_up_are_interleaved(tmp_path: Path) -> None:
    model = published(tmp_path, "mixtral")
    prefix = "model.layers.1.mlp.experts."
    gate, up = model.get_parameter(f"{prefix}gate_up_proj").detach()[2:4].chunk(2, 1)
    weights = TensorWeights(interleaved(opened(tmp_path, model).tensors))
    rows = weights.rows(f"{prefix}{INTERLEAVED}", 2, 4)
    assert torch.equal(rows[:, ::2], gate)
    assert torch.equal(rows[:, 1::2], up)
    down = model.get_parameter(f"{prefix}down_proj")
    assert torch.equal(weights.rows(f"{prefix}down_proj", 1, 2), down[1:2])
    assert weights.shape(f"{prefix}{INTERLEAVED}") == weights.shape(f"{prefix}gate_up_proj")


def changed(folder: Path, **tensors: Tensor | None) -> None:
    """Replace, add or remove tensors of a checkpoint; `__` in a name stands for a dot."""
    values: dict[str, Tensor | None] = dict(load_file(folder / FILE))
    values |= {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({name: t for name, t in values.items() if t is not None}, folder / FILE)


EMBEDDING = "model__embed_tokens__weight"

REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Tensor | None]]] = {
    "several differences": (
        "llama",
        {"tie_word_embeddings": False},
        {
            "model__norm__weight": None,
            "model__nothing": torch.ones(3),
            "lm_head__weight": torch.ones(5, 64),
            "model__layers__0__self_attn__rotary_emb__inv_freq": torch.ones(8),
        },
    ),
    "experts that do not fit together": (
        "mixtral",
        {},
        {"model__layers__0__block_sparse_moe__experts__1__w2__weight": torch.ones(3, 3)},
    ),
    "a tied head unlike the embedding": (
        "llama",
        {"tie_word_embeddings": True},
        {"lm_head__weight": torch.ones(100, 64)},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_differences_are_named(name: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    model_type, changes, tensors = REFUSED[name]
    model = published(tmp_path, model_type, **changes)
    changed(tmp_path, **tensors)
    text = refusal(lambda: opened(tmp_path, model), tmp_path)
    assert re.sub(r"\('.*'\)", "(...)", text) == snapshot  # what PyTorch says


def test_a_tied_head_is_the_embedding_whichever_the_file_holds(tmp_path: Path) -> None:
    model = published(tmp_path, "llama", tie_word_embeddings=True)
    embedding = model.get_parameter("model.embed_tokens.weight").detach().clone()
    for change in ({}, {EMBEDDING: None}):
        changed(tmp_path, lm_head__weight=embedding.clone(), **change)
        weights = opened(tmp_path, model)
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            assert torch.equal(weights.rows(name, 0, len(embedding)), embedding)
