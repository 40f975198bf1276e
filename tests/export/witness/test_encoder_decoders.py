"""Encoder-decoders of texts, whose bundles transformers reads as we do."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases.comparison import save_tiny
from tests.export.witness.findings import BUNDLE, SOURCE, agreed, differing, misread
from tests.tiny import CONFIGS

import ortolan

CONFIG, GENERATION = "config.json", "generation_config.json"

SETTINGS: dict[str, Any] = {
    "forced_bos_token_id": 30,
    "forced_eos_token_id": 2,
    "suppress_tokens": [11, 12],
    "begin_suppress_tokens": [40, 41],
    "bad_words_ids": [[17]],
    "repetition_penalty": 1.8,  # which a greedy completion does not follow
    "eos_token_id": 2,
}
"""What a generation_config.json forces and suppresses."""

TYPES = ("bart", "blenderbot", "m2m_100", "marian", "mbart", "mt5", "pegasus", "umt5")

AGREED = {"logits": 4, "completions": 2}


def save(model_type: str, folder: Path) -> None:
    """A tiny checkpoint, whose texts depend on the source."""
    values = CONFIGS[model_type]
    save_tiny(values, folder, spread=0.45 if "t5" in model_type else 0.3)
    settings = SETTINGS | {"decoder_start_token_id": values["decoder_start_token_id"]}
    (folder / GENERATION).write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 and its bundle."""
    folder = tmp_path_factory.mktemp("t5")
    save("t5", folder / SOURCE)
    ortolan.export(folder / SOURCE, folder / BUNDLE)
    return folder


def test_transformers_agrees_about_t5(exported: Path) -> None:
    assert agreed(exported, *AGREED) == AGREED


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TYPES)
def test_transformers_agrees(model_type: str, tmp_path: Path) -> None:
    save(model_type, tmp_path / SOURCE)
    ortolan.export(tmp_path / SOURCE, tmp_path / BUNDLE)
    assert agreed(tmp_path, *AGREED) == AGREED


@pytest.mark.parametrize(
    ("file", "values", "topics"),
    [
        (CONFIG, {"relative_attention_max_distance": 12}, ["logits", "completions"]),
        (CONFIG, {"layer_norm_epsilon": 1e-3}, ["logits"]),
        (GENERATION, {"forced_bos_token_id": 31}, ["special tokens", "completions"]),
        (GENERATION, {"forced_eos_token_id": None}, ["special tokens", "completions"]),
        (GENERATION, {"suppress_tokens": [11]}, ["special tokens"]),
        (GENERATION, {"decoder_start_token_id": 9}, ["special tokens", "completions"]),
    ],
)
def test_misread_values_are_found(
    exported: Path, file: str, values: dict[str, Any], topics: list[str]
) -> None:
    with misread(exported / SOURCE / file, **values):
        found = differing(exported)
    assert [name for name in topics if name in found] == topics


@pytest.mark.slow
def test_rounded_weights_are_compared_by_their_reference(exported: Path) -> None:
    ortolan.export(exported / SOURCE, exported / "int8", precision="int8")
    assert agreed(exported, *AGREED, bundle="int8") == {"logits": 4}
    with misread(exported / SOURCE / CONFIG, relative_attention_max_distance=12):
        assert list(differing(exported, "int8")) == ["logits"]
