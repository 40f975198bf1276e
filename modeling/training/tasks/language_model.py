"""Next-token prediction over whole documents."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.checkpoint.json_file import write_json
from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.transformer import DecoderModel
from ortolan.modeling.training.data import Texts, read_data
from ortolan.modeling.training.recipe import Recipe
from ortolan.modeling.training.tasks.task import Batch, Task, check_length, initialise
from ortolan.modeling.training.tokenizer import byte_level_bpe, encode, id_of, save_tokenizer


class LanguageModelTask(Task):
    """A decoder learns to continue texts; its figure is bits per byte."""

    module: DecoderModel
    data: Texts

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
        """Yield windows `(B, S)` from random places in the text, and their next tokens."""
        generator = torch.Generator().manual_seed(self.recipe.seed)
        span = torch.arange(self.window + 1)
        last = len(self.tokens) - self.window - 1
        while True:
            starts = torch.randint(last, (self.recipe.batch_size, 1), generator=generator)
            ids = self.tokens[starts + span].long()
            yield ids[:, :-1], ids[:, 1:]

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


def bits_per_byte(
    module: DecoderModel, documents: Sequence[Sequence[int]], text_bytes: int, *, window: int
) -> float:
    """Bits that the model needs for each byte of some documents.

    Windows overlap by half, so that every token but the first of a document is predicted once,
    from at least `window / 2` tokens, or from all there are.

    The first token of a document is given. `window` is at most the context of the model.
    """
    stride = max(window // 2, 1)
    nats = 0.0
    with torch.inference_mode():
        for ids in documents:
            for start in range(0, max(len(ids) - 1, 0), stride):
                piece = torch.tensor(ids[start : start + window + 1])
                skip = 0 if start == 0 else window - stride
                if len(piece) - 1 <= skip:
                    break
                logits = module(piece[None, :-1])[0, skip:]
                nats += float(F.cross_entropy(logits, piece[1 + skip :], reduction="sum"))
    return nats / math.log(2) / text_bytes


def _config(recipe: Recipe, *, vocab_size: int, end: int) -> DecoderConfig:
    """Config of the recipe's model; `end` is both BOS and EOS."""
    special = {"bos_token_id": end, "eos_token_id": end}
    return config_from_hf({"vocab_size": vocab_size, **special, **recipe.model})
