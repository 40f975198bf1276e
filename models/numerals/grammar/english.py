"""English numbers, dates, times and prices, in words or in digits."""

from functools import cache
from typing import Literal

from num2words import num2words

Style = Literal["words", "digits", "grouped"]
"""`grouped` separates thousands with a comma."""

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@cache
def _below_thousand(number: int) -> str:
    return str(num2words(number, lang="en"))


def cardinal(number: int, style: Style = "words") -> str:
    """A number from 0 to a million."""
    if style == "digits":
        return str(number)
    if style == "grouped":
        return f"{number:,}"
    if number == 1_000_000:
        return "one million"
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _below_thousand(rest)
    head = f"{_below_thousand(thousands)} thousand"
    if not rest:
        return head
    return (
        f"{head} and {_below_thousand(rest)}"
        if rest < 100
        else (f"{head}, {_below_thousand(rest)}")
    )


@cache
def ordinal(number: int, style: Style = "words") -> str:
    """First, second, ... or 1st, 2nd, ..."""
    kind = "ordinal" if style == "words" else "ordinal_num"
    return str(num2words(number, lang="en", to=kind))


@cache
def year(number: int, style: Style = "words") -> str:
    """A year in spoken form, or its digits."""
    return str(num2words(number, lang="en", to="year")) if style == "words" else str(number)


def date(day: int, month: int, of_year: str | None, *, form: int) -> str:
    """A date in one of six forms; `month` is 1 to 12."""
    name = MONTHS[month - 1]
    comma, plain = (f", {of_year}", f" {of_year}") if of_year else ("", "")
    return (
        f"{name} {day}{comma}",
        f"{name} {ordinal(day, 'digits')}{comma}",
        f"{day} {name}{plain}",
        f"the {ordinal(day, 'digits')} of {name}{plain}",
        f"the {ordinal(day)} of {name}{plain}",
        f"{name} {ordinal(day)}{comma}",
    )[form]


DATE_FORMS = 6


def clock(hour: int, minute: int, *, form: Literal["24", "12", "words"]) -> str:
    """A time of day: 17:30, 5:30 p.m., five thirty p.m."""
    if form == "24":
        return f"{hour}:{minute:02}"
    half = "a.m." if hour < 12 else "p.m."
    hour_12 = (hour - 1) % 12 + 1
    if form == "12":
        return f"{hour_12}:{minute:02} {half}" if minute else f"{hour_12} {half}"
    spoken = cardinal(hour_12)
    if minute:
        spoken += f" oh {cardinal(minute)}" if minute < 10 else f" {cardinal(minute)}"
    return f"{spoken} {half}"


def spoken_clock(hour: int, minute: int) -> str:
    """Half past three, a quarter to four, ten past five, six o'clock; `hour` is 1 to 11."""
    if minute == 0:
        return f"{cardinal(hour)} o'clock"
    past, start = (True, hour) if minute <= 30 else (False, hour + 1)
    count = minute if past else 60 - minute
    words = {15: "a quarter", 30: "half"}.get(count, cardinal(count))
    return f"{words} {'past' if past else 'to'} {cardinal(start)}"
