"""Next-token prediction over whole documents."""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.transformer import DecoderModel
from ortolan.modeling.training.data import Texts, read_data
from ortolan.modeling.training.evaluation import bits_per_byte
from ortolan.modeling.training.recipe import Recipe
from ortolan.modeling.training.tasks.task import Batch, check_length, initialise, write_json
from ortolan.modeling.training.tokenizer import byte_level_bpe, encode, id_of, save_tokenizer


class LanguageModelTask:
    """A decoder learns to continue texts; its figure is bits per byte."""

    module: DecoderModel

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe = recipe.training
        tokenizer = recipe.required(recipe.tokenizer, "tokenizer")
        self.window = recipe.required(self.recipe.sequence_length, "training.sequence_length")
        # Check before reading the data, which may take minutes.
        config = _config(recipe, vocab_size=tokenizer.vocab_size, end=0)
        check_length(self.window, config.context_length)
        self.data = read_data(recipe, folder, Texts)
        special = tokenizer.end_of_text
        self.tokenizer = byte_level_bpe(
            self.data.train,
            vocab_size=tokenizer.vocab_size,
            special_tokens=[special],
            pieces=tokenizer.pieces,
        )
        self.module = DecoderModel(
            _config(
                recipe,
                vocab_size=self.tokenizer.get_vocab_size(),
                end=id_of(self.tokenizer, special),
            )
        )
        initialise(self.module, layers=len(self.module.config.blocks))
        documents = encode(self.tokenizer, self.data.train, special)
        self.tokens = torch.tensor([i for ids in documents for i in ids], dtype=torch.int32)
        if len(self.tokens) < self.window + 2:
            raise RecipeError(
                f"training.sequence_length must be below the {len(self.tokens)} tokens of the text "
                f"(got {self.window}). Use more text."
            )
        self.held_out = encode(self.tokenizer, self.data.held_out, special)
        self.held_out_bytes = sum(len(text.encode()) for text in self.data.held_out)

    def batches(self) -> Iterator[Batch]:
        """Yield windows from random places in the text, `(B, S + 1)`."""
        generator = torch.Generator().manual_seed(self.recipe.seed)
        span = torch.arange(self.window + 1)
        last = len(self.tokens) - self.window - 1
        while True:
            starts = torch.randint(last, (self.recipe.batch_size, 1), generator=generator)
            yield (self.tokens[starts + span].long(),)

    def loss(self, batch: Batch) -> Tensor:
        """Mean next-token cross-entropy of windows `(B, S + 1)`."""
        (ids,) = batch
        logits = self.module(ids[:, :-1])
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            ids[:, 1:].flatten(),
            label_smoothing=self.recipe.label_smoothing,
        )

    def measure(self) -> dict[str, float]:
        """Bits per byte on the held-out texts."""
        bits = bits_per_byte(self.module, self.held_out, self.held_out_bytes, window=self.window)
        return {"held_out_bits_per_byte": bits}

    def companions(self, folder: Path) -> None:
        """Write the tokenizer and the generation defaults."""
        config = self.module.config
        save_tokenizer(self.tokenizer, folder)
        write_json(
            folder / "generation_config.json",
            {"bos_token_id": config.bos_token_id, "eos_token_id": list(config.eos_token_ids)},
        )

    def figures(self) -> dict[str, object]:
        """Sizes of the text."""
        return {
            "train_tokens": len(self.tokens),
            "tokens_seen": self.recipe.steps * self.recipe.batch_size * self.window,
            "held_out_texts": len(self.held_out),
            "held_out_bytes": self.held_out_bytes,
            "held_out_tokens": sum(len(ids) - 1 for ids in self.held_out),
        }


def _config(recipe: Recipe, *, vocab_size: int, end: int) -> DecoderConfig:
    """Config of the recipe's model; `end` is both BOS and EOS."""
    special = {"bos_token_id": end, "eos_token_id": end}
    return config_from_hf({"vocab_size": vocab_size, **special, **recipe.model})
