"""English sentences with numbers and their French, made by rules.

A template is a clause, alone or with additions, or two clauses.
"""

import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from ortolan.modeling.training import Pair

from .clauses import (
    ADDITIONS,
    GENDERED,
    HELD_OUT,
    IMPERSONAL,
    JOINED,
    JOINERS,
    PERSONAL,
)
from .draw import Draw
from .french import elided
from .slots import SLOTS
from .vocabulary import SUBJECTS, Subject, Wording

JOINED_PART = 0.25
"""Of the sentences, those of two clauses."""

NUMBER = "number"
"""The template of a number alone."""

NUMBER_PART = 0.05

WITHOUT_STOP_PART = 0.05
"""Sentences without a full stop, in both languages: not everybody types it."""

_VERB = re.compile(r"\[([^]]*)\]")
_SLOT = re.compile(r"\{([A-Z]+)\}")


class Sentence(NamedTuple):
    """One pair, and what it was made of."""

    pair: Pair
    template: str
    numbers: tuple[int, ...]


@cache
def templates() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the templates of training, and of those held out."""
    clauses = PERSONAL | GENDERED | IMPERSONAL
    single = [
        f"{name}:{additions}" if additions else name
        for name, clause in clauses.items()
        for additions in ("", *clause.additions)
    ]
    joined = [
        f"{first} {joiner} {second}"
        for first in JOINED
        for joiner in JOINERS
        for second in JOINED
        if first != second
    ]
    names = single + joined
    return (
        tuple(name for name in names if name not in HELD_OUT),
        tuple(name for name in names if name in HELD_OUT),
    )


def sentences(
    seed: str,
    names: tuple[str, ...],
    is_wanted: Callable[[Sentence], bool],
    *,
    held_out: bool = False,
) -> Iterator[Sentence]:
    """Yield sentences of some templates without end.

    Args:
        seed: of all choices.
        names: of the templates.
        is_wanted: the others are dropped.
        held_out: take numbers that training never sees, wherever there are any.
    """
    rng = random.Random(seed)
    joined = tuple(name for name in names if " " in name)
    single = tuple(name for name in names if " " not in name)
    while True:
        kind = rng.random()
        name = rng.choice(joined if kind < JOINED_PART else single)
        if kind > 1 - NUMBER_PART and NUMBER in names:
            name = NUMBER
        sentence = make(name, Draw(rng=rng, prefers_held_out=held_out))
        if is_wanted(sentence):
            yield sentence


def make(name: str, draw: Draw) -> Sentence:
    """A sentence of one template."""
    first, *rest = name.split(" ")
    clause, _, additions = first.partition(":")
    subject = _subject(clause, draw)
    said = _clause(clause, additions, subject, draw)
    if rest:
        joiner, second = rest
        again = subject._replace(english=subject.pronoun.english, french=subject.pronoun.french)
        more = _clause(second, "", again, draw)
        and_, et = JOINERS[joiner]
        said = Wording(said.english + and_ + more.english, said.french + et + more.french)
    said = Wording(said.english, elided(said.french))
    if name != NUMBER:
        stop = "" if draw.rng.random() < WITHOUT_STOP_PART else "."
        said = Wording(_finished(said.english, stop), _finished(said.french, stop))
    return Sentence((said.english, said.french), name, tuple(draw.numbers))


def _subject(clause: str, draw: Draw) -> Subject:
    """Who does it; of known gender where French says it."""
    if clause in GENDERED:
        return draw.of([subject for subject in SUBJECTS if subject.ending is not None])
    return draw.of(SUBJECTS)


def _clause(name: str, additions: str, subject: Subject, draw: Draw) -> Wording:
    """A clause with its additions, its subject in front if it has one."""
    clause = (PERSONAL | GENDERED | IMPERSONAL)[name]
    english, french = clause.english, clause.french
    for addition in additions.split("+") if additions else ():
        english, french = english + ADDITIONS[addition][0], french + ADDITIONS[addition][1]
    if name not in IMPERSONAL:
        english, french = f"{subject.english} {english}", f"{subject.french} {french}"
    return _filled(_conjugated(Wording(english, french), subject), draw)


def _conjugated(said: Wording, subject: Subject) -> Wording:
    """Every verb in the form of its subject."""

    def english(verb: re.Match[str]) -> str:
        forms = verb[1].split("|")
        return forms[subject.person if len(forms) == 5 else int(subject.person == 2)]

    was = "was" if subject.person == 2 else "were"
    return Wording(
        _VERB.sub(english, said.english).replace("{WAS}", was),
        _VERB.sub(lambda verb: verb[1].split("|")[subject.person], said.french).replace(
            "{E}", subject.ending or ""
        ),
    )


def _filled(said: Wording, draw: Draw) -> Wording:
    """Every slot with what was drawn for it, in the same order in both languages."""
    drawn = [SLOTS[slot](draw) for slot in _SLOT.findall(said.english)]
    in_french = iter(drawn)
    in_english = iter(drawn)
    return Wording(
        _SLOT.sub(lambda _: next(in_english).english, said.english),
        _SLOT.sub(lambda _: next(in_french).french, said.french),
    )


def _finished(text: str, stop: str) -> str:
    """A sentence: a capital letter first, and a full stop last, which `a.m.` already has."""
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else stop)
