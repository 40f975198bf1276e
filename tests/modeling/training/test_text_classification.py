"""Text classification: batches, pre-trained starts, figures, and trainings of seconds."""

import json
from pathlib import Path

import pytest
import torch
from tests.modeling.classifiers import assert_like_transformers
from tests.modeling.training.recipes import LABELS, MASKED, SCRATCH, STARTED, task_of, write_recipe
from tokenizers import Tokenizer

from ortolan.modeling import EncoderModel, load
from ortolan.modeling.config import ClassifierHead
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.tasks.bert import MASK_ID, PAD_ID, SPECIAL
from ortolan.modeling.training.tasks.text_classification import accuracies
from ortolan.modeling.training.tokenizer import padded
from ortolan.modeling.training.trainer import train

# --- figures ------------------------------------------------------------------------------------


def test_balanced_accuracy_is_the_mean_over_labels() -> None:
    result = accuracies([0, 0, 0, 1], [0, 0, 0, 0])
    assert result == {"held_out_accuracy": 0.75, "held_out_balanced_accuracy": 0.5}


def test_rows_are_padded_on_the_right() -> None:
    ids, lengths = padded([[5, 6], [7, 8, 9]], PAD_ID, 4)
    assert ids.tolist() == [[5, 6, PAD_ID, PAD_ID], [7, 8, 9, PAD_ID]]
    assert lengths.tolist() == [2, 3]


# --- training -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_classifier_starts_from_a_pretrained_model(tmp_path: Path) -> None:
    pretrained = train(write_recipe(tmp_path, MASKED), tmp_path / "pretrained")
    task = task_of(tmp_path, STARTED)
    body = load(pretrained, EncoderModel).state_dict()
    own = task.module.state_dict()
    same = {name for name in body if not name.startswith("head.")}
    assert len(same) > 15
    assert all(torch.equal(body[name], own[name]) for name in same)
    assert task.tokenizer.to_str() == Tokenizer.from_file(f"{pretrained}/tokenizer.json").to_str()

    folder = train(tmp_path / "recipe.toml", tmp_path / "out")
    assert {path.name for path in folder.iterdir()} == {
        "calibration.txt",
        "config.json",
        "loss.png",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    }
    figures = json.loads((folder / "training.json").read_text())
    # A random guess is right one time in twenty.
    assert figures["held_out_accuracy"] > 0.3
    assert figures["start"] == "pretrained"
    assert figures["held_out_texts"] == 60
    module = load(folder, EncoderModel)
    assert isinstance(module.config.head, ClassifierHead)
    assert module.config.head.labels == LABELS
    assert_like_transformers(folder, [text for text, _ in task.data.held_out[::8]], window=48)


def test_batches_are_reproducible_and_hide_some_tokens(tmp_path: Path) -> None:
    task = task_of(tmp_path, SCRATCH, '-classification"', '-classification"\nhidden = 0.25')
    batches = task.batches()
    same = task.batches()
    hidden = whole = 0
    for _ in range(10):
        ids, lengths, labels = next(batches)
        for one, other in zip((ids, lengths, labels), next(same), strict=True):
            assert torch.equal(one, other)
        inside = torch.arange(48) < lengths[:, None]
        assert torch.equal(inside, ids != PAD_ID)
        words = inside & ((ids == MASK_ID) | (ids >= len(SPECIAL)))
        hidden += int((ids == MASK_ID).sum())
        whole += int(words.sum())
        assert labels.min() >= 0
        assert labels.max() < 20
    assert hidden / whole == pytest.approx(0.25, abs=0.03)


def test_a_pretrained_model_of_another_shape_is_an_error(tmp_path: Path) -> None:
    short = write_recipe(tmp_path, MASKED, "steps = 150", "steps = 11")
    train(short, tmp_path / "pretrained")
    recipe = write_recipe(tmp_path, STARTED, "intermediate_size = 48", "intermediate_size = 64")
    with pytest.raises(RecipeError, match="pretrained"):
        train(recipe, tmp_path / "out")


def test_the_tokenizer_learns_unlabelled_texts_if_there_are_any(tmp_path: Path) -> None:
    read = ':read_labelled"'
    one, other = (
        task_of(tmp_path / whole, SCRATCH, read, f"{read}\nwhole = {whole}")
        for whole in ("true", "false")
    )
    assert "ĠRETURN" in one.tokenizer.get_vocab()
    assert "Ġreturn" in other.tokenizer.get_vocab()
    assert "ĠRETURN" not in other.tokenizer.get_vocab()
