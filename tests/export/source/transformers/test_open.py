import json
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.cases.comparison import compare
from tests.export.source.transformers.tiny import tiny_model
from transformers import PreTrainedModel

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.options import ExportOptions
from ortolan.export.source import open_exportable
from ortolan.export.streamed import Result, run
from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.models.transformer import build

BOUND = 1e-4


def saved(folder: Path, name: str, **values: object) -> PreTrainedModel:
    """A model of a type saved by transformers, with changed values in its config.json."""
    model = tiny_model(name)
    model.save_pretrained(folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | values))
    return model


def opened(folder: Path, **options: Any) -> Exportable:
    return open_exportable(folder, tokenizer=None, **{"max_context": None, **options})


@pytest.mark.parametrize(
    ("model_type", "nodes"),
    [
        pytest.param("gpt_oss", {"GroupQueryAttention": 2}, marks=pytest.mark.slow),
        pytest.param("lfm2", {"GroupQueryAttention": 1, "Conv": 1}, marks=pytest.mark.slow),
        pytest.param(
            "qwen3_next",
            {"GroupQueryAttention": 1, "LinearAttention": 1, "Conv": 1, "MoE": 2},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_bundle_computes_what_transformers_computes(
    model_type: str, nodes: dict[str, int], tmp_path: Path
) -> None:
    model = saved(tmp_path / "source", model_type)
    bundle = ortolan.export(
        tmp_path / "source", tmp_path / "bundle", options=ExportOptions(via="transformers")
    )
    result = compare(model, tmp_path / "bundle")
    assert result.error <= BOUND
    assert result.tokens_equal
    graph = bundle.path / bundle.manifest.graphs["decoder"].file
    counts = Counter(node.op_type for node in onnx.load(graph, load_external_data=False).graph.node)
    assert nodes.items() <= counts.items()


def test_the_reference_is_the_forward_of_transformers(tmp_path: Path) -> None:
    saved(tmp_path, "gemma3_text")
    source = opened(tmp_path, via="transformers")
    assert type(source.module).__name__ == "Gemma3ForCausalLM"
    assert {parameter.device.type for parameter in source.module.parameters()} == {"meta"}
    config: Any = source.module.config
    assert config._attn_implementation != "ortolan"


def test_the_reference_reads_one_expert_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path, "mixtral")
    source = opened(tmp_path, via="transformers")
    lengths = []
    read = source.weights.rows

    def rows(name: str, start: int, stop: int) -> torch.Tensor:
        if ".experts." in name:
            lengths.append(stop - start)
        return read(name, start, stop)

    monkeypatch.setattr(source.weights, "rows", rows)
    ids = torch.arange(5, 15)
    calls = [lambda: source.forward(None, ids)]
    *_, result = run(source.module, source.weights, calls)
    assert isinstance(result, Result)
    with torch.inference_mode():
        torch.testing.assert_close(result.value, model(ids[None]).logits[0])
    assert set(lengths) == {1}


def test_a_family_is_chosen_where_there_is_one(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    assert isinstance(opened(tmp_path).module.config, DecoderConfig)
    assert type(opened(tmp_path, via="transformers").module).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "is_hinted"), [("LlamaForCausalLM", True), ("LlamaForSequence", False)]
)
def test_a_config_that_a_family_refuses_may_be_read_by_transformers(
    architecture: str, is_hinted: bool, tmp_path: Path
) -> None:
    saved(tmp_path, "llama", rope_interleaved=True, architectures=[architecture])
    with pytest.raises(ConfigError, match="rope_interleaved false, got true") as caught:
        opened(tmp_path)
    assert ("--via transformers" in str(caught.value)) == is_hinted
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, via="family")
    assert "--via" not in str(caught.value)


def test_transformers_is_chosen_where_there_is_no_family(tmp_path: Path) -> None:
    saved(tmp_path, "hrm_text")
    assert opened(tmp_path).model_type == "hrm_text"


@pytest.mark.parametrize(
    ("is_installed", "expected"),
    [
        (True, "transformers 5.*'nobody'"),
        (False, "pip install"),
    ],
)
def test_an_unknown_type_is_refused(
    is_installed: bool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, "llama", model_type="nobody")
    monkeypatch.setattr("ortolan.export.source.is_installed", lambda: is_installed)
    with pytest.raises(ConfigError, match=expected):
        opened(tmp_path)


def test_a_model_that_attends_on_its_own_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "gptj")
    with pytest.raises(ConfigError, match=r"^gptj: .*AttentionInterface"):
        opened(tmp_path, via="transformers")


@pytest.mark.parametrize("max_context", [0, 129])
def test_a_context_beyond_the_positions_is_refused(max_context: int, tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    assert opened(tmp_path, via="transformers").context_length == 128
    with pytest.raises(OptionError, match="1 to 128"):
        opened(tmp_path, via="transformers", max_context=max_context)


def test_options_of_a_checkpoint_are_refused_for_a_live_module(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    config: Any = opened(tmp_path).module.config
    model = build(config)
    with pytest.raises(OptionError, match="live module"):
        open_exportable(model, tokenizer=None, max_context=None, via="transformers")


@pytest.mark.slow
def test_any_model_can_prefill_with_8_bit_products(tmp_path: Path) -> None:
    saved(tmp_path / "source", "llama")
    split = ExportOptions(
        via="transformers", graphs="split", prefill_precision="int8", allow_poor=True
    )

    bundle = ortolan.export(
        tmp_path / "source",
        tmp_path / "bundle",
        precision=ortolan.Int4(method="rtn"),
        options=split,
    )

    graph = bundle.path / bundle.manifest.graphs["prefill"].file
    counts = Counter(node.op_type for node in onnx.load(graph, load_external_data=False).graph.node)
    assert counts["MatMulIntegerToFloat"] >= 2 * 4
