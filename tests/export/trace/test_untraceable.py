"""Models with sizes that PyTorch traces only with care, and what is said if it cannot."""

from dataclasses import replace

import pytest
import torch
from tests.modeling import kinds

from ortolan.export.source.family import trace_graph
from ortolan.modeling import ConfigError
from ortolan.modeling.config import EncoderDecoderConfig, RelativeBiasPositions
from ortolan.modeling.models.stack import Stack
from ortolan.runtime.bundle.manifest import Graph

CONFIG = kinds.seq2seq_config(RelativeBiasPositions(buckets=8, max_distance=16))


def test_a_model_that_cannot_be_traced_names_the_module_and_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relative = Stack.relative

    def reading(stack: Stack, positions: torch.Tensor, keys: int) -> object:
        return relative(stack, positions, range(keys)[int(positions.sum())])

    monkeypatch.setattr(Stack, "relative", reading)
    with pytest.raises(ConfigError) as caught:
        trace_graph(CONFIG, "decoder", Graph(file="decoder.onnx"), dtype=torch.float32)
    message = str(caught.value)
    assert "\x1b" not in message
    assert "\n" not in message
    assert "cannot trace this model: " in message
    assert ", in step_states)" in message
    assert "--via transformers" in message


def with_heads(heads: int) -> EncoderDecoderConfig:
    mixer = replace(kinds.BLOCK.attention, num_heads=heads, num_kv_heads=heads)
    block = replace(kinds.BLOCK, mixer=mixer)
    return kinds.seq2seq_config(RelativeBiasPositions(buckets=8, max_distance=16), block, depth=1)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 3])
def test_a_model_with_an_odd_number_of_heads_is_traced(heads: int) -> None:
    graph = trace_graph(
        with_heads(heads), "decoder", Graph(file="decoder.onnx"), dtype=torch.float32
    )
    assert "logits" in [value.name for value in graph.graph.outputs]
