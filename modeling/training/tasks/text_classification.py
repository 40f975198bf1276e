"""Text classification, from random weights or from a pretrained encoder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from ortolan.modeling.checkpoint.folder import config_from_hf, load
from ortolan.modeling.config import ClassifierHead, EncoderConfig
from ortolan.modeling.errors import CheckpointError, ConfigError, RecipeError
from ortolan.modeling.models.encoder import EncoderModel
from ortolan.modeling.training.data import LabelledTexts, read_data
from ortolan.modeling.training.recipe import Fraction, Recipe
from ortolan.modeling.training.tasks.bert import (
    MASK_ID,
    PAD_ID,
    SPECIAL,
    bert_tokenizer,
    initialise_bert,
    write_tokenizer,
)
from ortolan.modeling.training.tasks.task import Batch, Task, check_length
from ortolan.modeling.training.tokenizer import padded


class TextClassificationTask(Task):
    """An encoder learns the labels of texts; its figure is the accuracy.

    It begins with the weights of the checkpoint `start`, if any. A share of the tokens is `hidden`
    at random, so that no single token decides.
    """

    module: EncoderModel
    data: LabelledTexts

    def __init__(
        self, recipe: Recipe, folder: Path, *, start: str | None = None, hidden: Fraction = 0.0
    ) -> None:
        self.recipe, self.start, self.hidden = recipe.training, start, hidden
        self.window = recipe.required(self.recipe.sequence_length, "training.sequence_length")
        if (start is None) is (recipe.tokenizer is None):
            raise RecipeError(
                "The recipe needs either [tokenizer], to train one, or task.start, whose tokenizer "
                f"is used (got {'neither' if start is None else 'both'})."
            )
        self.data = read_data(recipe, folder, LabelledTexts)
        if start is not None:
            self.tokenizer = _tokenizer_of(folder / start)
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
            take_body(self.module, folder / start)
        self.train, self.held_out = (
            encode_texts(self.tokenizer, [text for text, _ in texts], self.window)
            for texts in (self.data.train, self.data.held_out)
        )

    def batches(self) -> Iterator[Batch]:
        """Yield padded ids `(B, S)`, lengths `(B,)` and labels `(B,)`.

        The probability of a label grows with the square root of the number of its texts.
        """
        generator = torch.Generator().manual_seed(self.recipe.seed)
        labels = torch.tensor([label for _, label in self.data.train])
        weights = torch.bincount(labels).float().rsqrt()[labels]
        while True:
            chosen = torch.multinomial(
                weights, self.recipe.batch_size, replacement=True, generator=generator
            )
            ids, lengths = padded([self.train[i] for i in chosen.tolist()], PAD_ID, self.window)
            is_hidden = torch.rand(ids.shape, generator=generator) < self.hidden
            ids = ids.masked_fill(is_hidden & (ids >= len(SPECIAL)), MASK_ID)
            yield ids, lengths, labels[chosen]

    def measure(self) -> dict[str, float]:
        """Accuracy on the held-out texts, over all texts and averaged over labels."""
        guesses: list[int] = []
        with torch.inference_mode():
            for start in range(0, len(self.held_out), 64):
                rows = self.held_out[start : start + 64]
                guesses += self.module(*padded(rows, PAD_ID, self.window)).argmax(-1).tolist()
        return accuracies([label for _, label in self.data.held_out], guesses)

    def companions(self, folder: Path) -> None:
        """Write the tokenizer."""
        write_tokenizer(self.tokenizer, folder, max_tokens=self.module.config.context_length)

    def figures(self) -> dict[str, object]:
        """Sizes of the data."""
        cut = sum(len(ids) == self.window for ids in self.held_out)
        return {
            "start": self.start,
            "train_texts": len(self.train),
            "held_out_texts": len(self.held_out),
            "held_out_texts_cut_short": cut / len(self.held_out),
            "texts_seen": self.recipe.steps * self.recipe.batch_size,
        }


def classifier_config(
    model: Mapping[str, object], architecture: str, labels: Sequence[str]
) -> EncoderConfig:
    """Config of a classifier of `architecture`, unless `model` names another."""
    keys: dict[str, object] = {
        "architectures": [architecture],
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    config = config_from_hf({**keys, **model}, EncoderConfig)
    configured = config.head.labels if isinstance(config.head, ClassifierHead) else ()
    if configured != tuple(labels):
        raise ConfigError(
            f"model: the data has {len(labels)} labels, but the config describes "
            f"{type(config.head).__name__} with {len(configured)}. Leave architectures and labels "
            "out."
        )
    return config


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], window: int) -> list[list[int]]:
    """Ids of texts with special tokens, truncated to `window` tokens."""
    tokenizer.enable_truncation(window)
    encodings = tokenizer.encode_batch(list(texts))
    tokenizer.no_truncation()
    return [encoding.ids for encoding in encodings]


def accuracies(labels: Sequence[int], guesses: Sequence[int]) -> dict[str, float]:
    """Share of correct guesses, over all texts and averaged over labels."""
    expected = np.array(labels)
    right = expected == np.array(guesses)
    by_label = [float(right[expected == label].mean()) for label in np.unique(expected)]
    return {
        "held_out_accuracy": float(right.mean()),
        "held_out_balanced_accuracy": sum(by_label) / len(by_label),
    }


def take_body(module: EncoderModel, start: Path) -> None:
    """Copy all weights except the head's from a checkpoint of the same shape."""
    pretrained = load(start, EncoderModel)
    if replace(pretrained.config, head=None) != replace(module.config, head=None):
        raise RecipeError(
            f"task.start: the model in {start} differs from the recipe's. Copy the values of its "
            "config.json to [model]."
        )
    body = {k: v for k, v in pretrained.state_dict().items() if not k.startswith("head.")}
    missing = module.load_state_dict(body, strict=False).missing_keys
    if not all(name.startswith("head.") for name in missing):
        raise RecipeError(f"task.start: {start} has no weight {missing[0]}.")


def _tokenizer_of(start: Path) -> Tokenizer:
    path = start / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"task.start: {start} has no checkpoint with a tokenizer.json. Train it first."
        )
    return Tokenizer.from_file(str(path))
