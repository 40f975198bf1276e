"""Translation: batches, loss, greedy decoding, and a training of seconds."""

import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.tiny_models import assert_same_logits
from tests.modeling.training.recipes import TRANSLATION, task_of, write_recipe
from tokenizers import Tokenizer
from transformers import AutoTokenizer, MarianMTModel

from ortolan.modeling import EncoderDecoderModel, load
from ortolan.modeling.training.decoding import greedy
from ortolan.modeling.training.tasks.translation import TranslationTask
from ortolan.modeling.training.trainer import train


def reference_of(folder: Path) -> MarianMTModel:
    model = MarianMTModel.from_pretrained(folder, dtype=torch.float32)
    model.eval()  # type: ignore[no-untyped-call]
    return model


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TranslationTask:
    task: TranslationTask = task_of(tmp_path_factory.mktemp("task"), TRANSLATION)
    return task


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    return train(write_recipe(folder, TRANSLATION), folder / "out")


# --- tokens and batches --------------------------------------------------------------------------


def test_the_tokenizer_restores_texts_and_adds_an_end_token(task: TranslationTask) -> None:
    tokenizer = task.tokenizer
    for text in (*task.data.train[0], "naïve 漢字, l'été: 12.50 €!", "quatre-vingt-dix-neuf"):
        ids = tokenizer.encode(text).ids
        assert ids[-1] == task.end
        assert task.end not in ids[:-1]
        assert tokenizer.decode(ids) == text


def test_padding_is_the_last_token_of_the_vocabulary(task: TranslationTask) -> None:
    config = task.module.config
    assert task.pad == task.tokenizer.get_vocab_size() - 1 == config.decoder.vocab_size - 1
    assert config.decoder_start_token_id == config.pad_token_id == task.pad
    assert config.eos_token_ids == (task.end,)


def test_inputs_of_the_decoder_are_the_shifted_labels(task: TranslationTask) -> None:
    target_of = dict(zip(map(tuple, task.sources), task.targets, strict=True))
    padded_rows = 0
    for sources, inputs, lengths, labels in islice(task.batches(), 5):
        assert sources.shape[0] == 8
        for row in range(8):
            length = int(lengths[row])
            target = target_of[tuple(sources[row, :length].tolist())]
            assert (sources[row, length:] == task.pad).all()
            assert labels[row, : len(target)].tolist() == target
            assert (labels[row, len(target) :] == -100).all()
            assert inputs[row, : len(target)].tolist() == [task.pad, *target[:-1]]
            padded_rows += length < sources.shape[1]
    assert padded_rows


def test_an_epoch_has_every_pair_once(task: TranslationTask) -> None:
    rows = [tuple(row.tolist()) for batch in islice(task.batches(), 50) for row in batch[3]]
    targets = sorted(tuple(i for i in row if i >= 0) for row in rows)
    assert targets == sorted(map(tuple, task.targets))


def test_the_loss_is_the_smoothed_cross_entropy_of_valid_tokens(task: TranslationTask) -> None:
    sources, inputs, lengths, labels = next(task.batches())
    total, count = 0.0, 0
    vocab = task.module.config.decoder.vocab_size
    for row in range(len(labels)):
        source = sources[row : row + 1, : int(lengths[row])]  # without padding
        length = int((labels[row] >= 0).sum())
        logits = task.module(source, inputs[row : row + 1, :length])[0].detach().double()
        for position, token in enumerate(labels[row, :length].tolist()):
            expected = torch.full((vocab,), 0.1 / vocab, dtype=torch.double)
            expected[token] += 0.9
            total -= float((expected * logits[position].log_softmax(-1)).sum())
            count += 1
    batch = (sources, inputs, lengths, labels)
    assert float(task.loss(batch).detach()) == pytest.approx(total / count, rel=1e-5)


def test_the_embedding_of_padding_stays_zero(trained: Path, task: TranslationTask) -> None:
    module = load(trained, EncoderDecoderModel)
    assert module.shared is not None
    assert not module.shared.weight[task.pad].any()
    assert module.shared.weight[:-1].any(dim=1).all()


# --- greedy decoding and its measure -------------------------------------------------------------


def test_greedy_decoding_equals_transformers(trained: Path, task: TranslationTask) -> None:
    module = load(trained, EncoderDecoderModel)
    reference: Any = reference_of(trained)
    texts = [source for source, _ in task.data.held_out["numbers"]]
    sources = [encoding.ids for encoding in task.tokenizer.encode_batch(texts)]
    mine = greedy(module, sources, suppressed=[task.pad], max_tokens=20)
    assert len(set(map(tuple, mine))) > 1
    for source, ids in zip(sources, mine, strict=True):
        theirs = reference.generate(
            torch.tensor([source]), attention_mask=torch.ones(1, len(source), dtype=torch.long),
            max_new_tokens=20, max_length=None, forced_eos_token_id=None, num_beams=1,
        )[0, 1:].tolist()  # fmt: skip
        assert ids == [token for token in theirs if token not in (task.end, task.pad)]


def test_greedy_decoding_stops_at_its_limit(task: TranslationTask) -> None:
    (ids,) = greedy(task.module, [task.sources[0]], suppressed=[task.end], max_tokens=7)
    assert len(ids) == 7
    assert task.end not in ids


# --- a training of seconds -----------------------------------------------------------------------


def test_a_training_writes_a_checkpoint_that_transformers_loads(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} == {
        "calibration.tsv", "config.json", "generation_config.json", "loss.png", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json", "training.json",
    }  # fmt: skip
    module = load(trained, EncoderDecoderModel)
    reference: Any = reference_of(trained)
    tokenizer = AutoTokenizer.from_pretrained(trained)
    mine = Tokenizer.from_file(str(trained / "tokenizer.json"))
    text = "I live in Paris."
    assert tokenizer(text).input_ids == mine.encode(text).ids
    ids, mask = torch.tensor([mine.encode(text).ids]), None
    target = torch.tensor([[module.config.decoder_start_token_id, 5, 7, 11]])
    with torch.inference_mode():
        expected = reference(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits
        assert_same_logits(module(ids, target), expected)
    config = reference.generation_config
    assert config.bad_words_ids == [[tokenizer.pad_token_id]]
    assert config.eos_token_id == config.forced_eos_token_id == tokenizer.eos_token_id
    assert config.decoder_start_token_id == tokenizer.pad_token_id


def test_a_training_learns_and_writes_figures(trained: Path) -> None:
    figures = json.loads((trained / "training.json").read_text())
    module = load(trained, EncoderDecoderModel)
    assert figures["parameters"] == sum(p.numel() for p in module.parameters())
    assert figures["train_pairs"] == 400
    assert figures["held_out_pairs"] == 12
    assert figures["epochs"] == pytest.approx(100 * 8 / 400)
    assert figures["train_loss"] < 0.9 * math.log(400)
    assert figures["measured"][-1][1] == figures["held_out_numbers_equal"]
