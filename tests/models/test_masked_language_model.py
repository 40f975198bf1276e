"""models/snippets/masked_language_model.py: masking, batches, and a training of seconds."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.modeling.tiny_models import assert_same_logits
from tests.modeling.training.recipes import MASKED, task_of, write_recipe
from tokenizers import Tokenizer
from transformers import AutoModelForMaskedLM, AutoTokenizer

from ortolan.modeling import EncoderModel, load
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.recipe import TokenizerRecipe
from ortolan.modeling.training.tasks.bert import END_ID, MASK_ID, SPECIAL, START_ID, bert_tokenizer
from ortolan.modeling.training.trainer import train
from snippets.masked_language_model import (
    growing,
    hide,
    stream,
    windows,
)

VOCABULARY = 1000

TEXT = "def add(first, second):\n    return first + second\n"


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- masking ------------------------------------------------------------------------------------


def texts(rows: int, length: int) -> torch.Tensor:
    ids = torch.randint(len(SPECIAL), VOCABULARY, (rows, length), generator=seeded(1))
    ids[:, 0], ids[:, -1], ids[:, length // 2] = START_ID, END_ID, END_ID
    return ids


def test_hidden_tokens_are_masked_replaced_or_left_by_the_shares_of_bert() -> None:
    ids = texts(400, 100)
    hidden = hide(ids, part=0.15, vocab_size=VOCABULARY, generator=seeded())
    assert hidden.positions.shape == hidden.targets.shape == (400, 15)
    inputs = hidden.ids.gather(1, hidden.positions)
    masked, unchanged = inputs == MASK_ID, inputs == hidden.targets
    # 6000 tokens: three standard deviations are 1.6 and 1.2 percent.
    assert float(masked.float().mean()) == pytest.approx(0.8, abs=0.016)
    assert float(unchanged.float().mean()) == pytest.approx(0.1, abs=0.012)
    others = inputs[~masked & ~unchanged]
    assert others.min() >= len(SPECIAL)
    assert others.float().mean() == pytest.approx(VOCABULARY / 2, rel=0.15)


def test_positions_are_distinct_and_uniform() -> None:
    positions = hide(texts(3000, 20), part=0.2, vocab_size=9, generator=seeded()).positions
    assert all(len(set(row)) == 4 for row in positions.tolist())
    counts = positions.flatten().bincount(minlength=20)
    # The first, middle and last tokens are special.
    assert counts[[0, 10, 19]].tolist() == [0, 0, 0]
    assert counts[counts > 0] / 3000 == pytest.approx(4 / 17, abs=0.03)


def test_other_tokens_stay_and_targets_are_the_hidden_tokens() -> None:
    ids = texts(50, 40)
    hidden = hide(ids, part=0.15, vocab_size=VOCABULARY, generator=seeded())
    torch.testing.assert_close(hidden.ids.scatter(1, hidden.positions, hidden.targets), ids)
    assert not torch.equal(hidden.ids, ids)


def test_windows_have_special_tokens_at_both_ends() -> None:
    tokens = torch.arange(100, 200, dtype=torch.int32)
    result = windows(tokens, torch.tensor([0, 92]), 10)
    assert result.tolist() == [
        [START_ID, *range(100, 108), END_ID],
        [START_ID, *range(192, 200), END_ID],
    ]


def test_windows_grow_by_doubling() -> None:
    assert growing(40, 160) == [40, 80, 160]
    assert growing(48, 48) == [48]


@pytest.mark.parametrize(("shortest", "longest"), [(50, 160), (4, 64), (320, 160), (41, 160)])
def test_windows_that_do_not_double_are_an_error(shortest: int, longest: int) -> None:
    with pytest.raises(RecipeError, match=f"must be {longest} halved .* {shortest}"):
        growing(shortest, longest)


def test_batches_of_growing_windows_have_the_same_number_of_tokens(tmp_path: Path) -> None:
    batches = task_of(tmp_path, MASKED, 'Task"', 'Task"\nshortest = 12').batches()
    shapes = [tuple(next(batches)[0].shape) for _ in range(170)]
    expected = [(64, 12)] * 50 + [(32, 24)] * 50 + [(16, 48)] * 70
    assert shapes == expected


def test_the_tokenizer_adds_special_tokens_and_restores_the_text() -> None:
    tokenizer = bert_tokenizer(TokenizerRecipe(vocab_size=300), [TEXT * 4])
    encoding = tokenizer.encode(TEXT)
    assert (encoding.ids[0], encoding.ids[-1]) == (START_ID, END_ID)
    assert tokenizer.decode(encoding.ids) == TEXT
    assert [tokenizer.id_to_token(i) for i in range(5)] == list(SPECIAL)
    assert stream(tokenizer, [TEXT, TEXT]).tolist() == 2 * encoding.ids[1:]


# --- training -----------------------------------------------------------------------------------


def test_a_training_writes_a_checkpoint_that_learned(tmp_path: Path) -> None:
    folder = train(write_recipe(tmp_path, MASKED), tmp_path / "out")
    figures = json.loads((folder / "training.json").read_text())
    assert figures["tokens_seen"] == 150 * 16 * 48
    assert figures["held_out_masked_accuracy"] > figures["most_frequent_token_accuracy"] > 0
    # An untrained model assigns the same probability to each of 400 tokens.
    assert figures["held_out_masked_loss"] < 0.65 * math.log(400)

    module = load(folder, EncoderModel)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == own.encode(TEXT).ids
    assert tokenizer.mask_token_id == MASK_ID
    reference = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        assert_same_logits(module(ids), reference(ids).logits)


def test_the_loss_is_the_cross_entropy_of_the_hidden_tokens(tmp_path: Path) -> None:
    task = task_of(tmp_path, MASKED)
    ids, positions, targets = batch = next(task.batches())
    logits = task.module(ids)
    rows = torch.arange(len(ids))[:, None]
    expected = F.cross_entropy(logits[rows, positions].flatten(0, 1), targets.flatten())
    torch.testing.assert_close(task.loss(batch), expected)
    again = next(task_of(tmp_path, MASKED).batches())
    assert all(torch.equal(one, other) for one, other in zip(batch, again, strict=True))
