"""Classification of snippets: batches, starts, figures, trainings of seconds, the trained model."""

import json
import math
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from tests.modeling.stdlib_of_packages import MASKED, SCRATCH, STARTED, write_stdlib
from tests.modeling.tiny_models import assert_same_logits
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification

from ortolan.modeling import CheckpointError, ConfigError, Encoder, load
from ortolan.modeling.config import ClassifierHead
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.baselines import tfidf_guesses
from ortolan.modeling.training.corpora.snippets import PACKAGES, Snippet, read_snippets
from ortolan.modeling.training.recipe import SnippetsData, read_recipe
from ortolan.modeling.training.tasks.bert import MASK_ID, PAD_ID, SPECIAL
from ortolan.modeling.training.tasks.classification import (
    ClassificationTask,
    accuracies,
    encode_texts,
    padded,
)
from ortolan.modeling.training.trainer import train

MODEL = Path(__file__).parents[2] / "models" / "snippets"


@pytest.fixture
def stdlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = write_stdlib(tmp_path / "stdlib")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(root) if name == "stdlib" else "")
    return root


def write_recipe(folder: Path, text: str, old: str = "", new: str = "") -> Path:
    """A recipe, with one change."""
    assert old in text
    folder.mkdir(exist_ok=True)
    path = folder / "recipe.toml"
    path.write_text(text.replace(old, new) if old else text)
    return path


def task_of(path: Path) -> ClassificationTask:
    recipe = read_recipe(path)
    assert isinstance(recipe.data, SnippetsData)
    return ClassificationTask(recipe, recipe.data, path.parent)


# --- figures ------------------------------------------------------------------------------------


def snippets(labels: list[int]) -> list[Snippet]:
    return [Snippet(text="x", label=label, file=f"{label}") for label in labels]


def test_accuracy_counts_snippets_and_its_mean_counts_packages() -> None:
    found = accuracies(snippets([0, 0, 0, 1]), [0, 0, 0, 0])
    assert found == {"held_out_accuracy": 0.75, "held_out_accuracy_by_package": 0.5}


def test_the_baseline_tells_texts_apart_by_their_words() -> None:
    words = [["tree", "leaf"], ["sea", "wave"], ["sun", "moon"]]
    train_on = [
        Snippet(text=f"{word} = {pair[0]}(x)", label=label, file=f"{label}{number}")
        for label, pair in enumerate(words)
        for number in range(6)
        for word in pair
    ]
    held_out = [Snippet(text=f"y({pair[1]})", label=0, file="f") for pair in words]
    assert tfidf_guesses(train_on, held_out).tolist() == [0, 1, 2]


def test_rows_are_padded_on_the_right() -> None:
    ids, lengths = padded([[5, 6], [7, 8, 9]], 4)
    assert ids.tolist() == [[5, 6, PAD_ID, PAD_ID], [7, 8, 9, PAD_ID]]
    assert lengths.tolist() == [2, 3]


# --- training -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("stdlib")
def test_a_classifier_goes_on_from_what_was_pre_trained(tmp_path: Path) -> None:
    pretrained = train(write_recipe(tmp_path, MASKED), tmp_path / "pretrained")
    task = task_of(write_recipe(tmp_path, STARTED))
    body = load(pretrained, Encoder).state_dict()
    own = task.module.state_dict()
    same = {name for name in body if not name.startswith("head.")}
    assert len(same) > 15
    assert all(torch.equal(body[name], own[name]) for name in same)
    assert task.tokenizer.to_str() == Tokenizer.from_file(f"{pretrained}/tokenizer.json").to_str()

    folder = train(tmp_path / "recipe.toml", tmp_path / "out")
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "loss.png",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    }
    figures = json.loads((folder / "training.json").read_text())
    # A guess is right one time in twenty.
    assert figures["held_out_accuracy"] > 0.3
    assert figures["tfidf_held_out_accuracy"] > 0.3
    assert figures["start"] == "pretrained"
    assert figures["held_out_files"] == 20
    assert_like_transformers(folder, [s.text for s in task.snippets.held_out[::8]], window=48)


