"""Random values for the slots of a clause, in both languages at once."""

from collections.abc import Callable

from .draw import LARGEST, Draw
from .spelling import (
    DATE_FORMS,
    clock,
    counted,
    date,
    english,
    french,
    label,
    ordinal,
    spoken_clock,
    year,
)
from .words import NOUNS, WORDS, Noun, Wording

Slot = Callable[[Draw], Wording]

MOST_TERM = 1000


def _counted(noun: Noun, least: int, most: int) -> Slot:
    def slot(draw: Draw) -> Wording:
        number = draw.number(least, most)
        return counted(number, noun, draw.style(number))

    return slot


def _ordinal(least: int, most: int, gender: str) -> Slot:
    def slot(draw: Draw) -> Wording:
        number = draw.number(least, most)
        return ordinal(number, draw.of(("words", "digits")), gender)

    return slot


def _one_of(choices: list[list[str]]) -> Slot:
    return lambda draw: Wording(*draw.of(choices))


def _thing(draw: Draw) -> Wording:
    """A noun with a definite article."""
    noun = draw.of(NOUNS)
    article = "l'" if noun.french[0] in "aeoœ" else ("la " if noun.gender == "f" else "le ")
    return Wording(f"the {noun.english}", f"{article}{noun.french}")


def _number(draw: Draw) -> Wording:
    number = draw.number(0, LARGEST)
    return Wording(english(number, draw.style(number)), french(number))


def _page(draw: Draw) -> Wording:
    number = draw.number(1, 999)
    return Wording(english(number, draw.style(number)), label(number))


def _address(draw: Draw) -> Wording:
    number, (street, rue) = draw.number(1, 200), draw.of(WORDS["one_of"]["STREET"])
    return Wording(f"{english(number, draw.style(number))} {street}", f"{label(number)}, {rue}")


def _percent(draw: Draw) -> Wording:
    number = draw.number(1, 100)
    style = draw.style(number)
    sign = "%" if style != "words" and draw.of((True, False)) else " percent"
    return Wording(f"{english(number, style)}{sign}", f"{french(number)} pour cent")


def _degrees(draw: Draw) -> Wording:
    below = draw.rng.random() < 0.3
    size = _counted(Noun(*WORDS["degree"]), 0, 45)(draw)
    return Wording(f"minus {size.english}", f"moins {size.french}") if below else size


def _sum(draw: Draw) -> Wording:
    sign, signe = draw.of(WORDS["signs"])
    if sign == "times":
        first, second = draw.number(2, 99), draw.number(2, 99)
        total = first * second
    else:
        first, second = draw.number(1, MOST_TERM), draw.number(1, MOST_TERM)
        first = draw.note(first + second) if sign == "minus" else first
        total = first - second if sign == "minus" else first + second
    style = draw.style(draw.note(total))
    in_english = [english(number, style) for number in (first, second, total)]
    in_french = [french(number) for number in (first, second, total)]
    return Wording(
        "{} {sign} {} is {}".format(*in_english, sign=sign),
        "{} {sign} {} font {}".format(*in_french, sign=signe),
    )


def _price(draw: Draw) -> Wording:
    """A price, one in four with cents: `€12.50`, `douze euros et cinquante centimes`."""
    sign, unit, hundredth = draw.of(WORDS["currencies"])
    number = draw.number(1, LARGEST)
    style = draw.style(number)
    cents = draw.number(1, 99) if number < 1000 and draw.rng.random() < 0.4 else 0
    said = counted(number, Noun(*unit), style)
    if cents:
        small = counted(cents, Noun(*hundredth), style)
        said = Wording(f"{said.english} and {small.english}", f"{said.french} et {small.french}")
    if style != "words" and draw.rng.random() < 0.7:
        tail = f".{cents:02}" if cents else ""
        return Wording(f"{sign}{english(number, style)}{tail}", said.french)
    return said


def _time(draw: Draw) -> Wording:
    form = draw.of(("24", "24", "12", "words", "spoken", "name"))
    if form == "name" and draw.rng.random() < 0.3:
        return draw.of((Wording("noon", "midi"), Wording("midnight", "minuit")))
    if form in ("spoken", "name"):
        return spoken_clock(draw.number(1, 11), 5 * draw.rng.randrange(12))
    hour = draw.number(0, 23)
    minute = 0 if draw.rng.random() < 0.2 else draw.number(0, 59)
    return clock(hour, minute, "24" if form == "24" else "12" if form == "12" else "words")


def _date(draw: Draw) -> Wording:
    """A date; half have a year, a quarter a weekday."""
    month = draw.rng.randint(1, 12)
    day = draw.number(1, 30 if month in (4, 6, 9, 11) else 28 if month == 2 else 31)
    of_year = _year(draw) if draw.rng.random() < 0.5 else None
    dated = date(day, month, of_year, form=draw.rng.randrange(DATE_FORMS))
    if draw.rng.random() < 0.75:
        return dated
    weekday, jour = WORDS["weekdays"][draw.rng.randrange(7)]
    return Wording(f"{weekday}, {dated.english}", f"{jour} {dated.french}")


def _year(draw: Draw) -> Wording:
    number = draw.number(1800, 2050)
    return year(number, draw.of(("digits", "digits", "words")))


SLOTS: dict[str, Slot] = {
    **{name: _one_of(choices) for name, choices in WORDS["one_of"].items()},
    **{name: _counted(Noun(*noun), *span) for name, (noun, *span) in WORDS["counted"].items()},
    **{name: _ordinal(*span) for name, span in WORDS["ordinal"].items()},
    "ADDRESS": _address,
    "COUNT": lambda draw: _counted(draw.of(NOUNS), 1, LARGEST)(draw),
    "DATE": _date,
    "DEGREES": _degrees,
    "NUMBER": _number,
    "PAGE": _page,
    "PERCENT": _percent,
    "PRICE": _price,
    "SUM": _sum,
    "THING": _thing,
    # above one, after `there are`
    "THINGS": lambda draw: _counted(draw.of(NOUNS), 2, LARGEST)(draw),
    "TIME": _time,
    "YEAR": _year,
}
"""Slots by their names in clauses."""
