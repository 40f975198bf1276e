"""Graphs of mixtures of experts against PyTorch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tests.export.graph_runs import Steps, assert_close, sessions_of
from tests.modeling import kinds
from tests.modeling.kinds import BLOCK, POSITIONS, VOCAB
from tests.modeling.mixtures import CHANGES, FEW

from ortolan.modeling.models.transformer import build

WIDE = replace(BLOCK, mixer=replace(BLOCK.attention, head_dim=16))
"""A block whose attention is one node."""

TEXTS = np.random.default_rng(0).integers(0, VOCAB, (2, 9))


@pytest.mark.slow
def test_every_mixture_is_one_node_with_the_same_results(tmp_path: Path) -> None:
    blocks = tuple(replace(WIDE, feed_forward=replace(FEW, **own)) for own in CHANGES.values())
    config = kinds.decoder_config(POSITIONS["none"], blocks[0], blocks=blocks)
    module = kinds.randomised(build(config)).eval()
    session = sessions_of(module, ["decoder"], tmp_path)["decoder"]
    graph = onnx.load(str(tmp_path / "decoder.onnx"), load_external_data=False).graph
    assert sum(node.op_type == "MoE" for node in graph.node) == len(blocks)
    with torch.inference_mode():
        expected = module(torch.from_numpy(TEXTS)).numpy()
    steps = Steps(session, 2)
    got = [steps(TEXTS[:, :6], [6, 6])] + [steps(TEXTS[:, i : i + 1], [1, 1]) for i in (6, 7, 8)]
    assert_close(np.concatenate(got, 1), expected, delta=1e-4)


def test_a_plain_router_adds_no_node(tmp_path: Path) -> None:
    config = kinds.decoder_config(POSITIONS["none"], replace(WIDE, feed_forward=FEW))
    module = kinds.randomised(build(config)).eval()
    sessions_of(module, ["decoder"], tmp_path)
    graph = onnx.load(str(tmp_path / "decoder.onnx"), load_external_data=False).graph
    assert not {"TopK", "Softmax", "ScatterElements"} & {node.op_type for node in graph.node}
