"""Quality of translations, and a baseline without a model."""

from collections.abc import Sequence

import numpy as np
from sacrebleu import corpus_bleu
from sklearn.feature_extraction.text import TfidfVectorizer


def bleu(translated: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU with one reference, 0 to 100 (Post 2018: sacrebleu with its defaults)."""
    return float(corpus_bleu(list(translated), [list(references)]).score)


def nearest_translations(
    known: Sequence[tuple[str, str]], sources: Sequence[str], *, at_once: int = 50
) -> list[str]:
    """Baseline: for each source, the translation of the most similar training source.

    Similarity is the cosine of TF-IDF vectors of words and word pairs. To limit memory, `at_once`
    sources are compared together.
    """
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+", dtype=np.float32)
    table = vectorizer.fit_transform([source for source, _ in known]).T.tocsr()
    translations: list[str] = []
    for start in range(0, len(sources), at_once):
        rows = vectorizer.transform(sources[start : start + at_once])
        nearest = (rows @ table).toarray().argmax(axis=1)
        translations.extend(known[index][1] for index in nearest)
    return translations
