"""Numbers, dates and times: English in words or digits, French in words.

French is spelled as before the reform of 1990: hyphens only below one hundred.
"""

import re
from functools import cache
from typing import Literal

from num2words import num2words

from .words import WORDS, Noun, Wording

Style = Literal["words", "digits", "grouped"]
"""`grouped` separates thousands with a comma."""

MONTHS = [Wording(*month) for month in WORDS["months"]]

DATE_FORMS = 6

# Vowels, and the words with a mute h in these sentences; `huit` and `onze` are not elided.
_ELIDED = re.compile(
    r"\b([jdlJDL])e (?!onze)(?=[aeiouàâéèêëîïôùûœAEIOUÉ]|h(?:abit|eure|omme|ôtel))"
)


@cache
def _spelled(number: int, language: str, kind: str = "cardinal") -> str:
    return str(num2words(number, lang=language, to=kind))


def english(number: int, style: Style = "words") -> str:
    """A number from 0 to a million."""
    if style == "digits":
        return str(number)
    if style == "grouped":
        return f"{number:,}"
    if number == 1_000_000:
        return "one million"
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _spelled(rest, "en")
    head = f"{_spelled(thousands, 'en')} thousand"
    if not rest:
        return head
    return f"{head}{' and' if rest < 100 else ','} {_spelled(rest, 'en')}"


def french(number: int, gender: str = "m") -> str:
    """A number from 0 to a million: `quatre-vingts`, `deux cents`, `vingt et une`."""
    if number == 1_000_000:
        return "un million"
    thousands, rest = divmod(number, 1000)
    # `vingt` and `cent` lose their s before `mille`: deux cent mille.
    words = [label(thousands), "mille"] if thousands > 1 else ["mille"] * thousands
    if rest or not thousands:
        words.append(_spelled(rest, "fr"))
    text = " ".join(words)
    return f"{text}e" if gender == "f" and text.endswith("un") else text


def label(number: int) -> str:
    """A French number used as a label: page deux cent, l'an mille neuf cent quatre-vingt."""
    text = french(number)
    return text.removesuffix("s") if text.endswith(("cents", "vingts")) else text


def counted(number: int, noun: Noun, style: Style = "words") -> Wording:
    """A counted noun: `une pomme`, `zéro pomme`, `un million de pommes`."""
    of = " de" if number == 1_000_000 else ""
    return Wording(
        f"{english(number, style)} {noun.english if number == 1 else noun.english_plural}",
        f"{french(number, noun.gender)}{of} {noun.french if number < 2 else noun.french_plural}",
    )


def ordinal(number: int, style: Style = "words", gender: str = "m") -> Wording:
    """First or 1st; premier, première, deuxième, ... quatre-vingtième, vingt et unième."""
    text = label(number)
    if number == 1:
        text = "première" if gender == "f" else "premier"
    elif text.endswith(("cent", "vingt")):
        text = f"{text}ième"  # the library keeps the plural s
    else:
        text = _spelled(number, "fr", "ordinal")
    return Wording(_spelled(number, "en", "ordinal" if style == "words" else "ordinal_num"), text)


def year(number: int, style: Style) -> Wording:
    """A year, in English as it is spoken or in digits."""
    return Wording(
        _spelled(number, "en", "year") if style == "words" else str(number), label(number)
    )


def date(day: int, month: int, of_year: Wording | None, *, form: int) -> Wording:
    """A date in one of `DATE_FORMS`, in French without its article; `month` is 1 to 12."""
    name, nom = MONTHS[month - 1]
    comma, plain = (f", {of_year.english}", f" {of_year.english}") if of_year else ("", "")
    first, in_digits = ordinal(day).english, ordinal(day, "digits").english
    written = (
        f"{name} {day}{comma}",
        f"{name} {in_digits}{comma}",
        f"{day} {name}{plain}",
        f"the {in_digits} of {name}{plain}",
        f"the {first} of {name}{plain}",
        f"{name} {first}{comma}",
    )[form]
    spoken = f"{'premier' if day == 1 else french(day)} {nom}"
    return Wording(written, f"{spoken} {of_year.french}" if of_year else spoken)


def clock(hour: int, minute: int, form: Literal["24", "12", "words"]) -> Wording:
    """A time of day: 17:30, 5:30 p.m., five thirty p.m.; `vingt et une heures`, `midi`."""
    half, hour_12 = "a.m." if hour < 12 else "p.m.", (hour - 1) % 12 + 1
    match form:
        case "24":
            written = f"{hour}:{minute:02}"
        case "12":
            written = f"{hour_12}:{minute:02} {half}" if minute else f"{hour_12} {half}"
        case "words":
            oh = " oh" if minute < 10 else ""
            spoken = f"{oh} {english(minute)}" if minute else ""
            written = f"{english(hour_12)}{spoken} {half}"
    if minute == 0 and hour in (0, 12):
        return Wording(written, "minuit" if hour == 0 else "midi")
    return Wording(written, f"{_hours(hour)} {french(minute, 'f')}" if minute else _hours(hour))


def spoken_clock(hour: int, minute: int) -> Wording:
    """Half past three, a quarter to four, six o'clock; the hour is 1 to 11.

    `trois heures et demie`, `quatre heures moins le quart`
    """
    if minute == 0:
        return Wording(f"{english(hour)} o'clock", _hours(hour))
    is_past = minute <= 30
    hour, count = (hour, minute) if is_past else (hour + 1, 60 - minute)
    words = {15: "a quarter", 30: "half"}.get(count, english(count))
    tail = {15: "et quart" if is_past else "moins le quart", 30: "et demie"}.get(
        count, f"{'' if is_past else 'moins '}{french(count, 'f')}"
    )
    hours = "midi" if hour == 12 else _hours(hour)
    return Wording(f"{words} {'past' if is_past else 'to'} {english(hour)}", f"{hours} {tail}")


def _hours(hour: int) -> str:
    return counted(hour, Noun("hour", "hours", "heure", "heures", "f")).french


def elided(text: str) -> str:
    """Elide French: `je habite` to `j'habite`, `de avril` to `d'avril`."""
    return _ELIDED.sub(r"\1'", text)