def test_a_classifier_from_random_weights_learns(stdlib: Path, tmp_path: Path) -> None:
    assert stdlib.is_dir()
    task = task_of(write_recipe(tmp_path, SCRATCH))
    batches = task.batches()
    optimizer = torch.optim.AdamW(task.module.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss = task.loss(next(batches))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(math.log(20), rel=0.2)
    assert sum(losses[-10:]) / 10 < 0.8 * losses[0]


@pytest.mark.usefixtures("stdlib")
def test_batches_are_the_same_for_the_same_seed_and_hide_some_tokens(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, SCRATCH, 'exclude = ["vend', 'hidden = 0.25\nexclude = ["vend')
    task = task_of(recipe)
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


@pytest.mark.usefixtures("stdlib")
@pytest.mark.parametrize(
    ("text", "old", "new", "error", "message"),
    [
        (STARTED, "", "", CheckpointError, "expected a checkpoint with tokenizer.json in"),
        (SCRATCH, "[tokenizer]\nvocab_size = 400\n", "", RecipeError, "got neither"),
        (SCRATCH, "[data]", '[data]\nstart = "x"', RecipeError, "got both"),
        (SCRATCH, "sequence_length = 48", "sequence_length = 65", RecipeError, "64, got 65"),
        (SCRATCH, "sequence_length = 48\n", "", RecipeError, "sequence_length: expected a value"),
        (SCRATCH, '"bert"', '"bert"\narchitectures = ["BertModel"]', ConfigError, "20 labels"),
        (SCRATCH, '"bert"', '"bert"\nid2label = { 0 = "a" }', ConfigError, "20 labels"),
    ],
)
def test_a_recipe_of_a_classifier_that_cannot_be_followed_is_an_error_before_any_work(
    tmp_path: Path, text: str, old: str, new: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        train(write_recipe(tmp_path, text, old, new), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("stdlib")
def test_a_start_of_another_shape_is_an_error(tmp_path: Path) -> None:
    short = MASKED.replace("steps = 150", "steps = 11")
    train(write_recipe(tmp_path, short), tmp_path / "pretrained")
    recipe = write_recipe(tmp_path, STARTED, "intermediate_size = 48", "intermediate_size = 64")
    with pytest.raises(RecipeError, match=r"expected the recipe's model up to its head"):
        train(recipe, tmp_path / "out")


# --- the trained model --------------------------------------------------------------------------


def test_the_trained_model_names_packages_as_its_card_says() -> None:
    figures = json.loads((MODEL / "training.json").read_text())
    card = (MODEL / "README.md").read_text()
    assert f"{figures['held_out_accuracy']:.3f}" in card
    assert f"{figures['tfidf_held_out_accuracy']:.3f}" in card
    data = read_recipe(MODEL / "recipe.toml").data
    assert isinstance(data, SnippetsData)
    held_out = read_snippets(data).held_out
    if sys.version_info[:2] != (3, 11):
        pytest.skip("another standard library: some of these files were learned from")
    part = held_out[::5]
    module = load(MODEL, Encoder)
    assert isinstance(module.config.head, ClassifierHead)
    assert module.config.head.labels == PACKAGES
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    with torch.inference_mode():
        ids, lengths = padded(encode_texts(tokenizer, [s.text for s in part], 160), 160)
        guesses = module(ids, lengths).argmax(-1).tolist()
    accuracy = accuracies(part, guesses)["held_out_accuracy"]
    # Three standard deviations of a fifth of them.
    deviation = math.sqrt(0.25 / len(part))
    assert accuracy == pytest.approx(figures["held_out_accuracy"], abs=3 * deviation)


def test_the_trained_model_is_the_same_in_transformers() -> None:
    texts = ["import os\nprint(os.getcwd())\n", "loop = get_event_loop()\nawait future\n" * 4]
    assert_like_transformers(MODEL, texts, window=160)


def assert_like_transformers(folder: Path, texts: list[str], *, window: int) -> None:
    """The same logits from transformers, which reads the folder by itself."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = encode_texts(tokenizer, texts, window)
    ids, lengths = padded(rows, max(map(len, rows)))
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    reference = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = reference(ids, attention_mask=mask).logits
        assert_same_logits(load(folder, Encoder)(ids, lengths), logits)
    assert list(reference.config.id2label.values()) == list(PACKAGES)
