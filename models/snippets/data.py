"""Pieces of the source of Python's standard library, for pre-training and for classification."""

from ortolan.modeling.training import LabelledTexts, Texts
from ortolan.modeling.training.tasks.text_classification import accuracies

from .baseline import tfidf_guesses
from .snippets import PACKAGES, Snippets, names_package, read_snippets


def read_texts(*, exclude: tuple[str, ...] = (), seed: int = 0) -> Texts:
    """Whole files; none of them has a held-out snippet."""
    found = read_snippets(exclude=exclude, seed=seed)
    return Texts(train=found.texts, held_out=found.held_out_texts)


def read_labelled(*, exclude: tuple[str, ...] = (), seed: int = 0) -> LabelledTexts:
    """Snippets, and the package that each of them comes from."""
    found = read_snippets(exclude=exclude, seed=seed)
    train, held_out = (
        [(snippet.text, snippet.label) for snippet in part]
        for part in (found.train, found.held_out)
    )
    return LabelledTexts(
        labels=PACKAGES,
        train=train,
        held_out=held_out,
        unlabelled=found.texts,
        figures=lambda: figures(found),
    )


def figures(found: Snippets) -> dict[str, object]:
    """Counts of files, and what TF-IDF with logistic regression reaches."""
    train, held_out = found.train, found.held_out
    labels = [snippet.label for snippet in held_out]
    baseline = accuracies(labels, tfidf_guesses(train, held_out).tolist())
    return {
        "train_files": len({snippet.file for snippet in train}),
        "held_out_files": len({snippet.file for snippet in held_out}),
        "held_out_snippets_naming_their_package": sum(map(names_package, held_out)) / len(held_out),
        **{f"tfidf_{name}": value for name, value in baseline.items()},
    }
