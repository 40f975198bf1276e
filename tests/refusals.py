"""Texts of errors, whole, which a person reviews as snapshots.

A table of calls that must fail is a `dict` of names and calls, and its test is

    @pytest.mark.parametrize("name", REFUSED)
    def test_it_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
        assert refusal(REFUSED[name]) == snapshot

`pytest --snapshot-update FILE` writes the texts to `__snapshots__` beside the test.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ortolan.errors import OrtolanError

T = TypeVar("T")


def named_rows(table: Mapping[str, Sequence[T]]) -> dict[str, tuple[str, T]]:
    """Each change of each case, by both, as far as pytest takes their text as an id."""
    every = [(name, change) for name, changes in table.items() for change in changes]
    named = {f"{name} {change}"[:99]: (name, change) for name, change in every}
    assert len(named) == len(every), "changes whose texts begin alike"
    return named


def refusal(call: Callable[[], object], *hidden: object) -> str:
    """Class and text of the error that a call raises.

    Args:
        call: must raise an `OrtolanError`.
        hidden: texts or paths that differ between runs; in the result they are `...`.

    Raises:
        AssertionError: the call raises nothing.
    """
    try:
        result = call()
    except OrtolanError as error:
        text = f"{type(error).__name__}: {error}"
        for part in hidden:
            text = text.replace(str(part), "...")
        return text
    raise AssertionError(f"expected an error, got {result!r}")
