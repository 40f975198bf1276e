"""Bundles of recurrent networks against PyTorch: chunks, steps, snapshots and batches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from tests.tiny.numbers import assert_close, random_ids

import ortolan
from ortolan.cli.attention_picture import choose
from ortolan.export.errors import OptionError
from ortolan.export.options import ExportOptions, Int4, Int8
from ortolan.modeling.checkpoint.folder import save
from ortolan.modeling.config import AdditiveAttentionConfig, MemoryConfig, RecurrentConfig
from ortolan.modeling.models.addressing import addressing
from ortolan.modeling.models.attention_maps import attention_maps as maps_of_torch
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.runtime import Decoder, InputError, PromptLookup
from ortolan.runtime.attention_maps import attention_maps
from ortolan.runtime.verification.replay import verify

pytestmark = pytest.mark.slow

VOCAB, CONTEXT = 97, 400

PLAIN = RecurrentConfig(
    model_type="recurrent",
    hidden_size=24,
    vocab_size=VOCAB,
    context_length=CONTEXT,
    cell="lstm",
    num_layers=2,
)
MEMORY = MemoryConfig(slots=9, width=8, read_heads=2)
CONFIGS = {
    "rnn": replace(PLAIN, cell="rnn", tied_head=True),
    "lstm": PLAIN,
    "attentive": replace(PLAIN, cell="gru", attention=AdditiveAttentionConfig(width=12)),
    "machine": replace(PLAIN, num_layers=1, memory=MEMORY),
    "feed-forward machine": replace(PLAIN, cell="feed_forward", num_layers=1, memory=MEMORY),
}
LONG = ("rnn", "lstm, split", "attentive, split", "feed-forward machine")
"""Slow to trace, and similar to others."""

KINDS = [
    pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
    for name in (*CONFIGS, "lstm, split", "attentive, split")
]

Tiny = tuple[RecurrentModel, Decoder]


def model_of(name: str) -> RecurrentModel:
    """A model whose weights are large enough to matter."""
    torch.manual_seed(0)
    model = RecurrentModel(CONFIGS[name]).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.4)
    return model


@pytest.fixture(scope="module", params=KINDS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    name, _, split = request.param.partition(", ")
    folder, model = tmp_path_factory.mktemp("recurrent"), model_of(name)
    options = ExportOptions(graphs="split" if split else "unified", proof="quick")
    ortolan.export(model, folder / "bundle", options=options)
    return model, ortolan.load(folder / "bundle", Decoder)


def reference(model: RecurrentModel, ids: list[int]) -> NDArray[np.float32]:
    with torch.no_grad():
        logits: NDArray[np.float32] = model(torch.tensor([ids]))[0].numpy()
    return logits


def test_logits_are_those_of_torch_at_every_position(tiny: Tiny) -> None:
    model, bundle = tiny
    for ids in (random_ids(90), random_ids(2), random_ids(1)):
        assert_close(bundle.logits(ids), reference(model, ids))


def test_greedy_texts_of_unequal_lengths_are_those_of_torch(tiny: Tiny) -> None:
    model, bundle = tiny
    prompts = [random_ids(length, seed=length) for length in (1, 17, 40)]
    for prompt, done in zip(prompts, bundle.generate(prompts, max_new_tokens=64), strict=True):
        text = [*prompt, *done.tokens]
        want = reference(model, text[:-1])[len(prompt) - 1 :].argmax(-1)
        assert list(done.tokens) == want.tolist()


def test_parts_steps_snapshots_and_forks_give_what_the_whole_gives(tiny: Tiny) -> None:
    model, bundle = tiny
    ids = random_ids(80)
    want = reference(model, ids)
    with bundle.session() as session:
        for start, end in ((0, 30), (30, 31), (31, 60)):
            assert_close(session.append(ids[start:end]), want[end - 1])
        kept = session.snapshot()
        session.append(random_ids(7, seed=3))
        with pytest.raises(InputError, match="replaced at every step"):
            session.rewind(60)
        session.restore(kept)
        with session.fork() as other:
            for place in range(60, 80):
                for each in (session, other):
                    assert_close(each.append(ids[place : place + 1]), want[place])


def test_requests_of_a_service_give_what_torch_gives(tiny: Tiny) -> None:
    model, bundle = tiny
    shared = random_ids(256, seed=9)
    prompts = [[*shared, *random_ids(length, seed=length)] for length in (1, 9, 20)]
    with bundle.serve(slots=2, cache_bytes=1 << 24) as service:
        tickets = [service.submit(prompt, max_new_tokens=9) for prompt in prompts]
        found = [ticket.completion() for ticket in tickets]
    assert sum(done.timings.cached_tokens for done in found) == 512
    for prompt, done in zip(prompts, found, strict=True):
        want = reference(model, [*prompt, *done.tokens])[len(prompt) - 1 : -1].argmax(-1)
        assert list(done.tokens) == want.tolist()


def test_drafts_are_refused(tiny: Tiny) -> None:
    with pytest.raises(InputError, match="recurrent state"):
        tiny[1].generate([1, 2], draft=PromptLookup(), max_new_tokens=2)


def test_several_tokens_are_one_node_of_each_cell_and_one_token_plain_nodes(tiny: Tiny) -> None:
    model, bundle = tiny
    cell = model.config.cell.upper()
    for graph in bundle.manifest.graphs.values():
        nodes = onnx.load(bundle.bundle.path / graph.file, load_external_data=False).graph.node
        cells = sum(node.op_type == cell for node in nodes)
        assert cells == (0 if graph.sequence == 1 else model.config.num_layers)
    assert bundle.manifest.takes_one == (model.config.memory is not None)


def test_there_is_no_graph_for_prompts_of_a_machine(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="one by one"):
        ortolan.export(model_of("machine"), tmp_path, options=ExportOptions(graphs="split"))


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("lstm, split", Int8(method="rtn")),
        pytest.param("attentive, split", Int4(method="rtn"), marks=pytest.mark.slow),
        pytest.param("machine", Int4(), marks=pytest.mark.slow),
    ],
)
def test_products_in_few_bits(name: str, precision: Int4 | Int8, tmp_path: Path) -> None:
    """Recurrent operators keep float weights; the cells of a machine are products."""
    name, _, split = name.partition(", ")
    options = ExportOptions(graphs="split" if split else "unified", proof="quick", allow_poor=True)
    bundle = ortolan.export(
        model_of(name), tmp_path / "b", precision=precision, max_context=64, options=options
    )
    quantized = {tensor.name for tensor in bundle.manifest.quantized}
    assert {"embedding.weight", "head.weight"} <= quantized
    assert ("cells.0.weight_hh" in quantized) == (name == "machine")


@pytest.mark.slow
def test_maps_of_attention_are_those_of_torch(tmp_path: Path) -> None:
    model, ids = model_of("attentive"), random_ids(9)
    options = ExportOptions(attention_maps=True, proof="quick")
    ortolan.export(model, tmp_path / "bundle", options=options)
    found = attention_maps(tmp_path / "bundle", ids)
    (want,) = maps_of_torch(model, torch.tensor([ids]))
    assert_close(found.maps["decoder.0.self"], want[0].detach().numpy())
    with pytest.raises(OptionError, match="families have them"):
        ortolan.export(model_of("lstm"), tmp_path / "other", options=options)


@pytest.mark.slow
def test_maps_of_a_memory_are_those_of_torch(tmp_path: Path) -> None:
    model, ids = model_of("machine"), random_ids(9)
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


@pytest.mark.slow
def test_no_kernel_reads_vectors_of_attention_in_8_bits(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="8-bit KV cache"):
        ortolan.export(model_of("attentive"), tmp_path / "b", options=ExportOptions(cache="int8"))


@pytest.mark.parametrize(
    "name",
    ["rnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("attentive", "machine"))],
)
def test_a_checkpoint_is_exported_verified_and_run(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    save(model, tmp_path / "checkpoint")
    ortolan.export(tmp_path / "checkpoint", tmp_path / "bundle", max_context=50)
    assert verify(tmp_path / "bundle", device="cpu").verdict == "PASS"
    loaded = ortolan.load(tmp_path / "bundle", Decoder)
    assert loaded.manifest.context_length == 50
    assert loaded.manifest.provenance.model_type == "recurrent"
    ids = random_ids(20)
    assert_close(loaded.logits(ids), reference(model, ids))
