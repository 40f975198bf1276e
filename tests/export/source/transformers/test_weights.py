import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny.transformers_types import TYPES, tiny_config
from transformers import AutoModelForCausalLM, PreTrainedModel

from ortolan.export.source.transformers.experts import INTERLEAVED, InterleavedWeights
from ortolan.export.source.transformers.skeleton import build_skeleton
from ortolan.export.source.transformers.weights import ConvertedWeights, convert_weights
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.errors import ConfigError, WeightError

FAST = ("apertus", "bert", "gpt2", "llama", "mixtral", "phi3")
FILE = "model.safetensors"


def published(folder: Path, model_type: str, **changes: object) -> PreTrainedModel:
    """A model with random weights, saved by transformers."""
    config = tiny_config(model_type)
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1)
    model.save_pretrained(folder)
    return model


def opened(folder: Path, model: PreTrainedModel) -> ConvertedWeights:
    return convert_weights(open_checkpoint(folder).tensors, build_skeleton(model.config.to_dict()))


def check(folder: Path, model: PreTrainedModel) -> None:
    weights = opened(folder, model)
    for name, expected in model.state_dict().items():
        assert weights.shape(name) == expected.shape
        if not expected.dim():
            assert torch.equal(weights.rows(name, 0, 1), expected), name
            continue
        length = len(expected)
        pieces = [weights.rows(name, at, min(at + 3, length)) for at in range(0, length, 3)]
        assert torch.equal(torch.cat(pieces), expected), name


@pytest.mark.parametrize("model_type", FAST)
def test_rows_are_those_that_transformers_saved(model_type: str, tmp_path: Path) -> None:
    check(tmp_path, published(tmp_path, model_type))


NOT_READ = {
    "deepseek_v4": "it has weights of integers, which are refused",
    "emu3": "its language model is saved under a type that is none by itself",
    "gemma3": "it is saved as a model of images and texts, whose head is tied",
    "mllama": "its language model is saved under a type that is none by itself",
}
"""Types whose tiny model is saved as another type."""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted({*TYPES} - {*FAST} - {*NOT_READ}))
def test_rows_of_every_type_are_those_that_transformers_saved(
    model_type: str, tmp_path: Path
) -> None:
    try:
        model = published(tmp_path, model_type)
    except Exception as error:
        pytest.skip(f"no tiny model: {error!r:.100}")
    check(tmp_path, model)


def test_experts_are_read_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = published(tmp_path, "mixtral")
    asked: list[str] = []
    tensors = open_checkpoint(tmp_path).tensors
    read = tensors.read

    def counted(name: str, start: int, stop: int, *, axis: int = 0) -> torch.Tensor:
        asked.append(name)
        return read(name, start, stop, axis=axis)

    monkeypatch.setattr(tensors, "read", counted)
    weights = convert_weights(tensors, build_skeleton(model.config.to_dict()))
    assert not asked
    weights.rows("model.layers.1.mlp.experts.gate_up_proj", 2, 3)
    assert len(asked) == 2
    assert all("layers.1" in name and "experts.2" in name for name in asked)


def test_rows_of_gates_and_of_what_they_multiply_come_in_turn(tmp_path: Path) -> None:
    model = published(tmp_path, "mixtral")
    place = "model.layers.1.mlp.experts."
    gate, up = model.get_parameter(f"{place}gate_up_proj").detach()[2:4].chunk(2, 1)
    weights = InterleavedWeights(opened(tmp_path, model))
    rows = weights.rows(f"{place}{INTERLEAVED}", 2, 4)
    assert torch.equal(rows[:, ::2], gate)
    assert torch.equal(rows[:, 1::2], up)
    down = model.get_parameter(f"{place}down_proj")
    assert torch.equal(weights.rows(f"{place}down_proj", 1, 2), down[1:2])
    assert weights.shape(f"{place}{INTERLEAVED}") == weights.shape(f"{place}gate_up_proj")


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


def test_an_infinity_in_a_config_is_read(tmp_path: Path) -> None:
    values = tiny_config("mamba2").to_dict() | {"time_step_limit": [0.0, {"__float__": "Infinity"}]}
    assert build_skeleton(values).config.time_step_limit[1] == float("inf")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"model_type": "nobody"}, "no causal language model"),
        ({"model_type": "llama", "hidden_size": "wide"}, "cannot build this llama"),
    ],
)
def test_configs_that_transformers_does_not_take_are_refused(
    values: dict[str, object], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        build_skeleton(values)


def test_code_beside_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    values = tiny_config("llama").to_dict() | {
        "auto_map": {"AutoModelForCausalLM": "evil.EvilModel"},
        "_name_or_path": str(tmp_path),
    }
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    assert type(build_skeleton(values)).__name__ == "LlamaForCausalLM"


def changed(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or remove tensors of a checkpoint; `_` in a name stands for a dot."""
    values = load_file(folder / FILE)
    for name, tensor in tensors.items():
        place = name.replace("__", ".")
        values.pop(place, None)
        if tensor is not None:
            values[place] = tensor
    shutil.rmtree(folder / FILE, ignore_errors=True)
    save_file(values, folder / FILE)


def test_every_difference_is_named(tmp_path: Path) -> None:
    model = published(tmp_path, "llama", tie_word_embeddings=False)
    changed(
        tmp_path,
        model__norm__weight=None,
        model__nothing=torch.ones(3),
        lm_head__weight=torch.ones(5, 64),
        **{"model__layers__0__self_attn__rotary_emb__inv_freq": torch.ones(8)},
    )
    with pytest.raises(WeightError) as caught:
        opened(tmp_path, model)
    message = str(caught.value)
    for difference in (
        "got 3 differences",
        "missing model.norm.weight",
        "unexpected model.nothing",
        "lm_head.weight: expected shape (100, 64), got (5, 64)",
    ):
        assert difference in message


def test_experts_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    model = published(tmp_path, "mixtral")
    changed(
        tmp_path,
        model__layers__0__block_sparse_moe__experts__1__w2__weight=torch.ones(3, 3),
    )
    with pytest.raises(WeightError, match=r"model\.layers\.0\.mlp\.experts\.down_proj"):
        opened(tmp_path, model)


def test_a_tied_head_is_the_embedding_whichever_the_file_holds(tmp_path: Path) -> None:
    model = published(tmp_path, "llama", tie_word_embeddings=True)
    embedding = model.get_parameter("model.embed_tokens.weight").detach().clone()
    for change in (
        {"lm_head__weight": embedding.clone()},
        {"lm_head__weight": embedding.clone(), "model__embed_tokens__weight": None},
    ):
        changed(tmp_path, **change)
        weights = opened(tmp_path, model)
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            assert torch.equal(weights.rows(name, 0, len(embedding)), embedding)
    changed(tmp_path, model__embed_tokens__weight=embedding + 1)
    with pytest.raises(WeightError, match="tie_word_embeddings"):
        opened(tmp_path, model)
