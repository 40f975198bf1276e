"""Random values for the slots of a clause, in both languages at once."""

from collections.abc import Callable

from . import english, french
from .draw import LARGEST, Draw
from .vocabulary import (
    BUILDINGS,
    CITIES,
    EVENTS,
    NAMES,
    NOUNS,
    ROOMS,
    STREETS,
    THINGS,
    VEHICLES,
    Noun,
    Wording,
)

Slot = Callable[[Draw], Wording]

MOST_TERM = 1000

_SIGNS = (("plus", "plus"), ("minus", "moins"), ("times", "fois"))


def _counted(draw: Draw, noun: Noun, number: int) -> Wording:
    """A counted noun."""
    written = english.cardinal(number, draw.style(number))
    return Wording(
        f"{written} {noun.english if number == 1 else noun.english_plural}",
        french.counted(number, noun.french, noun.french_plural, feminine=noun.feminine),
    )


def _measure(noun: Noun, least: int, most: int) -> Slot:
    return lambda draw: _counted(draw, noun, draw.number(least, most))


def _ordinal(least: int, most: int, *, feminine: bool = False) -> Slot:
    def slot(draw: Draw) -> Wording:
        number = draw.number(least, most)
        return Wording(
            english.ordinal(number, draw.of(("words", "digits"))),
            french.ordinal(number, feminine=feminine),
        )

    return slot


def _one_of(choices: tuple[Wording, ...]) -> Slot:
    return lambda draw: draw.of(choices)


def _count(draw: Draw) -> Wording:
    return _counted(draw, draw.of(NOUNS), draw.number(1, LARGEST))


def _things(draw: Draw) -> Wording:
    """A count above one, after `there are`."""
    return _counted(draw, draw.of(NOUNS), draw.number(2, LARGEST))


def _number(draw: Draw) -> Wording:
    number = draw.number(0, LARGEST)
    return Wording(english.cardinal(number, draw.style(number)), french.cardinal(number))


def _page(draw: Draw) -> Wording:
    number = draw.number(1, 999)
    return Wording(english.cardinal(number, draw.style(number)), french.numbered(number))


def _address(draw: Draw) -> Wording:
    number, street = draw.number(1, 200), draw.of(STREETS)
    return Wording(
        f"{english.cardinal(number, draw.style(number))} {street.english}",
        f"{french.numbered(number)}, {street.french}",
    )


def _percent(draw: Draw) -> Wording:
    number = draw.number(1, 100)
    style = draw.style(number)
    sign = "%" if style != "words" and draw.of((True, False)) else " percent"
    return Wording(
        f"{english.cardinal(number, style)}{sign}", f"{french.cardinal(number)} pour cent"
    )


def _degrees(draw: Draw) -> Wording:
    below = draw.rng.random() < 0.3
    size = _counted(draw, Noun("degree", "degrees", "degré", "degrés", False), draw.number(0, 45))
    return Wording(f"minus {size.english}", f"moins {size.french}") if below else size


def _sum(draw: Draw) -> Wording:
    sign, signe = draw.of(_SIGNS)
    if sign == "times":
        first, second = draw.number(2, 99), draw.number(2, 99)
        total = first * second
    else:
        first, second = draw.number(1, MOST_TERM), draw.number(1, MOST_TERM)
        first = draw.note(first + second) if sign == "minus" else first
        total = first - second if sign == "minus" else first + second
    draw.note(total)
    style = draw.style(total)
    terms = [english.cardinal(number, style) for number in (first, second, total)]
    termes = [french.cardinal(number) for number in (first, second, total)]
    return Wording(
        f"{terms[0]} {sign} {terms[1]} is {terms[2]}",
        f"{termes[0]} {signe} {termes[1]} font {termes[2]}",
    )


_EURO = Noun("euro", "euros", "euro", "euros", False)
_DOLLAR = Noun("dollar", "dollars", "dollar", "dollars", False)
_POUND = Noun("pound", "pounds", "livre sterling", "livres sterling", True)
_CURRENCIES = ((_EURO, "€"), (_EURO, "€"), (_DOLLAR, "$"), (_POUND, "£"))


