"""Bundles with mixers of every kind and recurrent networks, beyond what holds for all."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tests.cases.modules import (
    CONVOLUTIONS,
    HYBRID,
    MEMORY,
    MIXERS,
    OF_RECURRENT,
    PORTABLE_CONVOLUTION,
    RECURRENT,
    recurrent,
    whole,
)
from tests.cases.run import Run, Runs
from tests.modeling.kinds import VOCAB
from tests.tiny.numbers import assert_close, random_ids

import ortolan
from ortolan.cli.attention_picture import choose
from ortolan.export.errors import OptionError
from ortolan.export.options import ExportOptions, Int4, Int8
from ortolan.export.trace.attention_maps import map_names
from ortolan.export.trace.sides import sides_of
from ortolan.modeling.checkpoint.folder import save
from ortolan.modeling.models.addressing import addressing
from ortolan.modeling.models.attention_maps import attention_maps as maps_of_torch
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.runtime import Decoder, InputError
from ortolan.runtime.attention_maps import attention_maps
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.verification.replay import verify

pytestmark = pytest.mark.slow


@pytest.fixture
def hybrid(runs: Runs) -> Run:
    return runs(HYBRID)


def text(length: int, seed: int = 0) -> list[int]:
    return [each % VOCAB for each in random_ids(length, seed=seed)]


def test_the_manifest_lists_what_each_layer_carries(hybrid: Run, tmp_path: Path) -> None:
    config = HYBRID.write(tmp_path).config
    carried = [
        (f"{layer}.{state.name}", ("batch", *state.shape), state.update)
        for layer, block in enumerate(config.blocks)
        for state in block.mixer.states
    ]
    states = hybrid.model.manifest.states
    assert [(state.name, state.shape, state.update) for state in states] == carried
    assert [state.input for state in states][:3] == [
        "past_key_values.0.conv",
        "past_key_values.1.conv",
        "past_key_values.1.recurrent",
    ]
    assert map_names(sides_of(config)) == (f"decoder.{len(MIXERS)}.self",)


def test_rows_that_rest_keep_every_state_to_the_bit(hybrid: Run, tmp_path: Path) -> None:
    module = HYBRID.write(tmp_path)
    texts = [text(30, seed) for seed in range(3)]
    wanted = [whole(module, ids) for ids in texts]
    engine = hybrid.model._engine
    runner, lengths = Runner(engine, engine.slots(3)), [7, 1, 12]
    for row, length in enumerate(lengths):
        runner.chunk(row, texts[row][:length], positions=[length - 1])
    for rows in ([0, 1, 2], [1], [2], [0, 2], [2], [1, 2], [0], [0, 1, 2], [1], [0, 1]):
        resting = {row: runner.slots.snapshot(row=row) for row in {0, 1, 2} - set(rows)}
        runner.select(rows)
        runner.step([texts[row][lengths[row]] for row in rows])
        for row in rows:
            assert_close(runner.logits_BV[row], wanted[row][lengths[row]])
            lengths[row] += 1
        for row, kept in resting.items():
            for before, now in zip(
                kept.buffers, runner.slots.snapshot(row=row).buffers, strict=True
            ):
                np.testing.assert_array_equal(now, before)
    # A chunk of one row between steps also leaves the others unchanged.
    runner.chunk(1, texts[1][lengths[1] : lengths[1] + 5], positions=[4])
    runner.select([0])
    runner.step([texts[0][lengths[0]]])
    assert_close(runner.logits_BV[0], wanted[0][lengths[0]])


def test_a_snapshot_goes_on_in_another_row_and_a_row_begins_anew(
    hybrid: Run, tmp_path: Path
) -> None:
    ids, other = text(24), text(24, seed=1)
    wanted, engine = whole(HYBRID.write(tmp_path), ids), hybrid.model._engine
    runner = Runner(engine, engine.slots(2))
    runner.prefill(0, ids[:9])
    kept = runner.slots.snapshot(row=0)
    runner.prefill(1, other)
    runner.prefill(0, other[:5])
    runner.restore(kept, row=1)
    runner.slots.release(0)
    first = runner.chunk(0, ids[:4], positions=range(4))
    assert_close(first, wanted[:4])
    runner.select([1])
    for place in range(9, 24):
        runner.step([ids[place]])
        assert_close(runner.logits_BV[1], wanted[place])


def test_a_decoder_without_attention_has_states_of_fixed_size_and_no_maps(
    runs: Runs, tmp_path: Path
) -> None:
    states = runs(CONVOLUTIONS).model.manifest.states
    assert {state.update for state in states} == {"replace"}
    with pytest.raises(OptionError, match="no attention"):
        ortolan.export(
            CONVOLUTIONS.write(tmp_path),
            tmp_path / "maps",
            options=ExportOptions(attention_maps=True),
        )


def test_a_portable_bundle_convolves_by_standard_operators(runs: Runs) -> None:
    operators = runs(PORTABLE_CONVOLUTION).model.bundle.graphs["decoder"].operators
    assert "com.microsoft::CausalConvWithState" not in operators
    assert operators["ai.onnx::Conv"] == 1


# --- recurrent networks ---------------------------------------------------------------------------


def test_states_that_are_replaced_are_not_rewound(runs: Runs) -> None:
    with runs(OF_RECURRENT["lstm"]).model.session() as session:
        session.append(random_ids(9))
        with pytest.raises(InputError, match="replaced at every step"):
            session.rewind(5)


@pytest.mark.parametrize(
    ("name", "variant"),
    [(name, variant.name) for name, case in OF_RECURRENT.items() for variant in case.variants],
)
def test_several_tokens_are_one_node_of_each_cell_and_one_token_plain_nodes(
    name: str, variant: str, runs: Runs
) -> None:
    bundle, config = runs(OF_RECURRENT[name], variant).model, recurrent(name).config
    for graph in bundle.manifest.graphs.values():
        nodes = onnx.load(bundle.bundle.path / graph.file, load_external_data=False).graph.node
        cells = sum(node.op_type == config.cell.upper() for node in nodes)
        assert cells == (0 if graph.sequence == 1 else config.num_layers)
    assert bundle.manifest.takes_one == (config.memory is not None)


def test_there_is_no_graph_for_prompts_of_a_machine(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="one by one"):
        ortolan.export(recurrent("machine"), tmp_path, options=ExportOptions(graphs="split"))


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("lstm, split", Int8(method="rtn")),
        ("attentive, split", Int4(method="rtn")),
        ("machine", Int4()),
    ],
)
def test_products_in_few_bits(name: str, precision: Int4 | Int8, tmp_path: Path) -> None:
    """Recurrent operators keep float weights; the cells of a machine are products."""
    name, _, split = name.partition(", ")
    options = ExportOptions(graphs="split" if split else "unified", proof="quick", allow_poor=True)
    bundle = ortolan.export(
        recurrent(name), tmp_path / "b", precision=precision, max_context=64, options=options
    )
    quantized = {tensor.name for tensor in bundle.manifest.quantized}
    assert {"embedding.weight", "head.weight"} <= quantized
    assert ("cells.0.weight_hh" in quantized) == (name == "machine")


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_maps_of_attention_are_those_of_torch(cell: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = RecurrentModel(replace(RECURRENT["attentive"], cell=cell)).eval()
    ids = random_ids(9)
    options = ExportOptions(attention_maps=True, proof="quick")
    ortolan.export(model, tmp_path / "bundle", options=options)
    found = attention_maps(tmp_path / "bundle", ids)
    (want,) = maps_of_torch(model, torch.tensor([ids]))
    assert_close(found.maps["decoder.0.self"], want[0].detach().numpy())
    with pytest.raises(OptionError, match="families have them"):
        ortolan.export(recurrent("lstm"), tmp_path / "other", options=options)


def test_maps_of_a_memory_are_those_of_torch(tmp_path: Path) -> None:
    model, ids = recurrent("machine"), random_ids(9)
    options = ExportOptions(attention_maps=True, proof="quick")
    ortolan.export(model, tmp_path / "bundle", options=options)
    found, want = attention_maps(tmp_path / "bundle", ids), addressing(model, torch.tensor([ids]))
    assert_close(found.maps["decoder.0.read"], want.read[0].numpy())
    assert_close(found.maps["decoder.0.write"], want.write[0].numpy())
    assert found.queries["decoder.0.read"] == tuple(map(str, ids))
    assert found.keys["decoder.0.read"] == tuple(map(str, range(MEMORY.slots)))
    panels = choose(found, kind=None, layers=None, heads=None, mean=False)
    assert [panel.title.partition(", ")[2] for panel in panels] == [
        "read head 0",
        "read head 1",
        "write head 0",
    ]


def test_no_kernel_reads_vectors_of_attention_in_8_bits(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="8-bit KV cache"):
        ortolan.export(recurrent("attentive"), tmp_path / "b", options=ExportOptions(cache="int8"))


@pytest.mark.parametrize("name", ["rnn", "attentive", "machine"])
def test_a_checkpoint_is_exported_verified_and_run(name: str, tmp_path: Path) -> None:
    model = recurrent(name)
    save(model, tmp_path / "checkpoint")
    ortolan.export(tmp_path / "checkpoint", tmp_path / "bundle", max_context=50)
    assert verify(tmp_path / "bundle", device="cpu").verdict == "PASS"
    loaded = ortolan.load(tmp_path / "bundle", Decoder)
    assert loaded.manifest.context_length == 50
    assert loaded.manifest.provenance.model_type == "recurrent"
    ids = random_ids(20)
    assert_close(loaded.logits(ids), whole(model, ids))
