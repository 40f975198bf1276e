"""models/numerals: numbers, dates, times and prices in two languages, and the hold-out."""

import random
import re
from collections.abc import Callable
from functools import cache, partial

import pytest
from num2words import num2words

from numerals.data import read
from numerals.grammar import english, french
from numerals.grammar.clauses import (
    ADDITIONS,
    GENDERED,
    HELD_OUT,
    IMPERSONAL,
    PERSONAL,
)
from numerals.grammar.draw import Draw, is_held_out
from numerals.grammar.sentences import make, sentences, templates
from numerals.grammar.slots import SLOTS
from numerals.grammar.vocabulary import SUBJECTS, THINGS
from ortolan.modeling.training.data import Pairs

NUMBERS = (
    *range(1101),
    *random.Random(0).sample(range(1_000_000), 500),
    *(80_000, 80_080, 200_000, 200_200, 999_999, 1_000_000),
)


# --- French --------------------------------------------------------------------------------------


def test_cardinals_are_those_of_the_library() -> None:
    for number in NUMBERS:
        assert french.cardinal(number) == num2words(number, lang="fr")
        assert english.cardinal(number) == num2words(number, lang="en")


FRENCH: list[tuple[Callable[..., str], tuple[object, ...], str]] = [
    *(
        (partial(french.cardinal, feminine=True), (number,), expected)
        for number, expected in {
            21: "vingt et une",
            71: "soixante et onze",
            80: "quatre-vingts",
            201: "deux cent une",
            21_000: "vingt et un mille",
        }.items()
    ),
    *(
        (french.ordinal, (number,), expected)
        for number, expected in {
            1: "premier",
            5: "cinquième",
            9: "neuvième",
            21: "vingt et unième",
            80: "quatre-vingtième",
            200: "deux centième",
        }.items()
    ),
    # Only the first has a feminine.
    (partial(french.ordinal, feminine=True), (1,), "première"),
    (partial(french.ordinal, feminine=True), (21,), "vingt et unième"),
    # A number used as an ordinal takes no s.
    (french.numbered, (80,), "quatre-vingt"),
    (french.numbered, (200,), "deux cent"),
    (french.numbered, (1980,), "mille neuf cent quatre-vingt"),
    (partial(french.counted, feminine=True), (1, "étoile", "étoiles"), "une étoile"),
    (partial(french.counted, feminine=True), (21, "étoile", "étoiles"), "vingt et une étoiles"),
    (partial(french.counted, feminine=True), (1_000_000, "b", "bs"), "un million de bs"),
    (french.elided, ("je habite à Orléans",), "j'habite à Orléans"),
    (french.elided, ("Je ai un million de étoiles",), "J'ai un million d'étoiles"),
    (french.elided, ("besoin de une pomme",), "besoin d'une pomme"),
    (french.elided, ("un million de habitants",), "un million d'habitants"),
    *(
        (french.elided, (text,), text)
        for text in ("besoin de onze pommes", "besoin de huit pommes", "elle part")
    ),
    (french.date, (1, 5, None), "premier mai"),
    (french.date, (11, 4, None), "onze avril"),
    (french.date, (14, 7, 1789), "quatorze juillet mille sept cent quatre-vingt-neuf"),
    (french.clock, (0, 0), "minuit"),
    (french.clock, (0, 15), "zéro heure quinze"),
    (french.clock, (1, 1), "une heure une"),
    (french.clock, (12, 0), "midi"),
    (french.clock, (12, 30), "douze heures trente"),
    (french.clock, (21, 41), "vingt et une heures quarante et une"),
]


@pytest.mark.parametrize(("function", "arguments", "expected"), FRENCH)
def test_french(function: Callable[..., str], arguments: tuple[object, ...], expected: str) -> None:
    assert function(*arguments) == expected


@pytest.mark.parametrize(
    ("hour", "minute", "said", "dit"),
    [
        (3, 0, "three o'clock", "trois heures"),
        (3, 15, "a quarter past three", "trois heures et quart"),
        (3, 30, "half past three", "trois heures et demie"),
        (3, 45, "a quarter to four", "quatre heures moins le quart"),
        (3, 50, "ten to four", "quatre heures moins dix"),
        (1, 5, "five past one", "une heure cinq"),
        (11, 40, "twenty to twelve", "midi moins vingt"),
    ],
)
def test_times_of_conversation(hour: int, minute: int, said: str, dit: str) -> None:
    assert english.spoken_clock(hour, minute) == said
    assert french.spoken_clock(hour, minute) == dit


