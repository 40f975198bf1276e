"""User modules that read other tokens without their state are refused; others are not."""

import re

import pytest
from tests.export.locality.user_modules import (
    DISHONEST,
    HONEST,
    VOCAB,
    Base,
    Dishonest,
    Dispatched,
    FlagWithoutState,
)
from torch import nn

from ortolan.export.locality.check import check_locality
from ortolan.export.locality.perturbation import check_perturbed
from ortolan.export.source.module import without_memory
from ortolan.export.trace.module import find_carried
from ortolan.modeling.errors import ConfigError


def slow_but_first(modules: tuple[type[Base], ...]) -> list[object]:
    return [modules[0], *(pytest.param(module, marks=pytest.mark.slow) for module in modules[1:])]


QUICK = ("a mean over the batch",)


def check(module: nn.Module) -> bool:
    empty = without_memory(module)
    return check_locality(
        empty, context=Base.context_length, takes_one=find_carried(empty).takes_one
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [module.__name__ for module in HONEST])
def test_an_honest_module_is_accepted(name: str) -> None:
    module = next(m for m in HONEST if m.__name__ == name)
    assert check(module()) == (name in ("Summed", "Looped", "Linear", "Rare"))


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DISHONEST],
)
def test_a_module_that_reads_other_tokens_is_refused(name: str) -> None:
    change, expected = DISHONEST[name]
    with pytest.raises(ConfigError) as refused:
        check(Dishonest(change))
    assert re.search(expected, str(refused.value))
    assert "user_modules.py, line " in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", DISHONEST)
def test_it_is_refused_after_attention_too(name: str) -> None:
    with pytest.raises(ConfigError, match=DISHONEST[name][1]):
        check(Dishonest(DISHONEST[name][0], late=True))


@pytest.mark.slow
def test_a_flag_without_a_state_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cumsum in `return x \+ \(x.*` .*line \d+, in after"):
        check(FlagWithoutState())


def perturb(module: nn.Module, *, joins: bool = False) -> None:
    check_perturbed(
        module, without_memory(module), vocab_size=VOCAB, context=Base.context_length, joins=joins
    )


@pytest.mark.parametrize("module", slow_but_first(HONEST))
def test_numbers_accept_an_honest_module(module: type[Base]) -> None:
    name = module.__name__
    if name != "Looped":  # reading hundreds of tokens one by one is slow
        perturb(module(), joins=name in ("Summed", "Linear", "Rare"))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("a flag once token 7 was seen", "tokens"),
        ("600 tokens back", "tokens"),
        ("sorted over the tokens", "tokens"),
        ("a mean over the batch", "rows"),
    ],
)
def test_numbers_alone_show_other_tokens(name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"other {what}"):
        perturb(Dishonest(DISHONEST[name][0], late=True))


@pytest.mark.slow
def test_tokens_dispatched_to_experts_are_left_to_the_numbers() -> None:
    module = without_memory(Dispatched())
    assert not check_locality(module, context=Base.context_length, takes_one=False)
    perturb(Dispatched())
