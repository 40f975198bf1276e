"""Recurrent language models against torch.nn, and steps against whole sequences."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.nonsense import CONFIG_VALUES
from tests.refusals import refusal
from torch import Tensor, nn

from ortolan.modeling import load, read_config, save
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import (
    MemoryConfig,
    ModelConfig,
    RecurrentConfig,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import published_config
from ortolan.modeling.layers.cache import StepLengths
from ortolan.modeling.layers.cells import RecurrentCell
from ortolan.modeling.models.addressing import addressing
from ortolan.modeling.models.attention_maps import attention_maps
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.modeling.state import CachedState, WholeState

V, E, S = 11, 8, 12

PLAIN = RecurrentConfig(
    model_type="recurrent",
    hidden_size=E,
    vocab_size=V,
    context_length=32,
    cell="lstm",
    num_layers=2,
)

MACHINE = MemoryConfig(slots=5, width=3, read_heads=2, write_heads=1)

CONFIGS = {
    "rnn": replace(PLAIN, cell="rnn", tied_head=True),
    "gru": replace(PLAIN, cell="gru"),
    "lstm": PLAIN,
    "attentive": replace(PLAIN, attention_size=6),
    "machine": replace(PLAIN, memory=MACHINE),
    "feed-forward machine": replace(PLAIN, cell="feed_forward", num_layers=1, memory=MACHINE),
}


def model_of(name: str) -> RecurrentModel:
    torch.manual_seed(0)
    return RecurrentModel(CONFIGS[name]).eval()


def texts(count: int = 2) -> Tensor:
    return torch.randint(V, (count, S), generator=torch.Generator().manual_seed(1))


def run(module: RecurrentModel, ids: Tensor, chunks: tuple[int, ...]) -> Tensor:
    """Logits of sequences that enter the state in chunks."""
    result, count = WholeState(), ids.shape[0]
    module(ids, result)
    memory = {name: torch.zeros(shape) for name, shape in result.kept.items()}
    sequences = {n: torch.full((count, 16, shape[2]), 9.0) for n, shape in result.extended.items()}
    actual, done = [], 0
    for part in torch.split(ids, list(chunks), 1):
        done += part.shape[1]
        step = StepLengths(torch.full((count,), done - 1), torch.tensor(done))
        state = CachedState(step, {}, memory, sequences=sequences)
        actual.append(module(part, state))
        memory, sequences = state.kept, state.extended
    return torch.cat(actual, 1)


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
def test_stacked_cells_equal_torch(name: str) -> None:
    module = model_of(name)
    kind = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[name]
    reference = kind(E, E, num_layers=2, batch_first=True)
    reference.load_state_dict(
        {
            f"{parameter}_l{number}": tensor
            for number, cell in enumerate(module.cells)
            for parameter, tensor in cell.state_dict().items()
        }
    )
    head = module.embedding if module.head is None else module.head
    expected = reference(module.embedding(texts()))[0] @ head.weight.T
    torch.testing.assert_close(module(texts()), expected)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("chunks", [(S,), (5, 7), (4, 1, 1, 1, 1, 1, 3), (1,) * S])
def test_chunks_equal_the_whole_sequence(name: str, chunks: tuple[int, ...]) -> None:
    module, ids = model_of(name), texts()
    with torch.no_grad():
        torch.testing.assert_close(run(module, ids, chunks), module(ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_of_a_batch_are_independent(name: str) -> None:
    module, ids = model_of(name), texts(3)
    with torch.no_grad():
        together, alone = module(ids), torch.cat([module(row[None]) for row in ids])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_do_not_depend_on_later_tokens(name: str) -> None:
    module, ids = model_of(name), texts()
    changed = torch.cat((ids[:, :6], (ids[:, 6:] + 1) % V), 1)
    with torch.no_grad():
        torch.testing.assert_close(module(changed)[:, :6], module(ids)[:, :6])
        assert (module(changed)[:, 6:] != module(ids)[:, 6:]).any()


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_reach_every_weight(name: str) -> None:
    module = model_of(name)
    module(texts()).square().mean().backward()
    without = [n for n, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


def test_attention_ignores_padding() -> None:
    module, ids = model_of("attentive"), texts()
    with torch.no_grad():
        expected = module(ids[1:, :7])
        step = StepLengths(torch.tensor([S - 1, 6]), torch.tensor(S))
        kept = {f"cells.{n}.{s}": torch.zeros(2, E) for n in (0, 1) for s in ("hidden", "cell")}
        sequences = {
            "attention.keys": torch.zeros(2, S, 6),
            "attention.values": torch.zeros(2, S, E),
        }
        actual = module(ids, CachedState(step, {}, kept, sequences=sequences))
    torch.testing.assert_close(actual[1:, :7], expected, rtol=1e-5, atol=1e-6)


def test_only_selected_rows_are_computed() -> None:
    module, ids = model_of("gru"), texts()
    rows = torch.tensor([[3], [9]])
    kept = {f"cells.{n}.hidden": torch.zeros(2, E) for n in (0, 1)}
    state = CachedState(StepLengths.first(S), {}, kept, rows=rows)
    with torch.no_grad():
        actual, expected = module(ids, state), module(ids)
    assert state.has_selected
    torch.testing.assert_close(actual[:, 0], torch.stack((expected[0, 3], expected[1, 9])))


def test_attention_maps_weight_the_states() -> None:
    module, ids = model_of("attentive"), texts()
    with torch.no_grad():
        (weights,) = attention_maps(module, ids)
        states = module.embedding(ids)
        for cell in cast(Iterable[RecurrentCell], module.cells):
            states, _ = cell(states, (torch.zeros(2, E), torch.zeros(2, E)))
        joined = torch.cat((states, weights[:, 0] @ states), -1)
        join, head = cast(nn.Linear, module.join), cast(nn.Linear, module.head)
        torch.testing.assert_close(head(torch.tanh(join(joined))), module(ids))
    assert weights.shape == (2, 1, S, S)
    assert not weights.triu(1).any()


def test_addressing_ends_with_the_weights_of_the_state() -> None:
    module, ids = model_of("machine"), texts()
    result = addressing(module, ids)
    assert result.read.shape == (2, 2, S, 5)
    assert result.write.shape == (2, 1, S, 5)
    torch.testing.assert_close(result.read.sum(-1), torch.ones(2, 2, S))
    whole = WholeState()
    module(ids, whole)
    memory = {name: torch.zeros(shape) for name, shape in whole.kept.items()}
    state = CachedState(StepLengths.first(S), {}, memory)
    with torch.no_grad():
        module(ids, state)
    weights = state.kept["memory.weights"] + torch.eye(5)[0]
    torch.testing.assert_close(torch.cat((result.read, result.write), 1)[:, :, -1], weights)


# --- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_network_is_loaded_as_it_was(name: str, tmp_path: Path) -> None:
    module = model_of(name)
    save(module, tmp_path)
    loaded = load(tmp_path, RecurrentModel)
    assert loaded.config == CONFIGS[name]
    with torch.no_grad():
        assert torch.equal(loaded(texts()), module(texts()))


def test_the_context_may_be_any(tmp_path: Path) -> None:
    save(model_of("machine"), tmp_path)
    assert load(tmp_path, RecurrentModel, max_context=1000).config.context_length == 1000
    assert read_config(tmp_path, RecurrentConfig).context_length == 32


def test_another_kind_of_model_or_cell_is_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    save(model_of("gru"), tmp_path)
    assert refusal(lambda: load(tmp_path)) == snapshot
    assert refusal(lambda: config_from_hf(VALUES | {"cell": "ligru"}, ModelConfig)) == snapshot
    assert refusal(lambda: addressing(model_of("gru"), texts())) == snapshot


VALUES = {
    key: value for config in CONFIGS.values() for key, value in published_config(config).items()
}

JSON_VALUES: st.SearchStrategy[object] = st.sampled_from([*CONFIG_VALUES, "gru"])


@settings(max_examples=60, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(sorted({*VALUES} - {"model_type"})), JSON_VALUES))
def test_any_config_is_read_or_refused(changes: dict[str, object]) -> None:
    with contextlib.suppress(ConfigError):
        config_from_hf(VALUES | changes, ModelConfig)
