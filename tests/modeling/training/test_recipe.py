"""Reading a recipe, and its errors."""

from pathlib import Path

import pytest
from tests.modeling.training.recipes import (
    IMAGE_CLASSIFICATION,
    LANGUAGE_MODEL,
    MASKED,
    SCRATCH,
    STARTED,
    TRANSLATION,
    write_recipe,
)

from ortolan.modeling import CheckpointError, ConfigError
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.recipe import read_recipe
from ortolan.modeling.training.trainer import train


def test_a_recipe_is_read(tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, LANGUAGE_MODEL))
    assert recipe.task == {"name": "language-model"}
    assert recipe.model["hidden_size"] == 32
    assert recipe.data == {"source": "data.py:read", "held_out": 3}
    assert recipe.training.learning_rate == 0.01
    assert recipe.training.precision == "fp32"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 24", "steps = 24\nstep = 3", "step`"),
        ("steps = 24\n", "", "steps`"),
        ("steps = 24", 'steps = "24"', "`int`, got `str`"),
        ("steps = 24", "steps = 0", "`int` >= 1"),
        ("batch_size = 4", "batch_size = -1", "`int` >= 1"),
        ("evaluate_every = 12", "evaluate_every = 0", "`int` >= 1"),
        ("learning_rate = 1e-2", "learning_rate = 0.0", "`float` > 0"),
        ("warmup_steps = 4", "warmup_steps = -1", "`int` >= 0"),
        ("steps = 24", 'steps = 24\nprecision = "fp8"', "fp8"),
        ("[data]", "[data", "line"),
        ("[tokenizer]", "[tokenizers]", "tokenizer"),
    ],
)
def test_an_invalid_recipe_is_an_error(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(RecipeError, match=rf"recipe\.toml: .*{message}"):
        read_recipe(write_recipe(tmp_path, LANGUAGE_MODEL, old, new))


NAMED = '"language-model"'

SEVERAL_LABELS = 'num_channels = 3\nid2label = { 0 = "a", 1 = "b", 2 = "c" }'

CONTRADICTIONS: dict[str, list[tuple[str, str, type[Exception], str]]] = {
    LANGUAGE_MODEL: [
        ("warmup_steps = 4", "warmup_steps = 24", RecipeError, "warmup_steps .*24 and 24"),
        ("sequence_length = 32", "sequence_length = 65", RecipeError, "64.* 65"),
        ("sequence_length = 32", "", RecipeError, r"training\.sequence_length: .*language-model"),
        ("[tokenizer]\nvocab_size = 300", "", RecipeError, "tokenizer: .*language-model"),
        ("steps = 24", "steps = 24\naverage_last = 25", RecipeError, "average_last .*25 and 24"),
        ("held_out = 3", "held_out = 0", RecipeError, r"\b0 to measure on"),
        ("held_out = 3", "held_out = 3\ntrain = 0", RecipeError, r"sequence_length .*\d+ tokens"),
        (NAMED, '"rhyme"', RecipeError, "task.name .*rhyme"),
        (NAMED, "3", RecipeError, "task.name .*3"),
        (NAMED, f"{NAMED}\nhidden = 0.2", RecipeError, "task.*hidden"),
        (NAMED, f'{NAMED}\nsource = "a.py:b"', RecipeError, "task.* either"),
        (f"name = {NAMED}", "", RecipeError, "task.* either"),
        (f"name = {NAMED}", 'source = "task.py:Mine"', RecipeError, r"task\.source: .*task\.py"),
        (f"name = {NAMED}", 'source = "data.py:Mine"', RecipeError, r"task\.source: .*Mine"),
        ('model_type = "llama"', 'model_type = "zamba2"', ConfigError, "zamba2"),
        ("hidden_size = 32", "hidden_sizes = 32", ConfigError, "hidden_size"),
        ("num_key_value_heads = 2", "num_key_value_heads = 3", ConfigError, "num_kv_heads"),
    ],
    STARTED: [("", "", CheckpointError, "tokenizer.json")],
    SCRATCH: [
        ("[tokenizer]\nvocab_size = 400\n", "", RecipeError, "neither"),
        ('fication"', 'fication"\nstart = "x"', RecipeError, "both"),
        ("sequence_length = 48", "sequence_length = 65", RecipeError, "64.* 65"),
        ("sequence_length = 48\n", "", RecipeError, "sequence_length"),
        ('"bert"', '"bert"\narchitectures = ["BertModel"]', ConfigError, "20 labels"),
        ('"bert"', '"bert"\nid2label = { 0 = "a" }', ConfigError, "20 labels"),
    ],
    TRANSLATION: [
        ('[tokenizer]\nvocab_size = 400\nend_of_text = "</s>"', "", RecipeError, "translation"),
        ('model_type = "marian"', 'model_type = "llama"', ConfigError, "hidden_size"),
        ("embeddings = 96", "embeddings = 20", RecipeError, "max_position_embeddings .*20"),
    ],
    MASKED: [
        ("sequence_length = 48", "sequence_length = 65", RecipeError, "64.* 65"),
        ("sequence_length = 48", "sequence_length = 4", RecipeError, "8 to .*4"),
        ("sequence_length = 48\n", "", RecipeError, "sequence_length"),
        ("[tokenizer]\nvocab_size = 400\n", "", RecipeError, "tokenizer"),
        ('Task"', 'Task"\nstart = "x"', RecipeError, "`start`"),
        ('Task"', 'Task"\nshortest = 10', RecipeError, "task.shortest must be 48"),
        ('"bert"', '"bert"\narchitectures = ["BertModel"]', ConfigError, "NoneType"),
        ('"bert"', '"llama"', ConfigError, "expected|missing|unknown|must"),
    ],
    IMAGE_CLASSIFICATION: [
        ("num_channels = 3", SEVERAL_LABELS, ConfigError, "2 labels"),
        ("num_channels = 3", "num_channels = 1", RecipeError, r"\(8, 8, 3\)"),
    ],
}
"""By recipe: a change, and the error."""


@pytest.mark.parametrize(
    ("recipe", "old", "new", "error", "message"),
    [(recipe, *row) for recipe, rows in CONTRADICTIONS.items() for row in rows],
)
def test_a_contradiction_is_an_error_before_any_work(
    recipe: str, old: str, new: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as caught:
        train(write_recipe(tmp_path, recipe, old, new), tmp_path / "out")
    assert error is not RecipeError or "recipe.toml: " in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_recipe_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "recipe.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecipeError, match=r"recipe\.toml"):
        read_recipe(path)
