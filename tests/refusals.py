"""Texts of errors, whole, which a person reviews as snapshots.

A table of calls that must fail is a `dict` of names and calls, and its test is

    @pytest.mark.parametrize("name", REFUSED)
    def test_it_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
        assert refusal(REFUSED[name]) == snapshot

`pytest --snapshot-update FILE` writes the texts to `__snapshots__` beside the test.
"""

from collections.abc import Callable

from ortolan.errors import OrtolanError


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
