"""Texts to evaluate a model on, as windows of tokens.

Two kinds: documents that a checkpoint's recipe held out, and windows spread evenly over files. Both
become windows in which some of the tokens are predicted.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from ortolan.modeling.training.data import Texts, read_data
from ortolan.modeling.training.recipe import read_recipe
from ortolan.modeling.training.tokenizer import encode

LONGEST = 1024  # tokens of a window over held-out documents
CHARACTERS = 8192  # limit per file, so that the largest does not dominate


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Documents that the model was not trained on.

    Attributes:
        source: their origin, for tables.
        documents: ids; all but the first of each document are predicted.
        size_bytes: UTF-8 bytes of the predicted tokens.
        window: largest number of tokens the model sees at once.
    """

    source: str
    documents: tuple[tuple[int, ...], ...]
    size_bytes: int
    window: int

    @property
    def predictions(self) -> int:
        """Number of tokens to predict: all but the first of each document."""
        return sum(len(ids) - 1 for ids in self.documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of a document.

    Attributes:
        ids: input of the model.
        targets: tokens that follow the last `len(targets)` ids.
    """

    ids: tuple[int, ...]
    targets: tuple[int, ...]


def held_out(checkpoint: Path, *, tokens: int) -> Text:
    """Beginnings of held-out documents in random order, until there are `tokens` to predict.

    Args:
        checkpoint: folder with a recipe, whose special token separates documents.
        tokens: number of tokens to predict, or a few more.
    """
    recipe = read_recipe(checkpoint / "recipe.toml")
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    special = recipe.required(recipe.tokenizer, "tokenizer").end_of_text
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    texts = list(read_data(recipe, checkpoint, Texts).held_out)
    random.Random(0).shuffle(texts)
    documents: list[tuple[int, ...]] = []
    predictions = size_bytes = 0
    for text in (whole[:CHARACTERS] for whole in texts):
        if predictions >= tokens:
            break
        (ids,) = encode(tokenizer, (text,), special)
        documents.append(tuple(ids))
        predictions += len(ids) - 1
        size_bytes += len(text.encode())
    return Text(
        source=f"the beginnings of {len(documents)} files that training did not see",
        documents=tuple(documents),
        size_bytes=size_bytes,
        window=min(LONGEST, config["max_position_embeddings"]),
    )


def spread(checkpoint: Path, files: Sequence[Path], *, windows: int, window: int) -> Text:
    """Windows whose starts are evenly spaced over the tokens of files.

    Args:
        checkpoint: folder with tokenizer.json; no special tokens are added.
        files: UTF-8 files, read as one text. Lines with only %, which separate fortunes, are
            left out.
        windows: number of windows.
        window: tokens that the model sees; the token after them is predicted too.

    Raises:
        ValueError: the files have fewer tokens than one window.
    """
    text = "".join(without_separators(file.read_text(encoding="utf-8")) for file in files)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    encoding = tokenizer.encode(text, add_special_tokens=False)
    last = len(encoding.ids) - (window + 1)
    if last < 0:
        raise ValueError(
            f"--text: at least {window + 1} tokens are needed, but there are {len(encoding.ids)}. "
            "Name longer files or lower --window."
        )
    starts = [round(n * last / max(windows - 1, 1)) for n in range(windows)]
    # From the end of a window's first token to the end of its last.
    spans = [(encoding.offsets[at][1], encoding.offsets[at + window][1]) for at in starts]
    return Text(
        source=f"{windows} windows spread evenly over {', '.join(file.name for file in files)}",
        documents=tuple(tuple(encoding.ids[at : at + window + 1]) for at in starts),
        size_bytes=sum(len(text[first:end].encode()) for first, end in spans),
        window=window,
    )


def without_separators(text: str) -> str:
    """A file of fortunes without separator lines."""
    return "".join(line for line in text.splitlines(keepends=True) if line.strip() != "%")


def cut(text: Text) -> Iterator[Window]:
    """Yield windows that overlap by half, so that every token but the first is a target once."""
    size = text.window
    stride = max(size // 2, 1)
    for ids in text.documents:
        for start in range(0, max(len(ids) - 1, 0), stride):
            piece = ids[start : start + size + 1]
            skip = 0 if start == 0 else size - stride
            if len(piece) - 1 <= skip:
                break
            yield Window(ids=piece[:-1], targets=piece[1 + skip :])