# --- English -------------------------------------------------------------------------------------


def test_cardinals_in_digits() -> None:
    assert english.cardinal(12345, "digits") == "12345"
    assert english.cardinal(12345, "grouped") == "12,345"


@pytest.mark.parametrize(
    ("hour", "minute", "expected"),
    [
        (0, 5, ("0:05", "12:05 a.m.", "twelve oh five a.m.")),
        (9, 0, ("9:00", "9 a.m.", "nine a.m.")),
        (12, 30, ("12:30", "12:30 p.m.", "twelve thirty p.m.")),
        (17, 45, ("17:45", "5:45 p.m.", "five forty-five p.m.")),
    ],
)
def test_times_in_english(hour: int, minute: int, expected: tuple[str, str, str]) -> None:
    written = (
        english.clock(hour, minute, form="24"),
        english.clock(hour, minute, form="12"),
        english.clock(hour, minute, form="words"),
    )
    assert written == expected


def test_dates_in_english() -> None:
    assert [english.date(1, 5, "2021", form=form) for form in range(english.DATE_FORMS)] == [
        "May 1, 2021",
        "May 1st, 2021",
        "1 May 2021",
        "the 1st of May 2021",
        "the first of May 2021",
        "May first, 2021",
    ]
    assert english.date(1, 5, None, form=0) == "May 1"


# --- sentences -----------------------------------------------------------------------------------


class Fixed(random.Random):
    """Returns numbers of a list, then the smallest; and the first choice that `choose` accepts."""

    def __init__(self, *numbers: int, choose: Callable[[str], bool] = lambda _: False) -> None:
        super().__init__(0)
        self.numbers, self.choose = list(numbers), choose

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return next((item for item in seq if self.choose(repr(item))), seq[0])

    def randint(self, a: int, b: int) -> int:
        return self.numbers.pop(0) if self.numbers else a

    def random(self) -> float:
        return 0.9


def said(name: str, *numbers: int, of: str = "'I'") -> tuple[str, str]:
    draw = Draw(rng=Fixed(*numbers, choose=lambda item: of in item))
    return make(name, draw).pair


@pytest.mark.parametrize(
    ("name", "numbers", "of", "source", "target"),
    [
        ("live", (), "'I'", "I live in Paris.", "J'habite à Paris."),
        ("age", (1,), "'she'", "She is 1 year old.", "Elle a un an."),
        ("age", (80,), "'we'", "We are 80 years old.", "Nous avons quatre-vingts ans."),
        ("have", (21,), "'you'", "You have 21 apples.", "Vous avez vingt et une pommes."),
        ("need", (1,), "'they'", "They need 1 apple.", "Ils ont besoin d'une pomme."),
        ("rise:day", (7,), "'I'", "I get up at 7:00 every day.", None),
        (
            "age and live",
            (30,),
            "my sister",
            "My sister is 30 years old and she lives in Paris.",
            "Ma sœur a trente ans et elle habite à Paris.",
        ),
        (
            "page",
            (80,),
            "'I'",
            "Open the book at page 80.",
            "Ouvrez le livre à la page quatre-vingt.",
        ),
        ("finished", (1,), "'I'", None, "J'ai terminé à la première place."),
        ("paid", (2,), "'I'", None, "J'ai payé deux euros pour la pomme."),
        ("number", (342,), "'I'", "342", "trois cent quarante-deux"),
    ],
)
def test_sentences(
    name: str, numbers: tuple[int, ...], of: str, source: str | None, target: str | None
) -> None:
    pair = said(name, *numbers, of=of)
    assert source is None or pair[0] == source
    assert target is None or pair[1] == target


@pytest.mark.parametrize(
    ("of", "english_verb", "french_verb"),
    [("'he'", "was", "né"), ("'she'", "was", "née"), ("my parents", "were", "nés")],
)
def test_a_participle_agrees(of: str, english_verb: str, french_verb: str) -> None:
    source, target = said("born", 1999, of=of)
    assert f" {english_verb} born in 1999" in source
    assert f" {french_verb} en mille neuf cent quatre-vingt-dix-neuf" in target


