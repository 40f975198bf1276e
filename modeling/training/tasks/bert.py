"""Shared by the tasks of BERT-like encoders: special tokens, the tokenizer, initial weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from tokenizers import Tokenizer, processors
from torch import nn

from ortolan.modeling.config import SinusoidalPositions
from ortolan.modeling.layers.positions import sinusoidal_table
from ortolan.modeling.models.encoder import EncoderModel
from ortolan.modeling.training.recipe import TokenizerRecipe
from ortolan.modeling.training.tasks.task import initialise
from ortolan.modeling.training.tokenizer import byte_level_bpe, save_tokenizer

PAD, UNKNOWN, START, END, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD_ID, UNKNOWN_ID, START_ID, END_ID, MASK_ID = range(len(SPECIAL))


def initialise_bert(module: EncoderModel) -> None:
    """Random weights from which a small post-norm encoder soon learns to attend by position.

    Matrices keep the variance of their input: with the customary standard deviation of 0.02,
    attention to neighbours starts thousands of steps later. The learned positions begin as the
    sinusoids of Vaswani et al. (2017), in which the same distance looks the same everywhere.
    """
    config = module.config
    std = config.hidden_size**-0.5
    initialise(module, layers=len(config.blocks), std=std)
    table = cast(nn.Embedding, module.position_embedding).weight
    rows, width = table.shape
    sinusoids = sinusoidal_table(rows, width, SinusoidalPositions())
    with torch.no_grad():
        # Sines and cosines have a mean square of a half.
        table.copy_(sinusoids * (std * 2**0.5))


def bert_tokenizer(recipe: TokenizerRecipe, texts: Sequence[str]) -> Tokenizer:
    """A byte-level BPE that puts `[CLS]` and `[SEP]` around a text."""
    tokenizer = byte_level_bpe(
        texts, vocab_size=recipe.vocab_size, special_tokens=SPECIAL, pieces=recipe.pieces
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}",
        pair=f"{START} $A {END} $B {END}",
        special_tokens=[(START, START_ID), (END, END_ID)],
    )
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_tokens: int) -> None:
    """Write the tokenizer and its special tokens."""
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special = dict(zip(names, SPECIAL, strict=True))
    save_tokenizer(tokenizer, folder, special_tokens=special, max_tokens=max_tokens)
