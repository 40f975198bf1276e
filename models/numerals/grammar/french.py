"""French numbers, dates, times and prices, in words.

Spelled as before the reform of 1990: hyphens only below one hundred.
"""

import re
from functools import cache

from num2words import num2words

MONTHS = (
    "janvier",
    "février",
    "mars",
    "avril",
    "mai",
    "juin",
    "juillet",
    "août",
    "septembre",
    "octobre",
    "novembre",
    "décembre",
)

WEEKDAYS = ("lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche")

# Vowels, and the words with a mute h in these sentences; `huit` and `onze` are not elided.
_ELIDED = re.compile(
    r"\b([jdlJDL])e (?!onze)(?=[aeiouàâéèêëîïôùûœAEIOUÉ]|h(?:abit|eure|omme|ôtel))"
)


@cache
def _below_thousand(number: int) -> str:
    return str(num2words(number, lang="fr"))


def cardinal(number: int, *, feminine: bool = False) -> str:
    """A number from 0 to a million: `quatre-vingts`, `deux cents`, `vingt et une`."""
    if number == 1_000_000:
        return "un million"
    thousands, rest = divmod(number, 1000)
    # `vingt` and `cent` lose their s before `mille`: deux cent mille.
    words = [numbered(thousands), "mille"] if thousands > 1 else ["mille"] * thousands
    if rest or not thousands:
        words.append(_below_thousand(rest))
    text = " ".join(words)
    return f"{text}e" if feminine and text.endswith("un") else text


def numbered(number: int) -> str:
    """A number used as a label: page deux cent, l'an mille neuf cent quatre-vingt."""
    text = cardinal(number)
    return text.removesuffix("s") if text.endswith(("cents", "vingts")) else text


@cache
def ordinal(number: int, *, feminine: bool = False) -> str:
    """Premier, première, deuxième, ... quatre-vingtième, vingt et unième."""
    if number == 1:
        return "première" if feminine else "premier"
    text = numbered(number)
    if text.endswith(("cent", "vingt")):
        # The library keeps the plural s.
        return f"{text}ième"
    return str(num2words(number, lang="fr", to="ordinal"))


def counted(number: int, one: str, many: str, *, feminine: bool = False) -> str:
    """A counted noun: `une pomme`, `zéro pomme`, `un million de pommes`."""
    words = cardinal(number, feminine=feminine)
    if number == 1_000_000:
        words += " de"
    return f"{words} {one if number < 2 else many}"


def date(day: int, month: int, of_year: int | None) -> str:
    """A date without its article: `premier mai deux mille vingt`."""
    spoken = "premier" if day == 1 else cardinal(day)
    year = f" {numbered(of_year)}" if of_year else ""
    return f"{spoken} {MONTHS[month - 1]}{year}"


def clock(hour: int, minute: int) -> str:
    """A time on a 24-hour clock: `dix-sept heures trente`, `vingt et une heures`, `midi`."""
    if minute == 0 and hour in (0, 12):
        return "minuit" if hour == 0 else "midi"
    hours = counted(hour, "heure", "heures", feminine=True)
    return f"{hours} {cardinal(minute, feminine=True)}" if minute else hours


def spoken_clock(hour: int, minute: int) -> str:
    """A colloquial time: `trois heures et demie`, `quatre heures moins le quart`.

    The hour is 1 to 11, neither noon nor midnight.
    """
    start = hour if minute <= 30 else hour + 1
    hours = "midi" if start == 12 else counted(start, "heure", "heures", feminine=True)
    if minute <= 30:
        tail = {0: "", 15: " et quart", 30: " et demie"}.get(
            minute, f" {cardinal(minute, feminine=True)}"
        )
    else:
        left = 60 - minute
        tail = " moins le quart" if left == 15 else f" moins {cardinal(left, feminine=True)}"
    return hours + tail


def elided(text: str) -> str:
    """Elide: `je habite` to `j'habite`, `de avril` to `d'avril`."""
    return _ELIDED.sub(r"\1'", text)
