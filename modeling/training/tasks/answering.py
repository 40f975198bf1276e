"""Answers to prompts: copying, sorting, whatever has one right answer.

A text is a prompt, its answer, and a token that ends it. Only the answer and the end are learned,
and an answer counts as right if all of it is, the end included.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import DecoderConfig, ModelConfig, RecurrentConfig
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.building import build
from ortolan.modeling.models.stack import TransformerModel
from ortolan.modeling.models.transformer import DecoderModel
from ortolan.modeling.training.data import Answers, Pair, read_data
from ortolan.modeling.training.recipe import Answering, Recipe
from ortolan.modeling.training.tasks.task import Batch, initialise, write_json
from ortolan.modeling.training.tokenizer import id_of, save_tokenizer

END = "<end>"

IGNORED = -100
"""The label of a token that is not learned."""

_MEASURED_AT_ONCE = 125


class AnsweringTask:
    """A decoder, or a recurrent network, that answers prompts."""

    module: TransformerModel

    def __init__(self, recipe: Recipe, task: Answering, folder: Path) -> None:
        self.recipe, self.task = recipe.training, task
        self.data = read_data(recipe, folder, Answers)
        self.tokenizer = word_tokenizer(self.data)
        config = _config(recipe, self.tokenizer)
        self.train = self._encoded(self.data.train)
        self.held_out = {name: self._encoded(pairs) for name, pairs in self.data.held_out.items()}
        longest = max(len(ids) for part in (self.train, *self.held_out.values()) for ids, _ in part)
        if longest > config.context_length:
            raise RecipeError(
                f"model: expected max_position_embeddings from {longest}, the longest text, got "
                f"{config.context_length}. Increase it."
            )
        self.module = build(config)
        if isinstance(self.module, DecoderModel):
            initialise(self.module, layers=len(self.module.config.blocks))

    def batches(self) -> Iterator[Batch]:
        """Ids `(B, S)` of texts of about one length, and labels `(B, S)`, without end."""
        generator = torch.Generator().manual_seed(self.recipe.seed)
        texts = sorted(self.train, key=lambda text: len(text[0]))
        lengths = torch.tensor([len(ids) for ids, _ in texts])
        growing, size = self.task.curriculum * self.recipe.steps, self.recipe.batch_size
        step = 0
        while True:
            grown = min(1.0, step / growing) if growing else 1.0
            longest = torch.lerp(lengths[0].float(), lengths[-1].float(), grown)
            known = max(int((lengths <= longest).sum()), min(size, len(texts)))
            start = int(torch.randint(max(known - size, 0) + 1, (), generator=generator))
            yield padded(texts[start : start + size])
            step += 1

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of the answers and their ends."""
        ids, labels = batch
        return F.cross_entropy(
            self.module(ids).flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=self.recipe.label_smoothing,
        )

    def measure(self) -> dict[str, float]:
        """The share of right answers in every held-out set."""
        return {
            f"held_out_{name}_accuracy": right_share(self.module, texts)
            for name, texts in self.held_out.items()
        }

    def companions(self, folder: Path) -> None:
        """Write the tokenizer and the defaults of generation."""
        save_tokenizer(self.tokenizer, folder)
        write_json(folder / "generation_config.json", {"eos_token_id": id_of(self.tokenizer, END)})

    def figures(self) -> dict[str, object]:
        """Sizes of the data."""
        return {
            "train_texts": len(self.train),
            "texts_seen": self.recipe.steps * self.recipe.batch_size,
            "held_out_texts": sum(map(len, self.held_out.values())),
            "longest_train_text": max(len(ids) for ids, _ in self.train),
        }

    def _encoded(self, pairs: Sequence[Pair]) -> list[tuple[list[int], int]]:
        """Ids of each text, and how many of them are its prompt."""
        end = id_of(self.tokenizer, END)
        prompts, answers = (
            [encoding.ids for encoding in self.tokenizer.encode_batch(list(side))]
            for side in zip(*pairs, strict=True)
        )
        return [
            ([*prompt, *answer, end], len(prompt))
            for prompt, answer in zip(prompts, answers, strict=True)
        ]


def word_tokenizer(data: Answers) -> Tokenizer:
    """A token for each word of the texts to learn from, in their order, after the one that ends."""
    words = sorted({word for pair in data.train for text in pair for word in text.split()})
    vocabulary = {word: number for number, word in enumerate([END, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, END))
    tokenizer.add_special_tokens([END])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def padded(texts: Sequence[tuple[list[int], int]]) -> Batch:
    """Inputs `(B, S)`, right padded, and what follows each of them, of answers alone."""
    longest = max(len(ids) for ids, _ in texts) - 1
    inputs = torch.zeros(len(texts), longest, dtype=torch.int64)
    labels = torch.full_like(inputs, IGNORED)
    for row, (ids, prompt) in enumerate(texts):
        inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        labels[row, prompt - 1 : len(ids) - 1] = torch.tensor(ids[prompt:])
    return inputs, labels


def right_share(module: TransformerModel, texts: Sequence[tuple[list[int], int]]) -> float:
    """The share of texts whose whole answer is the likeliest, token by token.

    Such an answer is what greedy generation gives, so one pass over the text is enough.
    """
    right = 0
    with torch.inference_mode():
        for start in range(0, len(texts), _MEASURED_AT_ONCE):
            inputs, labels = padded(texts[start : start + _MEASURED_AT_ONCE])
            guesses = module(inputs).argmax(-1)
            right += int(((guesses == labels) | (labels == IGNORED)).all(1).sum())
    return right / len(texts)


def _config(recipe: Recipe, tokenizer: Tokenizer) -> DecoderConfig | RecurrentConfig:
    """The recipe's model for a tokenizer."""
    special = {"eos_token_id": id_of(tokenizer, END)}
    values = {"vocab_size": tokenizer.get_vocab_size(), **special, **recipe.model}
    config = config_from_hf(values, ModelConfig)
    if not isinstance(config, DecoderConfig | RecurrentConfig):
        raise RecipeError(
            f"model: expected a decoder or a recurrent network for answering, got "
            f"{config.model_type}. Choose another model_type."
        )
    return config