def _price(draw: Draw) -> Wording:
    """A price, one in four with cents: `€12.50`, `douze euros et cinquante centimes`."""
    currency, sign = draw.of(_CURRENCIES)
    number = draw.number(1, LARGEST)
    style = draw.style(number)
    cents = draw.number(1, 99) if number < 1000 and draw.rng.random() < 0.4 else 0
    spoken = french.counted(
        number, currency.french, currency.french_plural, feminine=currency.feminine
    )
    if cents:
        small = "penny" if currency is _POUND else "centime"
        smalls = "pence" if currency is _POUND else "centimes"
        spoken += f" et {french.counted(cents, small, smalls)}"
    if style != "words" and draw.rng.random() < 0.7:
        tail = f".{cents:02}" if cents else ""
        return Wording(f"{sign}{english.cardinal(number, style)}{tail}", spoken)
    written = english.cardinal(number, style)
    written += f" {currency.english if number == 1 else currency.english_plural}"
    if cents:
        small, smalls = ("penny", "pence") if currency is _POUND else ("cent", "cents")
        written += f" and {english.cardinal(cents, style)} {small if cents == 1 else smalls}"
    return Wording(written, spoken)


def _time(draw: Draw) -> Wording:
    form = draw.of(("24", "24", "12", "words", "spoken", "name"))
    if form == "name" and draw.rng.random() < 0.3:
        return draw.of((Wording("noon", "midi"), Wording("midnight", "minuit")))
    if form in ("spoken", "name"):
        hour, minute = draw.number(1, 11), 5 * draw.rng.randrange(12)
        return Wording(english.spoken_clock(hour, minute), french.spoken_clock(hour, minute))
    hour = draw.number(0, 23)
    minute = 0 if draw.rng.random() < 0.2 else draw.number(0, 59)
    written = english.clock(hour, minute, form="24" if form == "24" else "12")
    if form == "words":
        written = english.clock(hour, minute, form="words")
    return Wording(written, french.clock(hour, minute))


def _date(draw: Draw) -> Wording:
    """A date; half have a year, a quarter a weekday."""
    month = draw.rng.randint(1, 12)
    day = draw.number(1, 30 if month in (4, 6, 9, 11) else 28 if month == 2 else 31)
    year = draw.number(1800, 2050) if draw.rng.random() < 0.5 else None
    written = None if year is None else english.year(year, draw.of(("digits", "digits", "words")))
    form = draw.rng.randrange(english.DATE_FORMS)
    dated = Wording(english.date(day, month, written, form=form), french.date(day, month, year))
    if draw.rng.random() < 0.75:
        return dated
    weekday = draw.rng.randrange(7)
    return Wording(
        f"{english.WEEKDAYS[weekday]}, {dated.english}",
        f"{french.WEEKDAYS[weekday]} {dated.french}",
    )


def _year(draw: Draw) -> Wording:
    year = draw.number(1800, 2050)
    return Wording(
        english.year(year, draw.of(("digits", "digits", "words"))), french.numbered(year)
    )


SLOTS: dict[str, Slot] = {
    "ADDRESS": _address,
    "AGE": _measure(Noun("year", "years", "an", "ans", False), 1, 110),
    "BUILDING": _one_of(BUILDINGS),
    "CENTIMETRES": _measure(
        Noun("centimetre", "centimetres", "centimètre", "centimètres", False), 50, 210
    ),
    "CENTURY": _ordinal(2, 21),
    "CITY": _one_of(CITIES),
    "COUNT": _count,
    "DATE": _date,
    "DEGREES": _degrees,
    "EVENT": _one_of(EVENTS),
    "FLOOR": _ordinal(1, 60),
    "KILOMETRES": _measure(
        Noun("kilometre", "kilometres", "kilomètre", "kilomètres", False), 1, 9999
    ),
    "KILOS": _measure(Noun("kilo", "kilos", "kilo", "kilos", False), 2, 250),
    "MINUTES": _measure(Noun("minute", "minutes", "minute", "minutes", True), 1, 300),
    "NAME": _one_of(tuple(Wording(name, name) for name in NAMES)),
    "NUMBER": _number,
    "PAGE": _page,
    "PAGES": _measure(Noun("page", "pages", "page", "pages", True), 1, 2000),
    "PEOPLE": _measure(
        Noun("inhabitant", "inhabitants", "habitant", "habitants", False), 100, LARGEST
    ),
    "PERCENT": _percent,
    "PLACE": _ordinal(1, 200, feminine=True),
    "PRICE": _price,
    "ROOM": _one_of(ROOMS),
    "SUM": _sum,
    "THING": _one_of(THINGS),
    "THINGS": _things,
    "TIME": _time,
    "VEHICLE": _one_of(VEHICLES),
    "YEAR": _year,
}
"""Slots by their names in clauses."""
