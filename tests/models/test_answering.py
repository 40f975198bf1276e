"""models/copying/answering.py: batches, loss, accuracy, and a training of seconds."""

import json
from itertools import islice
from pathlib import Path

import pytest
import torch
from tests.modeling.training.recipes import ANSWERING, task_of, write_recipe
from tokenizers import Tokenizer

from copying.answering import (
    END,
    IGNORED,
    padded,
    right_share,
)
from ortolan.modeling import ConfigError, RecurrentModel, TransformerModel, load
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.trainer import train

MODEL = 'model_type = "recurrent"\ncell = "gru"\nhidden_size = 24'

OTHERS = {
    "llama": """model_type = "llama"
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 2""",
    "attentive": MODEL + "\nattention_size = 8",
    "machine": MODEL + "\nmemory_slots = 8\nmemory_width = 6",
}


def test_tokens_are_words_and_a_text_ends_with_the_end_token(tmp_path: Path) -> None:
    task = task_of(tmp_path, ANSWERING)
    assert task.tokenizer.get_vocab() == {END: 0, "a": 1, "b": 2, "c": 3, "|": 4}
    assert task.module.config.eos_token_ids == (0,)
    (prompt, answer), (ids, length) = task.data.train[0], task.train[0]
    assert task.tokenizer.decode(ids) == f"{prompt} {answer}"
    assert ids[-1] == 0
    assert ids[length - 1] == 4


def test_the_loss_is_of_answers_only() -> None:
    inputs, labels = padded([([5, 6, 4, 7, 8, 0], 3), ([6, 4, 7, 0], 2)])
    assert inputs.tolist() == [[5, 6, 4, 7, 8], [6, 4, 7, 0, 0]]
    no = IGNORED
    assert labels.tolist() == [[no, no, 7, 8, 0], [no, 7, 0, no, no]]


def test_batches_hold_texts_of_similar_length_and_are_reproducible(tmp_path: Path) -> None:
    task = task_of(tmp_path, ANSWERING)
    batches = list(islice(task.batches(), 40))
    widths = {inputs.shape[1] for inputs, _ in batches}
    assert len(widths) > 3
    for inputs, labels in batches:
        short = ((labels != IGNORED).cumsum(1).argmax(1) + 1).min()
        assert inputs.shape[1] - short <= 2
    again = islice(task.batches(), 40)
    assert all(torch.equal(x[0], y[0]) for x, y in zip(batches, again, strict=True))


def test_a_curriculum_begins_with_the_shortest_texts(tmp_path: Path) -> None:
    task = task_of(tmp_path, ANSWERING, 'Task"', 'Task"\ncurriculum = 0.5')
    steps = task.recipe.steps
    widths = [inputs.shape[1] for inputs, _ in islice(task.batches(), steps)]
    longest = max(len(ids) for ids, _ in task.train) - 1
    assert max(widths[:5]) < longest / 2
    assert max(widths[steps // 2 :]) == longest


class _Oracle(TransformerModel):
    """Predicts the next token of the texts in `known`, and of other texts a wrong one."""

    def __init__(self, known: list[list[int]]) -> None:
        super().__init__()
        self.known = known

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*inputs.shape, 9)
        for row, ids in enumerate(inputs.tolist()):
            for text in self.known:
                for place in range(len(ids)):
                    if ids[: place + 1] == text[: place + 1] and place + 1 < len(text):
                        logits[row, place, text[place + 1]] = 1.0
        return logits


def test_an_answer_is_right_if_every_token_is() -> None:
    right, wrong_end, wrong = [5, 4, 5, 0], [6, 4, 6, 0], [7, 4, 7, 0]
    module = _Oracle([right, [6, 4, 6, 6]])
    assert right_share(module, [(right, 2)]) == 1
    assert right_share(module, [(wrong_end, 2)]) == 0
    assert right_share(module, [(right, 2), (wrong_end, 2), (wrong, 2), (right, 2)]) == 0.5


def test_texts_longer_than_the_context_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"max_position_embeddings .*18"):
        task_of(tmp_path, ANSWERING, "max_position_embeddings = 32", "max_position_embeddings = 12")


def test_a_model_that_cannot_answer_is_an_error(tmp_path: Path) -> None:
    vit = 'model_type = "vit"\nhidden_size = 32'
    with pytest.raises((RecipeError, ConfigError)):
        task_of(tmp_path, ANSWERING, MODEL, vit)


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_learn_from_the_same_data(name: str, tmp_path: Path) -> None:
    task = task_of(tmp_path, ANSWERING, MODEL, OTHERS[name])
    optimizer = torch.optim.Adam(task.module.parameters(), lr=1e-2)
    losses = []
    for batch in islice(task.batches(), 25):
        loss = task.loss(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])


def test_a_training_writes_a_checkpoint_a_tokenizer_and_figures(tmp_path: Path) -> None:
    out = train(write_recipe(tmp_path, ANSWERING), tmp_path / "out")
    figures = json.loads((out / "training.json").read_text())
    assert figures["held_out_short_accuracy"] > 0.5
    assert figures["held_out_long_accuracy"] < figures["held_out_short_accuracy"]
    assert figures["longest_train_text"] == 10
    assert (out / "loss.png").stat().st_size > 1000
    lines = (out / "calibration.txt").read_text().splitlines()
    assert len(lines) == 320
    module = load(out, RecurrentModel)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    ids = tokenizer.encode("b a |").ids
    for _ in range(3):
        with torch.no_grad():
            ids.append(int(module(torch.tensor([ids]))[0, -1].argmax()))
    assert tokenizer.decode(ids[3:]) == "b a"
    assert ids[-1] == 0
