"""What simple models of scikit-learn reach, to measure ours beside.

Knows arrays, texts and labels. Does not know where they come from.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ortolan.modeling.training.corpora.digits import Digits
from ortolan.modeling.training.corpora.snippets import Snippet

STRENGTHS = (10.0, 100.0, 300.0)
"""Of the regularisation (scikit-learn's C) that are tried."""

FOLDS = 3

WORDS = r"[A-Za-z_]\w*|\d+|[^\w\s]"
"""Names, numbers and signs of Python."""


def logistic_regression_on_pixels(digits: Digits) -> float:
    """The accuracy of multinomial logistic regression on scaled pixels."""
    flat = [part.pixels.reshape(len(part.pixels), -1) for part in (digits.train, digits.held_out)]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    model.fit(flat[0].astype(np.float64), digits.train.labels)
    guesses = model.predict(flat[1].astype(np.float64))
    return float(np.mean(guesses == digits.held_out.labels))


def tfidf_guesses(train: Sequence[Snippet], held_out: Sequence[Snippet]) -> NDArray[np.int64]:
    """What logistic regression on TF-IDF takes the held-out snippets for.

    Single words and pairs count, by the logarithm of how often they occur. The strength of the
    regularisation is chosen by cross-validation over the files of `train`.
    """
    vectors = TfidfVectorizer(
        token_pattern=WORDS, lowercase=False, ngram_range=(1, 2), min_df=2, sublinear_tf=True
    )
    inputs = vectors.fit_transform([snippet.text for snippet in train])
    search = GridSearchCV(
        # One model for each label against the others: much faster on this many columns.
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
