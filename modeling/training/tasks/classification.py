"""Classification of texts, from random weights or from a pre-trained encoder.

Knows tokens and labels. Does not know where the texts come from.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from ortolan.modeling.checkpoint.folder import config_from_hf, load
from ortolan.modeling.config import EncoderConfig
from ortolan.modeling.errors import CheckpointError, RecipeError
from ortolan.modeling.models.transformer import Encoder
from ortolan.modeling.training.corpora.snippets import (
    PACKAGES,
    Snippet,
    names_package,
    read_snippets,
)
from ortolan.modeling.training.recipe import Recipe, SnippetsData, TokenizerRecipe
from ortolan.modeling.training.tasks.bert import (
    MASK_ID,
    PAD_ID,
    SPECIAL,
    bert_tokenizer,
    initialise_bert,
    write_tokenizer,
)
from ortolan.modeling.training.tasks.labels import check_labels, label_keys
from ortolan.modeling.training.tasks.task import Batch, required


class ClassificationTask:
    """An encoder that names the package of a snippet, measured by its accuracy.

    Args:
        recipe: what to train.
        data: its files.
        folder: of the recipe, from which `data.start` counts.
    """

    module: Encoder

    def __init__(self, recipe: Recipe, data: SnippetsData, folder: Path) -> None:
        self.recipe, self.data = recipe.training, data
        self.window = required(self.recipe.sequence_length, "training.sequence_length", data)
        start = None if data.start is None else folder / data.start
        if (start is None) is (recipe.tokenizer is None):
            raise RecipeError(
                "tokenizer: expected one to train, or data.start, whose tokenizer is taken, got "
                f"{'neither' if start is None else 'both'}. Give one of them."
            )
        self.snippets = read_snippets(data)
        self.tokenizer = (
            _started_tokenizer(start)
            if start is not None
            else _new_tokenizer(required(recipe.tokenizer, "tokenizer", data), self.snippets.texts)
        )
        self.module = Encoder(_config(recipe, self.tokenizer.get_vocab_size(), self.window))
        initialise_bert(self.module)
        if start is not None:
            take_body(self.module, start)
        self.train = self._encoded(self.snippets.train)
        self.held_out = self._encoded(self.snippets.held_out)

    def batches(self) -> Iterator[Batch]:
        """Padded ids `(B, S)`, lengths `(B,)` and labels `(B,)`, without end.

        A package is drawn by the square root of its size; some tokens are hidden, so that no
        single one decides.
        """
        generator = torch.Generator().manual_seed(self.recipe.seed)
        labels = torch.tensor([snippet.label for snippet in self.snippets.train])
        weights = torch.bincount(labels).float().rsqrt()[labels]
        while True:
            chosen = torch.multinomial(
                weights, self.recipe.batch_size, replacement=True, generator=generator
            )
            ids, lengths = padded([self.train[i] for i in chosen.tolist()], self.window)
            is_hidden = torch.rand(ids.shape, generator=generator) < self.data.hidden
            ids = ids.masked_fill(is_hidden & (ids >= len(SPECIAL)), MASK_ID)
            yield ids, lengths, labels[chosen]

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of the labels."""
        ids, lengths, labels = batch
        logits = self.module(ids, lengths).float()
        return F.cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)

    def measure(self) -> dict[str, float]:
        """The accuracy on the held-out snippets, and its mean over the packages."""
        return accuracies(self.snippets.held_out, self._guesses())

    def companions(self, folder: Path) -> None:
        """Write the tokenizer."""
        write_tokenizer(self.tokenizer, folder, max_tokens=self.module.config.context_length)

    def figures(self) -> dict[str, object]:
        """Sizes of the data, and what TF-IDF with logistic regression reaches on it."""
        from ortolan.modeling.training.baselines import tfidf_guesses

        train, held_out = self.snippets.train, self.snippets.held_out
        found = accuracies(held_out, tfidf_guesses(train, held_out).tolist())
        names = sum(map(names_package, held_out)) / len(held_out)
        longest = self.window
        cut = sum(len(ids) == longest for ids in self.held_out) / len(held_out)
        return {
            "start": self.data.start,
            "train_files": len({snippet.file for snippet in train}),
            "train_snippets": len(train),
            "held_out_files": len({snippet.file for snippet in held_out}),
            "held_out_snippets": len(held_out),
            "held_out_snippets_naming_their_package": names,
            "held_out_snippets_cut_short": cut,
            "snippets_seen": self.recipe.steps * self.recipe.batch_size,
            **{f"tfidf_{name}": value for name, value in found.items()},
        }

    def _guesses(self) -> list[int]:
        guesses: list[int] = []
        with torch.inference_mode():
            for start in range(0, len(self.held_out), 64):
                ids, lengths = padded(self.held_out[start : start + 64], self.window)
                guesses += self.module(ids, lengths).argmax(-1).tolist()
        return guesses

    def _encoded(self, snippets: Sequence[Snippet]) -> list[list[int]]:
        return encode_texts(self.tokenizer, [s.text for s in snippets], self.window)


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


def accuracies(snippets: Sequence[Snippet], guesses: Sequence[int]) -> dict[str, float]:
    """The share of snippets that are guessed, and the mean of the shares of each package."""
    labels = np.array([snippet.label for snippet in snippets])
    right = labels == np.array(guesses)
    by_package = [float(right[labels == label].mean()) for label in np.unique(labels)]
    return {
        "held_out_accuracy": float(right.mean()),
        "held_out_accuracy_by_package": sum(by_package) / len(by_package),
    }


def take_body(module: Encoder, start: Path) -> None:
    """Copy all weights but the head's from a checkpoint of the same shape.

    Raises:
        CheckpointError: no checkpoint there.
        RecipeError: its model is another.
    """
    pretrained = load(start, Encoder)
    if replace(pretrained.config, head=None) != replace(module.config, head=None):
        raise RecipeError(
            f"data.start: expected the recipe's model up to its head in {start}, got another. "
            "Give [model] the values of its config.json."
        )
    body = {k: v for k, v in pretrained.state_dict().items() if not k.startswith("head.")}
    missing = [k for k in module.load_state_dict(body, strict=False).missing_keys]
    if not all(name.startswith("head.") for name in missing):
        raise RecipeError(f"data.start: expected every weight in {start}, got no {missing[0]}.")


def _started_tokenizer(start: Path) -> Tokenizer:
    path = start / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"data.start: expected a checkpoint with tokenizer.json in {start}, got none. "
            "Run its recipe first."
        )
    return Tokenizer.from_file(str(path))


def _new_tokenizer(recipe: TokenizerRecipe, texts: Sequence[str]) -> Tokenizer:
    return bert_tokenizer(texts, vocab_size=recipe.vocab_size)


def _config(recipe: Recipe, vocab_size: int, window: int) -> EncoderConfig:
    """The recipe's model for a tokenizer of `vocab_size` ids.

    Raises:
        RecipeError: the texts are longer than its context.
    """
    keys = label_keys("BertForSequenceClassification", PACKAGES)
    values = {**keys, "vocab_size": vocab_size, "pad_token_id": PAD_ID, **recipe.model}
    config = config_from_hf(values, EncoderConfig)
    check_labels(config, PACKAGES)
    if window > config.context_length:
        raise RecipeError(
            f"training: expected sequence_length up to the model's {config.context_length}, "
            f"got {window}. Correct one of them."
        )
    return config
