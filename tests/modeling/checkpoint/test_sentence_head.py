"""Folders of sentence-transformers: pooling, projections, prompts, and their errors."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from syrupy.assertion import SnapshotAssertion
from tests.modeling.checkpoint.formats import refused
from tests.modeling.tiny_encoders import (
    EMBEDDING_GEMMA,
    ENCODERS,
    EncoderCase,
    ragged,
    reference_output,
)
from tests.modeling.tiny_models import LLAMA, assert_same_logits
from tests.refusals import refusal
from torch import Tensor
from torch.nn import functional

from ortolan.modeling import DecoderModel, EncoderConfig, EncoderModel, ModelConfig, load, save
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.folder import read_config
from ortolan.modeling.checkpoint.sentence_head import (
    NAMED_MODES,
    Prompts,
    max_tokens,
    read_prompts,
    write_sentence_head,
)
from ortolan.modeling.config import DecoderConfig, EmbeddingHead

TEXTS = ragged(9, 1, 16, 4)

MINI_LM_POOLING = {
    "word_embedding_dimension": 384,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
}
"""The config of sentence-transformers/all-MiniLM-L6-v2."""

FIRST = MINI_LM_POOLING | {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


def modules(*names: str, path: str = "1_Pooling") -> list[dict[str, Any]]:
    paths = ["", path, *(f"{i}_{name}" for i, name in enumerate(names) if i > 1)]
    return [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]


ALL = modules("Transformer", "Pooling", "Normalize")


def written(folder: Path, listed: object = ALL, pooling: object = MINI_LM_POOLING) -> Path:
    ENCODERS["bert"].write(folder)
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


def embeddings(module: EncoderModel) -> Tensor:
    with torch.inference_mode():
        vectors: Tensor = module(TEXTS.ids, TEXTS.lengths)
    return vectors


@pytest.mark.parametrize(
    ("pooling", "listed"), [(MINI_LM_POOLING, ALL), (FIRST, ALL[:2])], ids=["mean", "first"]
)
def test_a_saved_embedding_model_is_read_back(
    pooling: object, listed: object, tmp_path: Path
) -> None:
    module = load(written(tmp_path / "source", listed, pooling), EncoderModel)
    save(module, tmp_path / "saved")
    assert load(tmp_path / "saved", EncoderModel).config == module.config
    theirs, ours = (tmp_path / name for name in ("source", "saved"))
    assert json.loads((ours / "modules.json").read_text()) == listed
    modes = [json.loads((at / "1_Pooling/config.json").read_text()) for at in (theirs, ours)]
    on = [{key for key, value in mode.items() if value is True} for mode in modes]
    assert on[0] == on[1]
    assert modes[1]["word_embedding_dimension"] == 32


def weighted_mean(states_TE: Tensor) -> Tensor:
    weights_T = torch.arange(1.0, len(states_TE) + 1)
    return weights_T @ states_TE / weights_T.sum()


POOLED: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda states_TE: states_TE[0],
    "lasttoken": lambda states_TE: states_TE[-1],
    "max": lambda states_TE: states_TE.max(0).values,
    "mean": lambda states_TE: states_TE.sum(0) / len(states_TE),
    "mean_sqrt_len_tokens": lambda states_TE: states_TE.sum(0) / math.sqrt(len(states_TE)),
    "weightedmean": weighted_mean,
}
"""Pooling of a text without padding, as sentence-transformers 6.2 defines the modes."""

SWITCHES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@pytest.mark.parametrize("version", [2, 6])
@pytest.mark.parametrize("modes", [*([mode] for mode in SWITCHES), ["cls", "mean", "lasttoken"]])
def test_every_mode_of_versions_2_to_6(version: int, modes: list[str], tmp_path: Path) -> None:
    named = {"pooling_mode": modes if len(modes) > 1 else modes[0], "embedding_dimension": 32}
    switched = {switch: mode in modes for mode, switch in SWITCHES.items()}
    written(tmp_path, ALL[:2], named if version == 6 else switched)
    module = load(tmp_path, EncoderModel)
    assert module.config.head == EmbeddingHead(
        pooling=tuple(NAMED_MODES[mode] for mode in modes), normalised=False
    )
    with torch.inference_mode():
        states = module.states(TEXTS.ids, TEXTS.lengths)
        rows = [row[:length] for row, length in zip(states, TEXTS.lengths.tolist(), strict=True)]
        alone = module(TEXTS.ids[:1, : TEXTS.lengths[0]])
    expected = torch.stack([torch.cat([POOLED[mode](row) for mode in modes]) for row in rows])
    assert_same_logits(embeddings(module), expected)
    assert_same_logits(alone, expected[:1])


# --- models of every kind -----------------------------------------------------------------------

QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 8, "max_position_embeddings": 40}

TIED = {"tie_word_embeddings": True}

EMBEDDERS: dict[str, tuple[EncoderCase, str]] = {
    "bert": (ENCODERS["bert"], "mean"),
    # Like all-mpnet-base-v2 and all-distilroberta-v1, with the class of a masked language model.
    "mpnet": (ENCODERS["mpnet-masked"], "mean"),
    "roberta": (ENCODERS["roberta-masked"], "mean"),
    # Like Qwen3-Embedding, except that its padding is on the left.
    "qwen3": (EncoderCase("Qwen3ForCausalLM", QWEN3), "lasttoken"),
    "qwen3, tied": (
        EncoderCase("Qwen3ForCausalLM", QWEN3 | {"tie_word_embeddings": True}),
        "lasttoken",
    ),
    "qwen3, bare names": (EncoderCase("Qwen3Model", QWEN3), "lasttoken"),
    "gemma": (EncoderCase("Gemma3TextModel", EMBEDDING_GEMMA), "mean"),
}
"""Models of transformers, and how their states are pooled."""


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embeddings_are_pooled_states_of_transformers(name: str, tmp_path: Path) -> None:
    case, mode = EMBEDDERS[name]
    body: Any = case.write(tmp_path).base_model
    write_sentence_head(tmp_path, EmbeddingHead(pooling=(NAMED_MODES[mode],)), 32)
    rows = []
    for ids, length in zip(TEXTS.ids, TEXTS.lengths.tolist(), strict=True):
        states = reference_output(body, input_ids=ids[None, :length])[0]
        rows.append(functional.normalize(POOLED[mode](states), dim=0))
    assert_same_logits(embeddings(load(tmp_path, EncoderModel)), torch.stack(rows))


def test_a_caller_can_ask_for_the_language_model(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    EMBEDDERS["qwen3"][0].write(tmp_path)
    write_sentence_head(tmp_path, EmbeddingHead(pooling=("last",)), 32)
    assert isinstance(read_config(tmp_path, ModelConfig), EncoderConfig)
    assert isinstance(load(tmp_path), DecoderModel)
    (tmp_path / "modules.json").unlink()
    assert isinstance(read_config(tmp_path, ModelConfig), DecoderConfig)
    assert refusal(lambda: read_config(tmp_path, EncoderConfig)) == snapshot


def test_padding_beyond_every_window_is_finite(tmp_path: Path) -> None:
    EMBEDDERS["gemma"][0].write(tmp_path)
    module = load(tmp_path, EncoderModel)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert embeddings(module.to(dtype)).isfinite().all()


# --- projections --------------------------------------------------------------------------------

DENSE = {
    "in_features": 32,
    "out_features": 24,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
}


def with_dense(folder: Path, *configs: dict[str, Any]) -> list[dict[str, Tensor]]:
    """A folder with dense modules; returns their weights."""
    names = ["Transformer", "Pooling", *["Dense"] * len(configs), "Normalize"]
    written(folder, modules(*names))
    generator = torch.Generator().manual_seed(0)
    weights = []
    for number, config in enumerate(configs, 2):
        shapes: dict[str, tuple[int, ...]] = {
            "linear.weight": (config["out_features"], config["in_features"])
        }
        if config.get("bias", True):
            shapes["linear.bias"] = (config["out_features"],)
        weights.append({n: torch.randn(s, generator=generator) for n, s in shapes.items()})
        place = folder / f"{number}_Dense"
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config))
        save_file(weights[-1], place / "model.safetensors")
    return weights


def test_projections_follow_the_pooling(tmp_path: Path) -> None:
    no_bias = {
        "in_features": 24,
        "out_features": 40,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    first, second = with_dense(tmp_path / "source", DENSE, no_bias)
    module = load(tmp_path / "source", EncoderModel)
    assert isinstance(module.config.head, EmbeddingHead)
    assert module.config.head.width(32) == 40
    with torch.inference_mode():
        states = module.states(TEXTS.ids, TEXTS.lengths)
    mean = (states * TEXTS.mask[..., None]).sum(1) / TEXTS.mask.sum(1, keepdim=True)
    hidden = torch.tanh(mean @ first["linear.weight"].T + first["linear.bias"])
    expected = functional.normalize(hidden @ second["linear.weight"].T, dim=1)
    assert_same_logits(embeddings(module), expected)
    save(module, tmp_path / "saved")
    again = load(tmp_path / "saved", EncoderModel)
    assert again.config == module.config
    assert torch.equal(embeddings(again), embeddings(module))
    # As written by version 2 of sentence-transformers.
    folder = tmp_path / "source/2_Dense"
    (folder / "model.safetensors").unlink()
    torch.save(first, folder / "pytorch_model.bin")
    pickled = load(tmp_path / "source", EncoderModel)
    assert torch.equal(embeddings(pickled), embeddings(module))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"sentence_bert_config.json": {"max_seq_length": 30}}, 30),
        ({"sentence_bert_config.json": {"processing_kwargs": {"text": {"max_length": 25}}}}, 25),
        ({"tokenizer_config.json": {"model_max_length": 20}}, 20),
        ({"tokenizer_config.json": {"model_max_length": 1e30}}, None),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": 30},
                "tokenizer_config.json": {"model_max_length": 20},
            },
            30,
        ),
    ],
)
def test_a_folder_states_the_maximum_length(
    files: dict[str, Any], expected: int | None, tmp_path: Path
) -> None:
    for name, values in files.items():
        (tmp_path / name).write_text(json.dumps(values))
    own = files.get("tokenizer_config.json", {}).get("model_max_length")
    assert max_tokens(tmp_path) == (20 if own == 20 else None)
    (tmp_path / "modules.json").write_text(json.dumps(ALL))
    assert max_tokens(tmp_path) == expected


def test_prompts_are_read(tmp_path: Path) -> None:
    values = {"prompts": {"query": "query: ", "none": ""}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(values))
    assert read_prompts(tmp_path) == Prompts()
    (tmp_path / "modules.json").write_text(json.dumps(ALL))
    assert read_prompts(tmp_path) == Prompts(texts=values["prompts"], default="query")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "BertNormalizer", "lowercase": True},
        {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
    ],
)
def test_lower_case_of_the_tokenizer_is_accepted(normalizer: object, tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"normalizer": normalizer}))
    assert isinstance(read_config(tmp_path, EncoderConfig).head, EmbeddingHead)


def test_saving_over_an_embedding_model_removes_its_head(tmp_path: Path) -> None:
    ENCODERS["bert"].write(tmp_path / "plain")
    plain = load(tmp_path / "plain", EncoderModel)
    save(plain, written(tmp_path / "sentence"))
    assert read_config(tmp_path / "sentence", EncoderConfig).head is None


# --- refused ------------------------------------------------------------------------------------

LISTED, LIMITS = "modules.json", "sentence_bert_config.json"

PROMPTS = "config_sentence_transformers.json"

POOLING, DENSE_FILE = "1_Pooling/config.json", "2_Dense/config.json"

NFC = {"type": "NFC"}

UNSUPPORTED: dict[str, dict[str, object]] = {
    "no pooling": {LISTED: modules("Transformer")},
    "a norm alone": {LISTED: modules("Transformer", "Normalize")},
    "an LSTM": {LISTED: modules("Transformer", "Pooling", "LSTM")},
    "a late projection": {LISTED: modules("Transformer", "Pooling", "Normalize", "Dense")},
    "bags of words": {LISTED: modules("WordEmbeddings", "Pooling")},
    "modules of its own": {LISTED: [entry | {"type": f"mine.{entry['type']}"} for entry in ALL]},
    "modules by name": {LISTED: {}},
    "modules that are numbers": {LISTED: [1, 2]},
    "modules that are null": {LISTED: None},
    **{
        f"a pooling in {path!r}": {LISTED: modules("Transformer", "Pooling", path=path)}
        for path in ("../1_Pooling", "..", "", "/etc", "1_Pooling/", ".", "absent")
    },
    "an absent mode": {POOLING: {}},
    **{
        f"a mode of {mode}": {POOLING: {"pooling_mode": mode}}
        for mode in ("attention", ["mean", 3], [])
    },
    "a pooling without the prompt": {POOLING: MINI_LM_POOLING | {"include_prompt": False}},
    "an unknown mode": {POOLING: MINI_LM_POOLING | {"pooling_mode_first_and_last": True}},
    **{
        f"a projection with {change}": {DENSE_FILE: DENSE | change}
        for change in (
            {"in_features": 31},
            {"out_features": 25},
            {"activation_function": "mine.Activation"},
            {"use_residual": True},
            {"module_output_name": "token_embeddings"},
            {"normalize": True},
        )
    },
    "another task": {LIMITS: {"transformer_task": "text-generation"}},
    "another output": {
        LIMITS: {"modality_config": {"text": {"method_output_name": "pooler_output"}}}
    },
    **{
        f"lower case of {normalizer}": {
            LIMITS: {"do_lower_case": True},
            "tokenizer.json": {"normalizer": normalizer},
        }
        for normalizer in (None, NFC, {"type": "Sequence", "normalizers": [NFC]})
    },
}
"""Files of an embedding model with a projection."""


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_folder_is_refused(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    with_dense(tmp_path, DENSE)
    for file, values in UNSUPPORTED[name].items():
        (tmp_path / file).write_text(json.dumps(values))
    assert refused(tmp_path) == snapshot


CALLS: dict[str, dict[str, object]] = {
    "a length of queries": {LIMITS: {"query_length": 32}},
    "a length of documents": {LIMITS: {"document_length": 180}},
    "padding": {
        LIMITS: {"processing_kwargs": {"text": {"max_length": 25, "padding": "max_length"}}}
    },
    "no special tokens": {LIMITS: {"processing_kwargs": {"common": {"add_special_tokens": False}}}},
    "a number as prompt": {PROMPTS: {"prompts": {"query": 3}}},
    "an absent default": {PROMPTS: {"prompts": {}, "default_prompt_name": "query"}},
}
"""Ways to call a tokenizer."""


@pytest.mark.parametrize("name", CALLS)
def test_other_ways_to_call_a_tokenizer_are_refused(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / LISTED).write_text(json.dumps(ALL))
    for file, values in CALLS[name].items():
        (tmp_path / file).write_text(json.dumps(values))
    assert refusal(lambda: (max_tokens(tmp_path), read_prompts(tmp_path)), tmp_path) == snapshot


def test_the_hash_of_a_checkpoint_covers_its_pooling(tmp_path: Path) -> None:
    digests = {open_checkpoint(written(tmp_path)).sha256()}
    for file, values in ((POOLING, FIRST), (LISTED, ALL[:2])):
        (tmp_path / file).write_text(json.dumps(values))
        digests.add(open_checkpoint(tmp_path).sha256())
    (tmp_path / LISTED).unlink()
    assert len({*digests, open_checkpoint(tmp_path).sha256()}) == 4
