"""English sentences with numbers and their French, made by rules: see `sentences`."""

from ortolan.modeling.training.corpora.numerals.sentences import (
    Corpus,
    Pair,
    make,
    pairs,
    sentences,
    templates,
)

__all__ = ["Corpus", "Pair", "make", "pairs", "sentences", "templates"]
