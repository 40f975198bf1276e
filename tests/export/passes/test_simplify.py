"""Graphs of transformers' models, against those of the same models as families."""

from collections import Counter
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from tests.tiny.transformers_types import tiny_config
from transformers import AutoModelForCausalLM, PreTrainedModel

from ortolan.export.derived import recipes_of
from ortolan.export.options import Via
from ortolan.export.passes import tidy
from ortolan.export.source import open_exportable
from ortolan.runtime.bundle.manifest import Graph


def graph(folder: Path, via: Via) -> ir.Model:
    model = open_exportable(folder, tokenizer=None, max_context=None, via=via)
    return tidy(model.trace("decoder", Graph(file="decoder.onnx"), torch.float32))


def operators(model: ir.Model) -> Counter[str]:
    """Number of nodes by operator, without constants."""
    return Counter(node.op_type for node in model.graph if node.op_type != "Constant")


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt2", "llama", "qwen2", "qwen3"])
def test_a_model_of_transformers_has_only_the_nodes_of_its_family(
    model_type: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = tiny_config(model_type)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(tmp_path)
    graphs = {via: graph(tmp_path, via) for via in ("family", "transformers")}
    assert not operators(graphs["transformers"]) - operators(graphs["family"])
    assert recipes_of([graphs["transformers"]])
