"""Graphs of every kind of position and block, against PyTorch without a cache."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from tests.export.graph_runs import Steps, assert_close, run, sessions_of
from tests.modeling import kinds
from tests.modeling.kinds import BLOCK, CHANGES, FEW, POSITIONS, VOCAB

from ortolan.export.source.family import trace_graph
from ortolan.modeling.config import (
    BlockConfig,
    LatentConfig,
    NoPositions,
    Positions,
    RotaryPositions,
)
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.transformer import build
from ortolan.runtime.bundle.manifest import Graph

pytestmark = pytest.mark.slow

TEXTS = np.random.default_rng(0).integers(0, VOCAB, (6, 14))

SOURCES, LENGTHS = TEXTS[:2, :7], np.array([7, 3], np.int32)


FUSED, STANDARD, PLAIN = "GroupQueryAttention", "Attention", "Softmax"


def wide(**fields: Any) -> BlockConfig:
    """A block whose heads have a width that the kernel accepts."""
    return replace(BLOCK, mixer=replace(BLOCK.attention, head_dim=16, **fields))


def narrow(**fields: Any) -> BlockConfig:
    """A block whose heads are 6 wide, which the kernel refuses."""
    return replace(BLOCK, mixer=replace(BLOCK.attention, **fields))


WEIGHTLESS, BIASLESS = replace(kinds.RMS, scale=False), replace(kinds.LAYER, bias=False)

LATENT = LatentConfig(query_rank=10, rank=12, rotated=16, norm=kinds.RMS)

UNBIASED_LAST = replace(kinds.MLP, down_bias=False, activation="relu2")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of position, and layers that use it with the operator of their attention."""

    positions: Positions
    layers: Sequence[tuple[BlockConfig, str]]

    @property
    def blocks(self) -> tuple[BlockConfig, ...]:
        return tuple(block for block, _ in self.layers)


KINDS = {
    "none": Kind(POSITIONS["none"], [(wide(), FUSED), (replace(wide(), placement="post"), FUSED)]),
    "none, in parallel": Kind(
        POSITIONS["none"],
        [
            (replace(wide(), placement="parallel"), FUSED),
            (replace(wide(), placement="parallel_norms"), FUSED),
        ],
    ),
    "learned": Kind(
        POSITIONS["learned-offset"],
        [
            (replace(wide(num_kv_heads=2), placement="pre_residual"), FUSED),
            (wide(value_dim=3), STANDARD),
        ],
    ),
    "sinusoidal": Kind(
        POSITIONS["sinusoidal"], [(wide(softcap=0.8), FUSED), (narrow(softcap=0.8), PLAIN)]
    ),
    "rotary": Kind(RotaryPositions(dim=16, theta=30.0), [(wide(num_kv_heads=2), FUSED)]),
    "rotary of each layer": Kind(
        NoPositions(),
        [
            (wide(rotary=RotaryPositions(dim=16, theta=30.0)), FUSED),
            (wide(), FUSED),
            (narrow(rotary=RotaryPositions(dim=4)), STANDARD),
        ],
    ),
    "norms of queries and keys": Kind(
        RotaryPositions(dim=16, theta=30.0),
        [
            (wide(query_key_norm=kinds.RMS, num_kv_heads=2), FUSED),
            (wide(query_key_norm=kinds.RMS, norm_over="all", clip=0.8), FUSED),
            (wide(query_key_norm=WEIGHTLESS, norm_after_rotary=True, softcap=0.8), FUSED),
            (wide(query_key_norm=kinds.LAYER, value_dim=3), STANDARD),
            (wide(query_key_norm=kinds.RMS, norm_after_rotary=True, value_dim=3), STANDARD),
        ],
    ),
    "latents": Kind(
        RotaryPositions(dim=16, theta=30.0, interleaved=True),
        [
            (wide(latent=LATENT, value_dim=12, qkv_bias=False), STANDARD),
            (wide(latent=replace(LATENT, query_rank=None), qkv_bias=False), FUSED),
        ],
    ),
    "norms of blocks": Kind(
        POSITIONS["none"],
        [
            (replace(wide(sinks=True), placement="inner_post", norm=kinds.RMS), FUSED),
            (replace(wide(), placement="sandwich", norm=WEIGHTLESS, residual_scale=0.3), FUSED),
            (replace(wide(), feed_forward=UNBIASED_LAST), FUSED),
            (replace(wide(), attention_norm=False, norm=BIASLESS), FUSED),
            (replace(wide(value_dim=3, sinks=True), norm=replace(BIASLESS, scale=False)), PLAIN),
        ],
    ),
    "rotary, interleaved": Kind(
        RotaryPositions(dim=16, theta=30.0, interleaved=True),
        [(wide(num_kv_heads=2), FUSED), (narrow(head_dim=32), FUSED)],
    ),
    "rotary, interleaved, of narrow heads": Kind(
        POSITIONS["rotary-interleaved-partial"], [(narrow(), STANDARD)]
    ),
    "rotary of narrow heads": Kind(POSITIONS["rotary-partial"], [(narrow(), STANDARD)]),
    "relative-bias": Kind(
        POSITIONS["relative-bias"],
        [(wide(softcap=0.8), FUSED), (narrow(num_kv_heads=2), STANDARD)],
    ),
    "alibi": Kind(POSITIONS["alibi"], [(wide(), FUSED), (narrow(softcap=0.8), PLAIN)]),
}


