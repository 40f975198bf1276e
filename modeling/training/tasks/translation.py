"""Translation by an encoder-decoder, as in "Attention Is All You Need" (Vaswani et al. 2017)."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import nn

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.checkpoint.json_file import write_json
from ortolan.modeling.config import EncoderDecoderConfig
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.transformer import EncoderDecoderModel
from ortolan.modeling.training.data import Pair, Pairs, read_data
from ortolan.modeling.training.decoding import greedy
from ortolan.modeling.training.recipe import Recipe, TokenizerRecipe
from ortolan.modeling.training.tasks.task import IGNORED, Batch, Task
from ortolan.modeling.training.tokenizer import byte_level_bpe, id_of, padded, save_tokenizer

UNKNOWN, PAD = "<unk>", "<pad>"

_POOL = 50
"""Batches whose pairs are sorted by length together."""


class TranslationTask(Task):
    """An encoder-decoder learns to translate; its figures are the metrics of its data.

    As in Marian, the last token of the vocabulary pads and starts the decoder's sequence. It is
    never generated, and its embedding stays zero.
    """

    module: EncoderDecoderModel
    data: Pairs

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe = recipe.training
        spec = recipe.required(recipe.tokenizer, "tokenizer")
        # Check before reading the data, which may take minutes.
        _config(recipe, vocab_size=spec.vocab_size, end=0)
        self.data = read_data(recipe, folder, Pairs)
        self.tokenizer = train_tokenizer(spec, self.data.train)
        self.end = id_of(self.tokenizer, spec.end_of_text)
        self.pad = id_of(self.tokenizer, PAD)
        config = _config(recipe, vocab_size=self.tokenizer.get_vocab_size(), end=self.end)
        self.context_length = config.decoder.context_length
        self.sources = self._encode([source for source, _ in self.data.train])
        self.targets = self._encode([target for _, target in self.data.train])
        longest = max(map(len, self.sources + self.targets))
        if longest >= self.context_length:
            raise RecipeError(
                f"model.max_position_embeddings must exceed the longest sentence, {longest} "
                f"tokens (got {self.context_length})."
            )
        self.module = _initialised(config, self.pad)

    def batches(self) -> Iterator[Batch]:
        """Yield sources `(B, T)`, inputs `(B, S)`, lengths of the sources, and labels `(B, S)`.

        Pairs of similar length share a batch.
        """
        rng, size = random.Random(self.recipe.seed), self.recipe.batch_size
        rows = list(range(len(self.sources)))
        while True:
            rng.shuffle(rows)
            for start in range(0, len(rows), size * _POOL):
                pool = rows[start : start + size * _POOL]
                pool.sort(key=lambda row: (len(self.targets[row]), len(self.sources[row])))
                groups = [pool[at : at + size] for at in range(0, len(pool), size)]
                rng.shuffle(groups)
                for group in groups:
                    yield self._batch(group)

    def measure(self) -> dict[str, float]:
        """Every metric, on greedy translations of every held-out set."""
        figures: dict[str, float] = {}
        for name, held_out in self.data.held_out.items():
            ids = greedy(
                self.module,
                self._encode([source for source, _ in held_out]),
                suppressed=[self.pad],
                max_tokens=self.context_length - 1,
            )
            translated = self.tokenizer.decode_batch(ids)
            references = [target for _, target in held_out]
            for metric, measure in self.data.metrics.items():
                figures[f"held_out_{name}_{metric}"] = measure(translated, references)
        return figures

    def companions(self, folder: Path) -> None:
        """Write the tokenizer, its special tokens, and the generation defaults."""
        end = str(self.tokenizer.id_to_token(self.end))
        save_tokenizer(
            self.tokenizer,
            folder,
            special_tokens={"eos_token": end, "pad_token": PAD, "unk_token": UNKNOWN},
            max_tokens=self.context_length,
        )
        write_json(
            folder / "generation_config.json",
            {
                "bad_words_ids": [[self.pad]],
                "decoder_start_token_id": self.pad,
                "eos_token_id": self.end,
                "forced_eos_token_id": self.end,
                "max_length": self.context_length,
                "num_beams": 1,
                "pad_token_id": self.pad,
            },
        )

    def figures(self) -> dict[str, object]:
        """Sizes of the data."""
        train_tokens = sum(map(len, self.targets))
        seen = self.recipe.steps * self.recipe.batch_size / len(self.targets)
        return {
            "train_pairs": len(self.targets),
            "train_source_tokens": sum(map(len, self.sources)),
            "train_target_tokens": train_tokens,
            "epochs": seen,
            "target_tokens_seen": round(seen * train_tokens),
            "held_out_pairs": sum(map(len, self.data.held_out.values())),
        }

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the texts, EOS included."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(list(texts))]

    def _batch(self, rows: Sequence[int]) -> Batch:
        targets = [self.targets[row] for row in rows]
        sources, lengths = padded([self.sources[row] for row in rows], self.pad)
        inputs, _ = padded([[self.pad, *target[:-1]] for target in targets], self.pad)
        labels, _ = padded(targets, IGNORED)
        return sources, inputs, lengths, labels


def train_tokenizer(recipe: TokenizerRecipe, learned: Sequence[Pair]) -> Tokenizer:
    """Train one vocabulary for both languages; it appends EOS to every text."""
    end = recipe.end_of_text
    tokenizer = byte_level_bpe(
        (text for pair in learned for text in pair),
        vocab_size=recipe.vocab_size - 1,
        special_tokens=[end, UNKNOWN],
        pieces=recipe.pieces,
    )
    tokenizer.add_special_tokens([PAD])  # after all others
    tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, id_of(tokenizer, end))]
    )
    return tokenizer


def _config(recipe: Recipe, *, vocab_size: int, end: int) -> EncoderDecoderConfig:
    """Config of the recipe's model, with the last id for padding."""
    special = {
        "decoder_start_token_id": vocab_size - 1,
        "eos_token_id": end,
        "forced_eos_token_id": end,
        "pad_token_id": vocab_size - 1,
    }
    values = {"vocab_size": vocab_size, **special, **recipe.model}
    return config_from_hf(values, EncoderDecoderConfig)


def _initialised(config: EncoderDecoderConfig, pad: int) -> EncoderDecoderModel:
    """A new model whose matrices have variance 1/d; the padding row stays zero."""
    module = EncoderDecoderModel(config)
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=config.decoder.hidden_size**-0.5)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    if module.decoder.head_bias is not None:
        module.decoder.head_bias.requires_grad_(False)  # the paper has no such bias
    table = module.decoder.embedding.weight
    is_token = torch.ones(len(table), 1)
    is_token[pad] = 0
    with torch.no_grad():
        table.mul_(is_token)
    table.register_hook(lambda gradient: gradient * is_token)  # type: ignore[no-untyped-call]
    return module
