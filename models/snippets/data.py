"""Source of Python's standard library, for pretraining and for classification."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.multiclass import OneVsRestClassifier

from ortolan.modeling.training import LabelledTexts, Texts
from ortolan.modeling.training.tasks.text_classification import accuracies

from .snippets import PACKAGES, Snippet, Snippets, names_package, read_snippets

STRENGTHS = (10.0, 100.0, 300.0)
"""Regularization strengths to try (scikit-learn's C)."""

FOLDS = 3

WORDS = r"[A-Za-z_]\w*|\d+|[^\w\s]"
"""Names, numbers and punctuation of Python."""


def read_texts(*, exclude: tuple[str, ...] = (), seed: int = 0) -> Texts:
    """Whole files; held-out files contain the held-out snippets."""
    snippets = read_snippets(exclude=exclude, seed=seed)
    return Texts(train=snippets.texts, held_out=snippets.held_out_texts)


def read_labelled(*, exclude: tuple[str, ...] = (), seed: int = 0) -> LabelledTexts:
    """Snippets and their packages."""
    snippets = read_snippets(exclude=exclude, seed=seed)
    train, held_out = (
        [(snippet.text, snippet.label) for snippet in part]
        for part in (snippets.train, snippets.held_out)
    )
    return LabelledTexts(
        labels=PACKAGES,
        train=train,
        held_out=held_out,
        unlabelled=snippets.texts,
        figures=lambda: figures(snippets),
    )


def figures(snippets: Snippets) -> dict[str, object]:
    """Numbers of files, and the accuracy of TF-IDF with logistic regression."""
    train, held_out = snippets.train, snippets.held_out
    labels = [snippet.label for snippet in held_out]
    baseline = accuracies(labels, tfidf_guesses(train, held_out).tolist())
    return {
        "train_files": len({snippet.file for snippet in train}),
        "held_out_files": len({snippet.file for snippet in held_out}),
        "held_out_snippets_naming_their_package": sum(map(names_package, held_out)) / len(held_out),
        **{f"tfidf_{name}": value for name, value in baseline.items()},
    }


def tfidf_guesses(train: Sequence[Snippet], held_out: Sequence[Snippet]) -> NDArray[np.int64]:
    """Predict the labels of held-out snippets by logistic regression on TF-IDF.

    Features are words and word pairs, with logarithmic counts. Cross-validation over the files of
    `train` chooses the regularization strength.
    """
    vectors = TfidfVectorizer(
        token_pattern=WORDS, lowercase=False, ngram_range=(1, 2), min_df=2, sublinear_tf=True
    )
    inputs = vectors.fit_transform([snippet.text for snippet in train])
    search = GridSearchCV(
        # One model per label against the rest: much faster on this many columns.
        OneVsRestClassifier(
            LogisticRegression(
                solver="liblinear",
                dual=True,
                class_weight="balanced",
                max_iter=3000,
                tol=1e-2,
                random_state=0,
            )
        ),
        {"estimator__C": STRENGTHS},
        cv=GroupKFold(FOLDS),
    )
    search.fit(
        inputs,
        [snippet.label for snippet in train],
        groups=[snippet.file for snippet in train],
    )
    guesses = search.predict(vectors.transform([snippet.text for snippet in held_out]))
    return np.asarray(guesses, np.int64)
