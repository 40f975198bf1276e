"""A training task for masked language modelling (Devlin et al. 2019)."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import EncoderConfig, LanguageModelHead
from ortolan.modeling.errors import ConfigError, RecipeError
from ortolan.modeling.layers.heads import LanguageModel
from ortolan.modeling.models.encoder import EncoderModel
from ortolan.modeling.training.data import Texts, read_data
from ortolan.modeling.training.recipe import Count, Fraction, Recipe
from ortolan.modeling.training.tasks.bert import (
    END_ID,
    MASK_ID,
    PAD_ID,
    SPECIAL,
    START_ID,
    bert_tokenizer,
    initialise_bert,
    write_tokenizer,
)
from ortolan.modeling.training.tasks.task import Batch, Task, check_length

TO_MASK, TO_RANDOM = 0.8, 0.1
"""Shares of the hidden tokens that become `[MASK]` and a random token; the others stay."""

MEASURED_WINDOWS, MEASURED_AT_ONCE = 512, 64

LEAST_WINDOW = 8
"""Tokens of the shortest window, two of which are special."""


class MaskedLanguageModelTask(Task):
    """An encoder learns to guess hidden tokens; its figure is the share of correct guesses.

    The first windows have `shortest` tokens, which double to `sequence_length` in equal parts of
    the training.
    """

    module: EncoderModel
    data: Texts

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        hidden: Fraction = 0.15,
        shortest: Count | None = None,
    ) -> None:
        self.recipe, self.hidden = recipe.training, hidden
        self.window = recipe.required(self.recipe.sequence_length, "training.sequence_length")
        tokenizer = recipe.required(recipe.tokenizer, "tokenizer")
        # Check before reading the data, which may take minutes.
        config = _config(recipe, tokenizer.vocab_size)
        check_length(self.window, config.context_length, least=LEAST_WINDOW)
        self.lengths = growing(shortest or self.window, self.window)
        self.data = read_data(recipe, folder, Texts)
        self.tokenizer = bert_tokenizer(tokenizer, self.data.train)
        self.vocab_size = self.tokenizer.get_vocab_size()
        self.module = EncoderModel(_config(recipe, self.vocab_size))
        initialise_bert(self.module)
        self.tokens = self._stream(self.data.train)
        self.held_out = self._held_out_windows(self._stream(self.data.held_out))

    def batches(self) -> Iterator[Batch]:
        """Yield windows from random places in the text with tokens hidden; see `Hidden`.

        Batches have about the same number of tokens: more windows while they are short.
        """
        generator = torch.Generator().manual_seed(self.recipe.seed)
        lengths = self.lengths
        for step in itertools.count():
            stage = min(step * len(lengths) // self.recipe.steps, len(lengths) - 1)
            rows = self.recipe.batch_size * self.window // lengths[stage]
            starts = torch.randint(len(self.tokens) - self.window, (rows,), generator=generator)
            yield self._hide(windows(self.tokens, starts, lengths[stage]), generator)

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of the hidden tokens."""
        ids, positions, targets = batch
        return F.cross_entropy(self._logits(ids, positions).flatten(0, 1), targets.flatten())

    def measure(self) -> dict[str, float]:
        """Accuracy on the hidden tokens of held-out texts, and the loss in nats."""
        right, nats, count = 0, 0.0, 0
        with torch.inference_mode():
            for start in range(0, MEASURED_WINDOWS, MEASURED_AT_ONCE):
                part = slice(start, start + MEASURED_AT_ONCE)
                ids, positions, targets = (tensor[part] for tensor in self.held_out)
                logits = self._logits(ids, positions).flatten(0, 1)
                right += int((logits.argmax(-1) == targets.flatten()).sum())
                nats += float(F.cross_entropy(logits, targets.flatten(), reduction="sum"))
                count += targets.numel()
        return {"held_out_masked_accuracy": right / count, "held_out_masked_loss": nats / count}

    def companions(self, folder: Path) -> None:
        """Write the tokenizer."""
        write_tokenizer(self.tokenizer, folder, max_tokens=self.module.config.context_length)

    def figures(self) -> dict[str, object]:
        """Sizes of the text, and the accuracy of always guessing its most frequent token."""
        common = int(torch.bincount(self.tokens).argmax())
        return {
            "train_tokens": len(self.tokens),
            "tokens_seen": self.recipe.steps * self.recipe.batch_size * self.window,
            "most_frequent_token_accuracy": float((self.held_out.targets == common).float().mean()),
        }

    def _logits(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Logits of the hidden tokens only, float32 `(B, K, V)`: the head costs the most."""
        x_BSE = self.module.states(ids)
        x_BKE = x_BSE.gather(1, positions[..., None].expand(-1, -1, x_BSE.shape[-1]))
        table = cast(nn.Embedding, self.module.embedding).weight
        logits: Tensor = cast(LanguageModel, self.module.head)(x_BKE, table)
        return logits.float()

    def _hide(self, ids: Tensor, generator: torch.Generator) -> "Hidden":
        return hide(ids, part=self.hidden, vocab_size=self.vocab_size, generator=generator)

    def _stream(self, texts: Sequence[str]) -> Tensor:
        """Tokens of texts; RecipeError if they do not fill a window."""
        tokens = stream(self.tokenizer, texts)
        if len(tokens) <= self.window:
            raise RecipeError(
                f"data: the training and the held-out text must both exceed sequence_length = "
                f"{self.window} tokens (got {len(tokens)}). Use more text."
            )
        return tokens

    def _held_out_windows(self, tokens: Tensor) -> "Hidden":
        """Windows for measuring: the same ones, with the same tokens hidden, each time."""
        starts = torch.linspace(0, len(tokens) - self.window, MEASURED_WINDOWS).long()
        generator = torch.Generator().manual_seed(0)
        return self._hide(windows(tokens, starts, self.window), generator)


class Hidden(NamedTuple):
    """Texts with hidden tokens.

    Attributes:
        ids: input of the model, int64 `(B, S)`.
        positions: positions of the hidden tokens, int64 `(B, K)`.
        targets: the hidden tokens, int64 `(B, K)`.
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor


def hide(ids: Tensor, *, part: float, vocab_size: int, generator: torch.Generator) -> Hidden:
    """Hide the same number of tokens in every row, none of them special.

    Args:
        ids: int64 `(B, S)`.
        part: share of the S tokens to hide.
        vocab_size: upper bound of random tokens.
        generator: source of randomness.
    """
    count = max(round(ids.shape[1] * part), 1)
    scores = torch.rand(ids.shape, generator=generator)
    scores = scores.masked_fill(ids < len(SPECIAL), -1.0)
    positions = scores.topk(count, dim=1).indices
    targets = ids.gather(1, positions)
    fate = torch.rand(targets.shape, generator=generator)
    random = torch.randint(len(SPECIAL), vocab_size, targets.shape, generator=generator)
    seen = torch.where(fate < TO_MASK + TO_RANDOM, random, targets)
    seen = torch.where(fate < TO_MASK, MASK_ID, seen)
    return Hidden(ids.scatter(1, positions, seen), positions, targets)


def growing(shortest: int, longest: int) -> list[int]:
    """Lengths of windows, from the shortest to the longest by doubling.

    Short windows come first: with few tokens to attend to, a model soon learns to attend to near
    ones. Devlin et al. (2019) do the same to save time.
    """
    lengths = [shortest]
    while lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    if lengths[-1] != longest or shortest < LEAST_WINDOW:
        raise RecipeError(
            f"task.shortest must be {longest} halved any number of times, and at least "
            f"{LEAST_WINDOW} (got {shortest}). Correct it, or training.sequence_length."
        )
    return lengths


def windows(tokens: Tensor, starts: Tensor, window: int) -> Tensor:
    """Windows `(B, S)` that begin at `starts`; their first and last tokens are special."""
    inside = tokens[starts[:, None] + torch.arange(window - 2)].long()
    edges = torch.full((len(starts), 1), START_ID), torch.full((len(starts), 1), END_ID)
    return torch.cat((edges[0], inside, edges[1]), 1)


def stream(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """Tokens of all texts, int32 `(N,)`, with an end token after every text."""
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return torch.tensor([i for e in encodings for i in (*e.ids, END_ID)], dtype=torch.int32)


def _config(recipe: Recipe, vocab_size: int) -> EncoderConfig:
    """Config of the recipe's model for a tokenizer of `vocab_size` ids."""
    values = {"architectures": ["BertForMaskedLM"], "vocab_size": vocab_size, **recipe.model}
    values = {"pad_token_id": PAD_ID, **values}
    config = config_from_hf(values, EncoderConfig)
    if not isinstance(config.head, LanguageModelHead):
        raise ConfigError(
            f"model: the task needs the head of a language model (got {type(config.head).__name__})"
            ". Correct architectures."
        )
    return config
