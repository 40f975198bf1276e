"""Reading a recipe, and its errors."""

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.modeling.training.recipes import (
    IMAGE_CLASSIFICATION,
    LANGUAGE_MODEL,
    MASKED,
    MODELS,
    SCRATCH,
    STARTED,
    TRANSLATION,
    write_recipe,
)
from tests.refusals import refusal

from ortolan.modeling.families import FAMILIES
from ortolan.modeling.training.recipe import read_recipe
from ortolan.modeling.training.trainer import train


def test_a_recipe_is_read(tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, LANGUAGE_MODEL))
    assert recipe.task == {"name": "language-model"}
    assert recipe.model["hidden_size"] == 32
    assert recipe.data == {"source": "data.py:read", "held_out": 3}
    assert recipe.training.learning_rate == 0.01
    assert recipe.training.precision == "fp32"


NAMED = '"language-model"'

SEVERAL_LABELS = 'num_channels = 3\nid2label = { 0 = "a", 1 = "b", 2 = "c" }'

STEPS, WARMUP, LENGTH = "steps = 24", "warmup_steps = 4", "sequence_length = 32"

TASK = f"name = {NAMED}"

REFUSED: dict[str, list[tuple[str, str]]] = {
    LANGUAGE_MODEL: [
        *((STEPS, f"{STEPS}\n{more}") for more in ("step = 3", 'precision = "fp8"')),
        *((f"{STEPS}\n", new) for new in ("", 'steps = "24"\n', "steps = 0\n")),
        ("batch_size = 4", "batch_size = -1"),
        ("evaluate_every = 12", "evaluate_every = 0"),
        ("learning_rate = 1e-2", "learning_rate = 0.0"),
        *((WARMUP, f"warmup_steps = {steps}") for steps in (-1, 24)),
        ("[data]", "[data"),
        ("[tokenizer]", "[tokenizers]"),
        *((LENGTH, new) for new in ("sequence_length = 65", "")),
        ("[tokenizer]\nvocab_size = 300", ""),
        (STEPS, f"{STEPS}\naverage_last = 25"),
        *(("held_out = 3", f"held_out = {new}") for new in ("0", "3\ntrain = 0")),
        *((NAMED, new) for new in ('"rhyme"', "3", f"{NAMED}\nhidden = 0.2")),
        (NAMED, f'{NAMED}\nsource = "a.py:b"'),
        *((TASK, new) for new in ("", 'source = "task.py:Mine"', 'source = "data.py:Mine"')),
        ('model_type = "llama"', 'model_type = "zamba2"'),
        ("hidden_size = 32", "hidden_sizes = 32"),
        ("num_key_value_heads = 2", "num_key_value_heads = 3"),
    ],
    STARTED: [("", "")],
    SCRATCH: [
        ("[tokenizer]\nvocab_size = 400\n", ""),
        ('fication"', 'fication"\nstart = "x"'),
        *(("sequence_length = 48\n", new) for new in ("sequence_length = 65\n", "")),
        *(
            ('"bert"', f'"bert"\n{more}')
            for more in ('architectures = ["BertModel"]', 'id2label = { 0 = "a" }')
        ),
    ],
    TRANSLATION: [
        ('[tokenizer]\nvocab_size = 400\nend_of_text = "</s>"', ""),
        ('model_type = "marian"', 'model_type = "llama"'),
        ("embeddings = 96", "embeddings = 20"),
    ],
    MASKED: [
        *(
            ("sequence_length = 48\n", new)
            for new in ("sequence_length = 65\n", "sequence_length = 4\n", "")
        ),
        ("[tokenizer]\nvocab_size = 400\n", ""),
        *(('Task"', f'Task"\n{more}') for more in ('start = "x"', "shortest = 10")),
        *(('"bert"', new) for new in ('"bert"\narchitectures = ["BertModel"]', '"llama"')),
    ],
    IMAGE_CLASSIFICATION: [
        *(("num_channels = 3", new) for new in (SEVERAL_LABELS, "num_channels = 1"))
    ],
}
"""Changes of each recipe."""

ROWS = [(recipe, old, new) for recipe, rows in REFUSED.items() for old, new in rows]

NAMES_OF = {
    LANGUAGE_MODEL: "language model",
    STARTED: "started",
    SCRATCH: "scratch",
    TRANSLATION: "translation",
    MASKED: "masked",
    IMAGE_CLASSIFICATION: "images",
}

NAMES = [f"{NAMES_OF[recipe]}: {old} -> {new}" for recipe, old, new in ROWS]


@pytest.mark.parametrize(("recipe", "old", "new"), ROWS, ids=NAMES)
def test_a_recipe_that_cannot_be_followed_is_refused_before_any_work(
    recipe: str, old: str, new: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    path = write_recipe(tmp_path, recipe, old, new)
    count = f"{len(FAMILIES)} families"
    assert refusal(lambda: train(path, tmp_path / "out"), tmp_path, MODELS, count) == snapshot
    assert not (tmp_path / "out").exists()


def test_an_unreadable_recipe_is_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    path = tmp_path / "recipe.toml"
    assert refusal(lambda: read_recipe(path), tmp_path) == snapshot
    path.write_bytes(b"\xff\xfe")
    assert refusal(lambda: read_recipe(path), tmp_path) == snapshot
