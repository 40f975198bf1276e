"""A baseline with scikit-learn."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.multiclass import OneVsRestClassifier

from .snippets import Snippet

STRENGTHS = (10.0, 100.0, 300.0)
"""Regularization strengths to try (scikit-learn's C)."""

FOLDS = 3

WORDS = r"[A-Za-z_]\w*|\d+|[^\w\s]"
"""Names, numbers and punctuation of Python."""


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
