import numpy as np
import pytest

from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.generation.constraints import Constraints

BOTH = Constraints(first=5, last=2)


@pytest.mark.parametrize(
    ("constraints", "index", "limit", "expected"),
    [
        (BOTH, 0, 4, 5),
        (BOTH, 1, 4, None),
        (BOTH, 3, 4, 2),
        (BOTH, 0, 1, 2),
        (Constraints(), 0, 1, None),
        (Constraints(first=0, last=0), 0, 9, 0),
    ],
)
def test_the_first_and_the_last_token_are_forced(
    constraints: Constraints, index: int, limit: int, expected: int | None
) -> None:
    assert constraints.forced(index, limit) == expected


def test_suppressed_tokens_of_a_manifest_cannot_be_chosen() -> None:
    tokens = Tokens(forced_first=1, forced_last=2, suppressed=(0, 3))
    constraints = Constraints.of(tokens)
    logits = np.ones((2, 5), np.float32)
    constraints.suppress(logits)
    assert np.isneginf(logits).nonzero()[1].tolist() == [0, 3, 0, 3]
    assert (constraints.first, constraints.last) == (1, 2)
