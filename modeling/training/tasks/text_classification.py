"""Classification of texts, from random weights or from a pre-trained encoder."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from ortolan.modeling.checkpoint.folder import load
from ortolan.modeling.errors import CheckpointError, RecipeError
from ortolan.modeling.models.transformer import EncoderModel
from ortolan.modeling.training.data import LabelledTexts, read_data
from ortolan.modeling.training.recipe import Recipe, TextClassification
from ortolan.modeling.training.tasks.bert import (
    MASK_ID,
    PAD_ID,
    SPECIAL,
    bert_tokenizer,
    initialise_bert,
    write_tokenizer,
)
from ortolan.modeling.training.tasks.labels import classifier_config
from ortolan.modeling.training.tasks.task import Batch, check_length


class TextClassificationTask:
    """An encoder that names the label of a text, measured by its accuracy."""

    module: EncoderModel

    def __init__(self, recipe: Recipe, task: TextClassification, folder: Path) -> None:
        self.recipe, self.task = recipe.training, task
        self.window = recipe.required(self.recipe.sequence_length, "training.sequence_length")
        start = None if task.start is None else folder / task.start
        if (start is None) is (recipe.tokenizer is None):
            raise RecipeError(
                "tokenizer: expected one to train, or task.start, whose tokenizer is taken, got "
                f"{'neither' if start is None else 'both'}. Give one of them."
            )
        self.data = read_data(recipe, folder, LabelledTexts)
        if start is not None:
            self.tokenizer = _tokenizer_of(start)
        else:
            texts = self.data.unlabelled or [text for text, _ in self.data.train]
            self.tokenizer = bert_tokenizer(recipe.required(recipe.tokenizer, "tokenizer"), texts)
        vocabulary = {"vocab_size": self.tokenizer.get_vocab_size(), "pad_token_id": PAD_ID}
        config = classifier_config(
            {**vocabulary, **recipe.model}, "BertForSequenceClassification", self.data.labels
        )
        check_length(self.window, config.context_length)
        self.module = EncoderModel(config)
        initialise_bert(self.module)
        if start is not None:
            take_body(self.module, start)
        self.train = self._encoded(self.data.train)
        self.held_out = self._encoded(self.data.held_out)

    def batches(self) -> Iterator[Batch]:
        """Padded ids `(B, S)`, lengths `(B,)` and labels `(B,)`, without end.

        A label is as likely as the square root of the number of its texts.
        """
        generator = torch.Generator().manual_seed(self.recipe.seed)
        labels = torch.tensor([label for _, label in self.data.train])
        weights = torch.bincount(labels).float().rsqrt()[labels]
        while True:
            chosen = torch.multinomial(
                weights, self.recipe.batch_size, replacement=True, generator=generator
            )
            ids, lengths = padded([self.train[i] for i in chosen.tolist()], self.window)
            is_hidden = torch.rand(ids.shape, generator=generator) < self.task.hidden
            ids = ids.masked_fill(is_hidden & (ids >= len(SPECIAL)), MASK_ID)
            yield ids, lengths, labels[chosen]

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of the labels."""
        ids, lengths, labels = batch
        logits = self.module(ids, lengths).float()
        return F.cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)

    def measure(self) -> dict[str, float]:
        """The accuracy on the held-out texts, and its mean over the labels."""
        return accuracies([label for _, label in self.data.held_out], self._guesses())

    def companions(self, folder: Path) -> None:
        """Write the tokenizer."""
        write_tokenizer(self.tokenizer, folder, max_tokens=self.module.config.context_length)

    def figures(self) -> dict[str, object]:
        """Sizes of the data."""
        cut = sum(len(ids) == self.window for ids in self.held_out)
        return {
            "start": self.task.start,
            "train_texts": len(self.train),
            "held_out_texts": len(self.held_out),
            "held_out_texts_cut_short": cut / len(self.held_out),
            "texts_seen": self.recipe.steps * self.recipe.batch_size,
        }

    def _guesses(self) -> list[int]:
        guesses: list[int] = []
        with torch.inference_mode():
            for start in range(0, len(self.held_out), 64):
                ids, lengths = padded(self.held_out[start : start + 64], self.window)
                guesses += self.module(ids, lengths).argmax(-1).tolist()
        return guesses

    def _encoded(self, texts: Sequence[tuple[str, int]]) -> list[list[int]]:
        return encode_texts(self.tokenizer, [text for text, _ in texts], self.window)


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], window: int) -> list[list[int]]:
    """Ids of texts, with their special tokens, cut to `window` tokens."""
    tokenizer.enable_truncation(window)
    encodings = tokenizer.encode_batch(list(texts))
    tokenizer.no_truncation()
    return [encoding.ids for encoding in encodings]


def padded(rows: Sequence[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
    """Ids `(B, length)`, right padded, and the lengths `(B,)`."""
    ids = torch.full((len(rows), length), PAD_ID)
    for place, row in zip(ids, rows, strict=True):
        place[: len(row)] = torch.tensor(row)
    return ids, torch.tensor([len(row) for row in rows])


def accuracies(labels: Sequence[int], guesses: Sequence[int]) -> dict[str, float]:
    """The share of right guesses, and the mean of this share over the labels."""
    known = np.array(labels)
    right = known == np.array(guesses)
    by_label = [float(right[known == label].mean()) for label in np.unique(known)]
    return {
        "held_out_accuracy": float(right.mean()),
        "held_out_balanced_accuracy": sum(by_label) / len(by_label),
    }


def take_body(module: EncoderModel, start: Path) -> None:
    """Copy all weights but the head's from a checkpoint of the same shape.

    Raises:
        CheckpointError: no checkpoint there.
        RecipeError: its model is another.
    """
    pretrained = load(start, EncoderModel)
    if replace(pretrained.config, head=None) != replace(module.config, head=None):
        raise RecipeError(
            f"task.start: expected the recipe's model up to its head in {start}, got another. "
            "Give [model] the values of its config.json."
        )
    body = {k: v for k, v in pretrained.state_dict().items() if not k.startswith("head.")}
    missing = [k for k in module.load_state_dict(body, strict=False).missing_keys]
    if not all(name.startswith("head.") for name in missing):
        raise RecipeError(f"task.start: expected every weight in {start}, got no {missing[0]}.")


def _tokenizer_of(start: Path) -> Tokenizer:
    path = start / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"task.start: expected a checkpoint with tokenizer.json in {start}, got none. "
            "Run its recipe first."
        )
    return Tokenizer.from_file(str(path))
