"""Texts that a model is judged on, as windows of tokens. Knows tokenizers, not engines.

Two kinds: documents that a checkpoint's recipe held out of its training, and windows spread
evenly over any files. Both become windows in each of which some tokens are predicted.
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

LONGEST = 1024  # of a window over held-out documents
CHARACTERS = 8192  # of one file, at most: the largest would be most of the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Documents that the model was not trained on.

    Attributes:
        source: where they come from, as a table says it.
        documents: ids of each; all but the first of each are predicted.
        size_bytes: what the predicted ones are in UTF-8.
        window: how many tokens the model sees at a time, at most.
    """

    source: str
    documents: tuple[tuple[int, ...], ...]
    size_bytes: int
    window: int

    @property
    def predictions(self) -> int:
        """How many tokens there are to predict: all but the first of each document."""
        return sum(len(ids) - 1 for ids in self.documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of a document.

    Attributes:
        ids: what the model sees.
        targets: what follows each of the last `len(targets)` ids.
    """

    ids: tuple[int, ...]
    targets: tuple[int, ...]


def held_out(checkpoint: Path, *, tokens: int) -> Text:
    """Return the beginnings of documents, in random order, until there are `tokens` to predict.

    Args:
        checkpoint: a folder with a recipe; the document before is ended by its special token.
        tokens: to predict, or a few more.
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
    """Return windows whose starts are evenly spaced over the tokens of some files.

    Args:
        checkpoint: a folder with tokenizer.json; no special tokens are added.
        files: in UTF-8, read as one text. Lines of % alone, which separate fortunes, are left out.
        windows: how many.
        window: tokens that the model sees; the one after them is predicted as well.

    Raises:
        ValueError: the files have fewer tokens than one window.
    """
    text = "".join(without_separators(file.read_text(encoding="utf-8")) for file in files)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    encoding = tokenizer.encode(text, add_special_tokens=False)
    last = len(encoding.ids) - (window + 1)
    if last < 0:
        raise ValueError(
            f"--text: expected at least {window + 1} tokens, got {len(encoding.ids)}. "
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
    """Return a file of fortunes without the lines between them."""
    return "".join(line for line in text.splitlines(keepends=True) if line.strip() != "%")


def cut(text: Text) -> Iterator[Window]:
    """Yield windows that overlap by half, so that every token but a first is a target once."""
    size = text.window
    stride = max(size // 2, 1)
    for ids in text.documents:
        for start in range(0, max(len(ids) - 1, 0), stride):
            piece = ids[start : start + size + 1]
            known = 0 if start == 0 else size - stride
            if len(piece) - 1 <= known:
                break
            yield Window(ids=piece[:-1], targets=piece[1 + known :])
