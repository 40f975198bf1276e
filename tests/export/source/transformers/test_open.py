"""Checkpoints that transformers reads: their keys, skeletons, references and bundles."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.cases.comparison import compare
from tests.export.source.transformers.tiny import tiny_model
from tests.refusals import refusal
from tests.tiny.transformers_types import tiny_config
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

import ortolan
from ortolan.export.exportable import Exportable
from ortolan.export.options import ExportOptions
from ortolan.export.source import open_exportable
from ortolan.export.source.transformers.keys import read_keys, unread_keys
from ortolan.export.source.transformers.skeleton import build_skeleton
from ortolan.export.streamed import Result, run
from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.models.transformer import build


def values_of(model_type: str, **values: Any) -> dict[str, Any]:
    return tiny_config(model_type).to_dict() | {"model_type": model_type} | values


def read(values: dict[str, Any], *accepted: str) -> Any:
    config: Any = CONFIG_MAPPING[values["model_type"]]
    return read_keys(values, config.from_dict(values), accepted)


# gpt_neo, zamba2 and gemma3_text compute attributes that they write; dbrx renames some.
@pytest.mark.parametrize("model_type", ["gpt_neo", "zamba2", "gemma3_text", "dbrx", "mamba"])
def test_config_that_transformers_wrote_has_no_unread_keys(model_type: str) -> None:
    keys = read(values_of(model_type))
    assert keys.accepted == ()
    assert "vocab_size" in keys.read
    assert "architectures" not in keys.read


def test_keys_of_old_versions_are_read_and_those_that_change_nothing_ignored() -> None:
    old = {"rope_theta": 5.0, "rope_scaling": None, "torch_dtype": "float16"}
    keys = read(values_of("glm4", unsloth_fixed=True, **old))
    assert "rope_theta" in keys.read
    assert {"torch_dtype", "unsloth_fixed"} <= set(keys.ignored)


def test_keys_that_a_model_reads_undeclared_are_read() -> None:
    assert unread_keys(values_of("glm4_moe", head_dim=32, strange=1)) == ("strange",)
    assert unread_keys(values_of("gemma3_text", sliding_window_pattern=6)) == ()


def test_a_key_that_transformers_does_not_read_can_be_accepted() -> None:
    assert read(values_of("glm4", strange=1), "strange").accepted == ("strange",)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "phi3", "gemma3_text", "mamba"])
def test_a_skeleton_has_no_weights_and_the_buffers_of_a_loaded_model(model_type: str) -> None:
    config = tiny_config(model_type)
    skeleton = build_skeleton(config.to_dict())
    assert {parameter.device.type for parameter in skeleton.parameters()} == {"meta"}
    loaded = AutoModelForCausalLM.from_config(config)
    expected = dict(loaded.named_non_persistent_buffers())
    assert dict(skeleton.named_non_persistent_buffers()).keys() == expected.keys()
    for name, buffer in skeleton.named_non_persistent_buffers():
        assert torch.equal(buffer, expected[name]), name


def test_an_infinity_in_a_config_is_read() -> None:
    values = values_of("mamba2", time_step_limit=[0.0, {"__float__": "Infinity"}])
    assert build_skeleton(values).config.time_step_limit[1] == float("inf")


def test_code_of_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    code = {"AutoModelForCausalLM": "evil.EvilModel"}
    values = values_of("llama", auto_map=code, _name_or_path=str(tmp_path))
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    assert type(build_skeleton(values)).__name__ == "LlamaForCausalLM"


UNREADABLE: dict[str, Callable[[], object]] = {
    "an unread key": lambda: read(values_of("glm4", strange=1)),
    "a read key that is accepted": lambda: read(values_of("glm4"), "vocab_size"),
    "an unknown type": lambda: build_skeleton({"model_type": "nobody"}),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_config_that_cannot_be_honored_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(UNREADABLE[name]) == snapshot


def test_a_width_in_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot build this llama"):
        build_skeleton({"model_type": "llama", "hidden_size": "wide"})


BOUND = 1e-4


def saved(folder: Path, name: str, **values: object) -> PreTrainedModel:
    """A model of a type saved by transformers, with changed values in its config.json."""
    model = tiny_model(name)
    model.save_pretrained(folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | values))
    return model


def opened(folder: Path, *, max_context: int | None = None, **options: Any) -> Exportable:
    return open_exportable(folder, ExportOptions(**options), max_context=max_context)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "nodes"),
    [
        ("gpt_oss", {"GroupQueryAttention": 2}),
        ("lfm2", {"GroupQueryAttention": 1, "Conv": 1}),
        # weights of experts that add up to 1, and others
        ("mixtral", {"MoE": 2, "Softmax": 0, "TopK": 0, "Log": 0}),
        ("qwen3_moe", {"MoE": 2, "Softmax": 2, "TopK": 2, "Log": 0}),
        ("qwen3_next", {"GroupQueryAttention": 1, "LinearAttention": 1, "Conv": 1, "MoE": 2}),
    ],
)
def test_a_bundle_computes_what_transformers_computes(
    model_type: str, nodes: dict[str, int], tmp_path: Path
) -> None:
    saved(tmp_path / "source", model_type)
    bundle = ortolan.export(
        tmp_path / "source", tmp_path / "bundle", options=ExportOptions(via="transformers")
    )
    result = compare(tmp_path / "source", tmp_path / "bundle")
    assert result.error <= BOUND
    assert result.tokens_equal
    graph = bundle.path / bundle.manifest.graphs["decoder"].file
    counts = Counter(node.op_type for node in onnx.load(graph, load_external_data=False).graph.node)
    assert {name: counts[name] for name in nodes} == nodes


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


def test_transformers_is_chosen_where_there_is_no_family(tmp_path: Path) -> None:
    saved(tmp_path, "olmo3")
    assert opened(tmp_path).origin.model_type == "olmo3"


def without_versions(text: str) -> str:
    """A text without the version of transformers and the number of families."""
    return re.sub(r"transformers 5[.\w]*|\d+ families", "...", text)


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a config that only transformers reads": ("llama", {"rope_interleaved": True}, {}),
    "a config and a class of no language model": (
        "llama",
        {"rope_interleaved": True, "architectures": ["LlamaForSequence"]},
        {},
    ),
    "a config by its family": ("llama", {"rope_interleaved": True}, {"via": "family"}),
    "an unknown type": ("llama", {"model_type": "nobody"}, {}),
    "attention of its own": ("gptj", {}, {"via": "transformers"}),
    "no context": ("llama", {}, {"via": "transformers", "max_context": 0}),
    "a context beyond the positions": ("llama", {}, {"via": "transformers", "max_context": 129}),
}
"""A type, changes of its config.json, and options."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_that_cannot_be_opened_is_refused(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    model_type, values, options = REFUSED[name]
    saved(tmp_path, model_type, **values)
    text = refusal(lambda: opened(tmp_path, **options), tmp_path)
    assert without_versions(text) == snapshot


@pytest.mark.parametrize("model_type", ["nobody", "olmo3"])
def test_a_type_without_a_family_is_refused_with_the_package_that_reads_it(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    saved(tmp_path, "llama", model_type=model_type)
    monkeypatch.setattr("ortolan.export.source.is_installed", lambda: False)
    assert without_versions(refusal(lambda: opened(tmp_path), tmp_path)) == snapshot


def test_options_of_a_checkpoint_are_refused_for_a_live_module(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    saved(tmp_path, "llama")
    assert opened(tmp_path, via="transformers").context_length == 128
    config: Any = opened(tmp_path).module.config
    model = build(config)
    assert refusal(lambda: open_exportable(model, ExportOptions(via="transformers"))) == snapshot


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
