"""Words and clauses of the sentences, which `words.toml` and `clauses.toml` list."""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple


class Wording(NamedTuple):
    """A phrase in both languages."""

    english: str
    french: str


class Noun(NamedTuple):
    """A countable noun; its gender is `m` or `f`."""

    english: str
    english_plural: str
    french: str
    french_plural: str
    gender: str


class Subject(NamedTuple):
    """Subject of a clause, as `words.toml` describes it."""

    english: str
    french: str
    person: int
    pronoun: str
    french_pronoun: str
    ending: str | None = None


class Clause(NamedTuple):
    """A clause in both languages, and names of the additions that may follow."""

    english: str
    french: str
    additions: str = ""


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / name).read_text("utf-8"))


WORDS = _read("words.toml")

_CLAUSES = _read("clauses.toml")

PERSONAL, GENDERED, IMPERSONAL = (
    {name: Clause(*texts) for name, texts in _CLAUSES["clauses"][kind].items()}
    for kind in ("personal", "gendered", "impersonal")
)

CLAUSES = PERSONAL | GENDERED | IMPERSONAL

ADDITIONS = {name: Wording(*texts) for name, texts in _CLAUSES["additions"].items()}

JOINED = _CLAUSES["joined"]["clauses"].split()

JOINERS = {name: Wording(*texts) for name, texts in _CLAUSES["joined"]["joiners"].items()}

HELD_OUT = frozenset(name for names in _CLAUSES["held_out"].values() for name in names)
"""Names of templates that training never sees."""

SUBJECTS = [Subject(*subject) for subject in WORDS["subjects"]]

NOUNS = [
    Noun(*(*line.split(), gender[0]))
    for gender, table in WORDS["nouns"].items()
    for line in table.strip().splitlines()
]
