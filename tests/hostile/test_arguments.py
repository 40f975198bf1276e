"""Nonsense in any argument of the API is accepted or a typed error, and changes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import nonsense
from tests.hostile import bundles
from tests.hostile.arguments import least_arguments, parameters_of, prompt
from tests.hostile.targets import TARGETS

import ortolan
from ortolan import Grammar
from ortolan.errors import OrtolanError
from ortolan.runtime.errors import shown


def check(where: str, call: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Fail unless a call succeeds or raises a typed error with a text."""
    try:
        call(*args, **kwargs)
    except OrtolanError as error:
        assert str(error), where  # noqa: PT017 - not every value is refused
    except Exception as error:
        raise AssertionError(where) from error


HANDMADE = [kind for kind, target in TARGETS.items() if target.bundle in bundles.HANDMADE]


@pytest.mark.parametrize("kind", HANDMADE)
def test_nonsense_is_accepted_or_a_typed_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # "x" is a path
    target = TARGETS[kind]
    bundles.write(tmp_path, (target.bundle,))
    receiver = target.open(ortolan.load(tmp_path / target.bundle, threads=1))
    expected = target.probe(receiver)
    seen = set[str]()
    for method in dict.fromkeys(target.methods):
        function = getattr(receiver, method)
        kinds, optional = parameters_of(function)
        least = least_arguments(function, prompt)
        for name in kinds.keys() - seen:
            for value in nonsense.ARGUMENTS:
                changed = least | {name: value}
                check(f"{method}({name}={shown(value)})", target.call, receiver, method, changed)
            assert target.probe(receiver) == expected, (method, name)
        seen |= {*optional}
    target.close(receiver)


def test_a_grammar_of_nonsense_is_a_typed_error() -> None:
    for value in nonsense.ARGUMENTS:
        for make in (Grammar, Grammar.regex, Grammar.json_schema, Grammar.lark):
            check(f"{make}", make, value)