def randomised(config: Any) -> TransformerModel:
    return kinds.randomised(build(config)).eval()


def operators(file: Path) -> list[str]:
    graph = onnx.load(str(file), load_external_data=False).graph
    return [node.op_type for node in graph.node]


def assert_lowered(file: Path, kind: Kind) -> None:
    """The attention of every layer is the expected operator."""
    attention = [name for name in operators(file) if name in (FUSED, STANDARD, PLAIN)]
    assert attention == [operator for _, operator in kind.layers]


def logits_of(module: TransformerModel, *inputs: NDArray[Any]) -> NDArray[np.float32]:
    with torch.inference_mode():
        out: NDArray[np.float32] = module(*map(torch.from_numpy, inputs)).numpy()
    return out


@pytest.mark.parametrize("name", KINDS)
def test_cached_decoder_equals_the_whole_sequence(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    module = randomised(kinds.decoder_config(kind.positions, kind.blocks[0], blocks=kind.blocks))
    session = sessions_of(module, ["decoder"], tmp_path)["decoder"]
    assert_lowered(tmp_path / "decoder.onnx", kind)
    expected = logits_of(module, TEXTS)
    # Two prompts of different lengths, then a token each.
    steps, lengths = Steps(session, 2), np.array([6, 4])
    prompt = steps(TEXTS[:2, :6], [6, 4])
    for row, length in enumerate(lengths):
        assert_close(prompt[row, :length], expected[row, :length], delta=1e-4)
    for _ in range(4):
        got = steps(TEXTS[[0, 1], lengths][:, None], [1, 1])
        assert_close(got[:, 0], expected[[0, 1], lengths], delta=1e-4)
        lengths = lengths + 1
    # One prompt in chunks.
    steps, start = Steps(session, 1), 0
    for size in (3, 5, 1, 4, 1):
        got = steps(TEXTS[:1, start : start + size], [size])
        assert_close(got[0], expected[0, start : start + size], delta=1e-4)
        start += size


ENCODERS = ["learned", "rotary", "rotary of narrow heads", "relative-bias", "alibi"]


@pytest.mark.parametrize("name", ENCODERS)
def test_padded_encoder_equals_each_row_alone(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    blocks = tuple(map(kinds.bidirectional, kind.blocks))
    module = randomised(kinds.encoder_config(kind.positions, blocks=blocks))
    session = sessions_of(module, ["encoder"], tmp_path)["encoder"]
    assert_lowered(tmp_path / "encoder.onnx", kind)
    lengths = np.array([14, 1, 5], np.int32)
    out = run(session, {"input_ids": TEXTS[:3], "lengths": lengths})["output"]
    for row, length in enumerate(lengths):
        expected = logits_of(module, TEXTS[row : row + 1, :length])[0]
        assert_close(out[row, :length], expected, delta=1e-4)


@pytest.mark.parametrize("name", ["relative-bias", "alibi"])
def test_rows_of_a_source_equal_each_alone_behind_it(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    module = randomised(kinds.seq2seq_config(kind.positions, kind.blocks[1], depth=1))
    graphs = sessions_of(module, ["encoder", "decoder"], tmp_path)
    cross = run(graphs["encoder"], {"input_ids": SOURCES, "lengths": LENGTHS})
    steps = Steps(graphs["decoder"], 6, {**cross, "source_lengths": LENGTHS})
    got = [steps(TEXTS[:, :4], [4] * 6)]
    got += [steps(TEXTS[:, i : i + 1], [1] * 6) for i in range(4, 9)]
    for row, text in enumerate(TEXTS):
        source = SOURCES[row // 3, : LENGTHS[row // 3]][None]
        expected = logits_of(module, source, text[None, :9])[0]
        assert_close(np.concatenate(got, 1)[row], expected, delta=1e-4)


# --- blocks ---------------------------------------------------------------------------------------


def test_every_mixture_is_one_node_with_the_same_results(tmp_path: Path) -> None:
    blocks = tuple(replace(wide(), feed_forward=replace(FEW, **own)) for own in CHANGES.values())
    config = kinds.decoder_config(POSITIONS["none"], blocks[0], blocks=blocks)
    module = randomised(config)
    steps = Steps(sessions_of(module, ["decoder"], tmp_path)["decoder"], 2)
    assert operators(tmp_path / "decoder.onnx").count("MoE") == len(blocks)
    got = [steps(TEXTS[:2, :6], [6, 6])]
    got += [steps(TEXTS[:2, i : i + 1], [1, 1]) for i in (6, 7, 8)]
    assert_close(np.concatenate(got, 1), logits_of(module, TEXTS[:2, :9]), delta=1e-4)


def test_a_plain_router_adds_no_node(tmp_path: Path) -> None:
    config = kinds.decoder_config(POSITIONS["none"], replace(wide(), feed_forward=FEW))
    sessions_of(randomised(config), ["decoder"], tmp_path)
    assert {"TopK", "Softmax", "ScatterElements"}.isdisjoint(operators(tmp_path / "decoder.onnx"))


@pytest.mark.parametrize("heads", [1, 3])
def test_a_model_with_an_odd_number_of_heads_is_traced(heads: int) -> None:
    block = narrow(num_heads=heads, num_kv_heads=heads)
    config = kinds.seq2seq_config(POSITIONS["relative-bias"], block, depth=1)
    graph = trace_graph(config, "decoder", Graph(file="decoder.onnx"), dtype=torch.float32)
    assert "logits" in [value.name for value in graph.graph.outputs]
