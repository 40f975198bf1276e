"""English sentences with numbers and their French, made by the rules of `grammar`.

Two sets are held out: sentences whose numbers training never sees, and sentences of templates that
it never sees.
"""

from collections.abc import Iterator, Mapping, Sequence

from ortolan.modeling.training import Pair, Pairs, equal_share

from .grammar.draw import is_held_out
from .grammar.sentences import Sentence, sentences, templates
from .quality import bleu, nearest_translations


def read(*, pairs: int, held_out: int = 1000, seed: int = 0) -> Pairs:
    """Make the pairs, the same each time; no pair occurs twice in a set.

    Fewer pairs are the first of more.

    Args:
        pairs: to learn from.
        held_out: pairs of each of the two held-out sets.
        seed: of the sentences.
    """
    seen, unseen = templates()
    train = distinct(sentences(f"train {seed}", seen, _all_known), pairs)
    numbers = sentences(f"numbers {seed}", seen, _any_held_out, held_out=True)
    measured = {
        "numbers": distinct(numbers, held_out),
        "templates": distinct(sentences(f"templates {seed}", unseen, _all_known), held_out),
    }
    return Pairs(
        train=train,
        held_out=measured,
        metrics={"bleu": bleu, "equal": equal_share},
        figures=lambda: baselines(train, measured),
    )


def baselines(train: Sequence[Pair], held_out: Mapping[str, Sequence[Pair]]) -> dict[str, float]:
    """BLEU of the source as it is, and of the translation of the nearest source."""
    figures = {}
    for name, pairs in held_out.items():
        sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
        figures[f"copy_{name}_bleu"] = bleu(sources, references)
        figures[f"nearest_{name}_bleu"] = bleu(nearest_translations(train, sources), references)
    return figures


def distinct(made: Iterator[Sentence], count: int) -> list[Pair]:
    """The first pairs that differ."""
    found: dict[Pair, None] = {}
    while len(found) < count:
        found[next(made).pair] = None
    return list(found)


def _any_held_out(sentence: Sentence) -> bool:
    return any(map(is_held_out, sentence.numbers))


def _all_known(sentence: Sentence) -> bool:
    return not _any_held_out(sentence)