def test_french_needs_no_gender_that_english_leaves_open() -> None:
    rng = random.Random(0)
    sources = [make("born", Draw(rng=rng)).pair[0] for _ in range(200)]
    assert not any(re.match(r"(I|You|We) ", source) for source in sources)


def test_an_article_is_elided_before_a_vowel() -> None:
    articles = dict(THINGS)
    assert articles["the orange"] == "l'orange"
    assert articles["the key"] == "la clé"
    assert articles["the egg"] == "l'œuf"
    assert articles["the hat"] == "le chapeau"


def test_every_verb_has_a_form_for_every_person() -> None:
    for clause in (PERSONAL | GENDERED).values():
        for forms in re.findall(r"\[([^]]*)\]", clause.french):
            assert len(forms.split("|")) == 5
        for forms in re.findall(r"\[([^]]*)\]", clause.english):
            assert len(forms.split("|")) in (2, 5)
    assert {subject.person for subject in SUBJECTS} == set(range(5))


def test_both_languages_have_the_same_slots_in_the_same_order() -> None:
    clauses = (PERSONAL | GENDERED | IMPERSONAL).values()
    for source, target in [clause[:2] for clause in clauses] + list(ADDITIONS.values()):
        names = [[slot for slot in re.findall(r"\{(\w+)\}", text) if slot in SLOTS]
                 for text in (source, target)]  # fmt: skip
        assert names[0] == names[1]


# --- hold-out ------------------------------------------------------------------------------------


@cache
def corpus() -> Pairs:
    return read(pairs=4000, held_out=500, seed=3)


def test_the_corpus_is_reproducible() -> None:
    again = read(pairs=4000, held_out=500, seed=3)
    assert (again.train, again.held_out) == (corpus().train, corpus().held_out)
    assert [len(part) for part in (corpus().train, corpus().held_out["numbers"])] == [4000, 500]
    assert len(set(corpus().held_out["templates"])) == 500
    fewer = read(pairs=100, held_out=50, seed=3)
    assert fewer.train == corpus().train[:100]
    assert read(pairs=100, held_out=50, seed=4).train != fewer.train


def test_no_training_sentence_is_held_out() -> None:
    sources = {source for source, _ in corpus().train}
    for held_out in corpus().held_out.values():
        assert not sources & {source for source, _ in held_out}


def test_a_tenth_of_the_numbers_above_20_is_held_out() -> None:
    assert not any(map(is_held_out, range(21)))
    assert 0.05 < sum(map(is_held_out, range(21, 100))) / 79 < 0.25
    assert 0.09 < sum(map(is_held_out, range(100, 10_100))) / 10_000 < 0.11


def test_training_never_sees_a_held_out_number() -> None:
    """Reads the numbers from the digits of the text."""
    for source, _ in corpus().train:
        # Only numbers with nothing around them: 0:07 and £12.50 are two, 12,345 is one.
        for text in re.findall(r"(?<![\d:.,])\d+(?:,\d{3})?(?![\d:.,]*\d)", source):
            assert not is_held_out(int(text.replace(",", ""))), source


def test_sentences_of_held_out_numbers_contain_one() -> None:
    generated = sentences("x", templates()[0], lambda _: True, held_out=True)
    taken = [next(generated) for _ in range(500)]
    share = sum(any(map(is_held_out, sentence.numbers)) for sentence in taken) / len(taken)
    assert share > 0.8  # some templates have no number above 20
    for source, target in corpus().held_out["numbers"]:
        assert source != target


def test_held_out_templates_are_whole_templates() -> None:
    trained, held_out = templates()
    assert set(held_out) == HELD_OUT
    assert not set(trained) & HELD_OUT
    generated = sentences("x", held_out, lambda _: True)
    assert {next(generated).template for _ in range(2000)} == HELD_OUT


def test_training_has_every_word_of_held_out_templates() -> None:
    data = read(pairs=20_000, held_out=500)
    for side in (0, 1):
        known = {word for pair in data.train for word in re.findall(r"[^\W\d]+", pair[side])}
        needed = {
            word
            for pair in data.held_out["templates"]
            for word in re.findall(r"[^\W\d]+", pair[side])
        }
        assert needed <= known
