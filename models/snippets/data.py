"""Source of Python's standard library, for pretraining and for classification."""

from ortolan.modeling.training import LabelledTexts, Texts
from ortolan.modeling.training.tasks.text_classification import accuracies

from .baseline import tfidf_guesses
from .snippets import PACKAGES, Snippets, names_package, read_snippets


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
