"""Masked filling: the most probable tokens in the blanks of a text (Devlin et al. 2019, "BERT").

Shape letters: T tokens of the text, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ortolan.runtime.arguments import checked_count
from ortolan.runtime.bundle.labels import scores_of
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.errors import InputError, TokenizerError, shown
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer

MASKS = ("[MASK]", "<mask>", "<|mask|>")
"""How models write a blank: BERT and its kin, RoBERTa and its kin, EuroBERT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A token for a blank.

    Attributes:
        text: of the token.
        token: its id.
        score: its probability.
    """

    text: str
    token: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Candidates for the blanks of a text.

    Attributes:
        text: with the most probable token in each blank.
        blanks: for each blank its candidates, the most probable first. Each blank is filled as if
            the others stayed blank.
    """

    text: str
    blanks: tuple[tuple[Candidate, ...], ...]


def fill(rows: Rows, text: str, tokenizer: Tokenizer | None, *, top: int) -> Filling:
    """See `Encoder.fill`."""
    rows.expect("logits", what="fill", expected="an encoder with a language model's head")
    if not isinstance(text, str):
        raise InputError(f"fill needs a text with a blank (got {shown(text)}).")
    if tokenizer is None:
        raise no_tokenizer("text")
    top = checked_count("top", top)
    items = rows.items(text, truncate=False)
    (ids,) = [item.value for item in items if isinstance(item.value, list)]
    places = _blanks(ids, tokenizer)
    (logits_TV,) = rows.outputs(items)
    blanks = []
    for place in places:
        scores_V = scores_of(logits_TV[place], "softmax")
        best = np.argsort(-scores_V, kind="stable")[:top].tolist()
        blanks.append(
            tuple(
                Candidate(
                    text=tokenizer.decode([token], skip_special_tokens=False).strip(),
                    token=token,
                    score=float(scores_V[token]),
                )
                for token in best
            )
        )
    chosen = {place: blank[0].token for place, blank in zip(places, blanks, strict=True)}
    whole = [chosen.get(place, token) for place, token in enumerate(ids)]
    return Filling(text=tokenizer.decode(whole), blanks=tuple(blanks))


def _blanks(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Positions of the blanks in a text."""
    masks = {mask: tokenizer.encode(mask, add_special_tokens=False) for mask in MASKS}
    known = {mask: ids[0] for mask, ids in masks.items() if len(ids) == 1}
    mask = next((mask for mask, token in known.items() if tokenizer.text_of(token) == mask), None)
    if mask is None:
        raise TokenizerError(
            f"The tokenizer has no token for blanks, which is one of the tokens "
            f"{', '.join(MASKS)}. Use a model that was trained to fill blanks."
        )
    places = [place for place, token in enumerate(ids) if token == known[mask]]
    if not places:
        raise InputError(f"fill: the text has no blank. Write {mask} where a word is missing.")
    return places
