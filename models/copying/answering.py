"""A training task for prompts with one right answer, such as copying or sorting.

A text is a prompt, its answer and EOS. Only the answer and EOS are learned, and an answer is right
if every token of it is, EOS included.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.checkpoint.json_file import write_json
from ortolan.modeling.config import DecoderConfig, ModelConfig, RecurrentConfig
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.transformer import DecoderModel, build
from ortolan.modeling.training.data import Answers, Pair, read_data
from ortolan.modeling.training.recipe import Fraction, Recipe
from ortolan.modeling.training.tasks.task import IGNORED, Batch, Task, initialise
from ortolan.modeling.training.tokenizer import id_of, padded, save_tokenizer

END = "<end>"

_BATCH = 125
"""Texts measured together."""


class AnsweringTask(Task):
    """A decoder or a recurrent network learns to answer prompts.

    Texts grow from the shortest to the longest during the share `curriculum` of the training.
    """

    module: TransformerModel
    data: Answers

    def __init__(self, recipe: Recipe, folder: Path, *, curriculum: Fraction = 0.0) -> None:
        self.recipe, self.curriculum = recipe.training, curriculum
        self.data = read_data(recipe, folder, Answers)
        self.tokenizer = word_tokenizer(self.data)
        config = _config(recipe, self.tokenizer)
        self.train = self._encoded(self.data.train)
        self.held_out = {name: self._encoded(pairs) for name, pairs in self.data.held_out.items()}
        longest = max(len(ids) for part in (self.train, *self.held_out.values()) for ids, _ in part)
        if longest > config.context_length:
            raise RecipeError(
                f"model.max_position_embeddings must be at least {longest}, the longest text (got "
                f"{config.context_length})."
            )
        self.module = build(config)
        if isinstance(self.module, DecoderModel):
            initialise(self.module, layers=len(self.module.config.blocks))

    def batches(self) -> Iterator[Batch]:
        """Yield ids `(B, S)` and labels `(B, S)` of texts of similar length."""
        generator = torch.Generator().manual_seed(self.recipe.seed)
        texts = sorted(self.train, key=lambda text: len(text[0]))
        lengths = torch.tensor([len(ids) for ids, _ in texts])
        growing, size = self.curriculum * self.recipe.steps, self.recipe.batch_size
        step = 0
        while True:
            grown = min(1.0, step / growing) if growing else 1.0
            longest = torch.lerp(lengths[0].float(), lengths[-1].float(), grown)
            count = max(int((lengths <= longest).sum()), min(size, len(texts)))
            start = int(torch.randint(max(count - size, 0) + 1, (), generator=generator))
            yield shifted(texts[start : start + size])
            step += 1

    def measure(self) -> dict[str, float]:
        """Share of right answers in every held-out set."""
        return {
            f"held_out_{name}_accuracy": right_share(self.module, texts)
            for name, texts in self.held_out.items()
        }

    def companions(self, folder: Path) -> None:
        """Write the tokenizer and the generation defaults."""
        save_tokenizer(self.tokenizer, folder)
        end = {"eos_token_id": id_of(self.tokenizer, END)}
        write_json(folder / "generation_config.json", end)

    def figures(self) -> dict[str, object]:
        """Sizes of the data."""
        return {
            "train_texts": len(self.train),
            "texts_seen": self.recipe.steps * self.recipe.batch_size,
            "held_out_texts": sum(map(len, self.held_out.values())),
            "longest_train_text": max(len(ids) for ids, _ in self.train),
        }

    def _encoded(self, pairs: Sequence[Pair]) -> list[tuple[list[int], int]]:
        """Ids of the texts, and the lengths of their prompts."""
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
    """A tokenizer with one token per training word, sorted, after EOS."""
    words = sorted({word for pair in data.train for text in pair for word in text.split()})
    vocabulary = {word: number for number, word in enumerate([END, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, END))
    tokenizer.add_special_tokens([END])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def shifted(texts: Sequence[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    """Right-padded inputs `(B, S)`, and the next tokens as labels where they belong to answers."""
    inputs, _ = padded([ids[:-1] for ids, _ in texts], 0)
    labels, _ = padded([[IGNORED] * (prompt - 1) + ids[prompt:] for ids, prompt in texts], IGNORED)
    return inputs, labels


def right_share(module: TransformerModel, texts: Sequence[tuple[list[int], int]]) -> float:
    """Share of texts whose answers greedy generation would return.

    One forward pass suffices: every token of such an answer is the likeliest after those before it.
    """
    right = 0
    with torch.inference_mode():
        for start in range(0, len(texts), _BATCH):
            inputs, labels = shifted(texts[start : start + _BATCH])
            guesses = module(inputs).argmax(-1)
            right += int(((guesses == labels) | (labels == IGNORED)).all(1).sum())
    return right / len(texts)


def _config(recipe: Recipe, tokenizer: Tokenizer) -> DecoderConfig | RecurrentConfig:
    """Config of the recipe's model for a tokenizer."""
    special = {"eos_token_id": id_of(tokenizer, END)}
    values = {"vocab_size": tokenizer.get_vocab_size(), **special, **recipe.model}
    config = config_from_hf(values, ModelConfig)
    if not isinstance(config, DecoderConfig | RecurrentConfig):
        raise RecipeError(
            f"model: answering needs a decoder or a recurrent network (got {config.model_type})."
        )
    return config
