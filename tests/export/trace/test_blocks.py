"""A module's graph with copied blocks, against the trace of the whole module."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.export.source.transformers.tiny import tiny_model
from tests.export.trace.test_repeat import described
from torch import Tensor, nn

from ortolan.export.passes import tidy
from ortolan.export.source.transformers.adapter import TransformersModule
from ortolan.export.trace import program
from ortolan.export.trace.module import Carried, find_carried, trace_module
from ortolan.modeling.state import State

LAYERS = 7


class Layer(nn.Module):
    """Attention of one head, or a state of fixed size."""

    def __init__(self, number: int, kind: str) -> None:
        super().__init__()
        self.number, self.kind = number, kind
        self.norm, self.inner = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor, state: State) -> Tensor:
        y = self.inner(self.norm(x))
        match self.kind:
            case "attention":
                out = state.attend(self.number, *[y[:, None]] * 3)[:, 0]
            case "convolution":
                weight = torch.ones(8, 2)
                out = state.convolve(f"{self.number}.x", y.transpose(1, 2), weight).transpose(1, 2)
            case _:
                out = y * (self.number + 1)
        return x + out


class Model(nn.Module):
    """Layers of some kinds, the first of which reads the table."""

    def __init__(self, kinds: str, **changes: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        names = {"a": "attention", "c": "convolution", "n": "number"}
        self.layers = nn.ModuleList(Layer(i, names[kind]) for i, kind in enumerate(kinds))
        self.sums = changes.get("sums", False)

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x = total = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, state)
            total = total + x
        out: Tensor = self.head(total if self.sums else x)
        return out


def check(module: nn.Module, copied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph with copies is that of the whole module, and so many blocks were not traced."""
    carried, entries = find_carried(module), list[int]()
    own = trace_of(module, carried, entries, monkeypatch)
    assert sum(block.traced != block.name for block in carried.blocks) == copied
    assert described(own) == described(
        trace_of(module, replace(carried, blocks=()), entries, monkeypatch)
    )
    assert entries[:1] != entries[1:] or not copied, "the blocks were not copied"


def trace_of(
    module: nn.Module, carried: Carried, entries: list[int], monkeypatch: pytest.MonkeyPatch
) -> Any:
    own = program.trace_entry

    def trace_entry(entry: Any, io: Any, tied: Any) -> Any:
        entries.append(len(io.inputs))
        return own(entry, io, tied)

    with monkeypatch.context() as patch:
        patch.setattr("ortolan.export.trace.module.trace_entry", trace_entry)
        return tidy(trace_module(module, carried, dtype=torch.float32, tied={}))


@pytest.mark.parametrize(
    ("kinds", "copied"),
    [pytest.param("aaaa", 3, marks=pytest.mark.slow), ("accacc", 4), ("can", 0)],
)
def test_copied_blocks_make_the_graph_of_the_whole_module(
    kinds: str, copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(Model(kinds).to("meta"), copied, monkeypatch)


def test_the_stream_may_be_read_between_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    check(Model("aaaa", sums=True).to("meta"), 3, monkeypatch)


def test_blocks_that_compute_with_their_number_are_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(Model("annnn").to("meta"), 0, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "copied"),
    [
        ("llama", 6),
        ("gemma3_text", 5),
        ("gpt_oss", 5),
        ("lfm2", 5),
        ("mixtral", 6),
        ("qwen3_next", 5),
        ("mamba2", 6),
    ],
)
def test_copied_blocks_make_the_graph_of_a_type(
    model_type: str, copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {
        "gemma3_text": ("sliding_attention", "full_attention"),
        "gpt_oss": ("sliding_attention", "full_attention"),
        "lfm2": ("conv", "full_attention"),
        "qwen3_next": ("linear_attention", "full_attention"),
    }.get(model_type)
    changes: dict[str, Any] = {"num_hidden_layers": LAYERS}
    if kinds is not None:
        changes["layer_types"] = [*(kinds * LAYERS)[:LAYERS]]
    model: Any = tiny_model(model_type, **changes)
    check(TransformersModule(model.to("meta"), 64), copied, monkeypatch)
