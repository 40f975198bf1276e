"""Rows of weights that a checkpoint stores in another order, in several tensors, or transposed."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.modeling.tiny_encoders import CASES
from tests.modeling.tiny_models import reference_model
from tests.tiny import FAMILY_CONFIGS
from torch import Tensor

from ortolan.modeling import TransformerModel, load
from ortolan.modeling.checkpoint.folder import open_weights, read_config
from ortolan.modeling.checkpoint.mapped_weights import map_weights
from ortolan.modeling.config import ModelConfig
from ortolan.modeling.lazy_tensor import LazyTensor, stored_tensor
from ortolan.modeling.weights import Rows, Table, Target, module_weights, published_pieces

FAMILIES = (
    *("gpt_neox", "bloom", "falcon", "codegen", "gpt2", "phi3", "gemma", "qwen3_5_text"),
    *("mixtral", "gpt_oss", "granitemoe", "recurrent_gemma", "mamba2", "deepseek_v3"),
)
"""Decoders that together have every layout of tensors."""

OTHERS = ("roberta-masked", "vit-classifier", "bart", "t5", "marian", "moonshine", "wav2vec2")


# What the whole weights are is compared with transformers in families/test_parity.py.
@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_any_rows_are_the_rows_of_the_whole(name: str, tmp_path: Path) -> None:
    if name in OTHERS:
        CASES[name].write(tmp_path)
    else:
        reference_model(FAMILY_CONFIGS[name]).save_pretrained(tmp_path)
    module = load(tmp_path, TransformerModel)
    stored = open_weights(tmp_path, read_config(tmp_path, ModelConfig))
    live = module_weights(module)
    for weight, parameter in module.named_parameters():
        rows = len(parameter)
        assert stored.shape(weight) == live.shape(weight) == tuple(parameter.shape)
        for start, stop in [(0, rows), (0, 1), (rows - 1, rows), (rows // 3, 2 * rows // 3 + 1)]:
            assert torch.equal(stored.rows(weight, start, stop), parameter[start:stop])
            assert torch.equal(live.rows(weight, start, stop), parameter[start:stop])


@dataclass
class Tensors:
    """A checkpoint in memory that counts the elements read, and the most rows read at once."""

    tensors: dict[str, Tensor]
    elements: int = 0
    most_rows: int = 0

    def lazy(self) -> dict[str, LazyTensor]:
        return {
            name: stored_tensor(tensor.shape, partial(self.read, name))
            for name, tensor in self.tensors.items()
        }

    def read(self, name: str, start: int, stop: int, axis: int) -> Tensor:
        piece = self.tensors[name].narrow(axis, start, stop - start).clone()
        self.elements += piece.numel()
        self.most_rows = max(self.most_rows, stop - start)
        return piece


QKV = "blocks.{}.attention.qkv.weight"

EXPERTS = "blocks.{}.experts.gate_up"


def test_few_rows_are_read_at_once() -> None:
    source, ours = Tensors({"model.0.qkv": torch.randn(64 * 3 * 20, 2)}), QKV.format(0)
    table: Table = {"model.{}.qkv": Target(QKV, rows=Rows(64, 3, -1, ((0, 1), (1, 2), (2, 3))))}
    expected = {ours: (64 * 3 * 20, 2)}
    weights = map_weights(source.lazy(), table, expected, {}, base_model_prefix="model", tied={})
    weights.rows(ours, 30, 130)
    assert source.most_rows == 20


@pytest.mark.parametrize("layout", ["apart", "halves", "turned"])
def test_one_expert_is_read_without_the_others(layout: str) -> None:
    experts, rows, width = 3, 4, 5
    stored, table = {
        "apart": (
            {f"{i}.{side}": torch.randn(rows, width) for i in range(experts) for side in "gu"},
            {f"{{}}.{side}": Target(EXPERTS) for side in "gu"},
        ),
        "halves": (
            {"1.it": torch.randn(experts, 2 * rows, width)},
            {"{}.it": Target(EXPERTS, halves=True)},
        ),
        "turned": (
            {"1.it": torch.randn(experts, width, 2 * rows)},
            {"{}.it": Target(EXPERTS, transposed=True)},
        ),
    }[layout]
    if layout == "apart":
        stored = {f"1.{name}": tensor for name, tensor in stored.items()}
        table = {f"{{}}.{name}": target for name, target in table.items()}
    source, ours = Tensors(stored), EXPERTS.format(1)
    expected = {ours: (experts, 2 * rows, width)}
    weights = map_weights(source.lazy(), table, expected, {}, base_model_prefix="model", tied={})
    weights.rows(ours, 2, 3)
    assert source.elements == 2 * rows * width


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_are_stored_in_the_published_order(transposed: bool) -> None:
    """The key comes before the query of each of two heads, and a constant less than ours."""
    target = Target(QKV, transposed, rows=Rows(2, 2, -1, ((1, 2), (0, 1))), offset=1.0)
    (piece,) = published_pieces({"model.{}.qkv": target}, QKV.format(0), (12,))
    stored, tensors = torch.randn(12, 2), dict[str, Tensor]()
    ours = torch.cat([stored.view(2, 2, 3, 2)[:, side].flatten(0, 1) for side in (1, 0)]) + 1
    piece.write(ours, tensors, torch.float32)
    expected = stored.T if transposed else stored
    torch.testing.assert_close(tensors, {"model.0.qkv": expected})
