"""How good translations are, and a baseline without a model."""

from collections.abc import Sequence

import numpy as np
from sacrebleu import corpus_bleu
from sklearn.feature_extraction.text import TfidfVectorizer


def bleu(translated: Sequence[str], references: Sequence[str]) -> float:
    """BLEU of a corpus with one reference each, 0 to 100 (Post 2018: sacrebleu, its defaults)."""
    return float(corpus_bleu(list(translated), [list(references)]).score)


def nearest_translations(
    known: Sequence[tuple[str, str]], sources: Sequence[str], *, at_once: int = 50
) -> list[str]:
    """For each source the translation of the known source nearest to it, a baseline.

    Nearest is the largest cosine of TF-IDF vectors of words and pairs of words.

    Args:
        known: pairs of a source and its translation.
        sources: to look up.
        at_once: sources whose distances to all known ones are in memory together.
    """
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+", dtype=np.float32)
    table = vectorizer.fit_transform([source for source, _ in known]).T.tocsr()
    found: list[str] = []
    for start in range(0, len(sources), at_once):
        rows = vectorizer.transform(sources[start : start + at_once])
        nearest = (rows @ table).toarray().argmax(axis=1)
        found.extend(known[index][1] for index in nearest)
    return found
