"""Changes other rows, or other tokens, and says what a token notices of them."""

from typing import Literal

import torch
from torch import Tensor

from ortolan.export.locality.differences import SAME, difference
from ortolan.export.locality.runs import Runs
from ortolan.export.locality.standin import Numbers

Kind = Literal["rows", "tokens", "places"]

PROBLEMS: dict[Kind, tuple[str, str]] = {
    "rows": (
        "mixes the rows of a batch",
        "Every row is computed as if it were alone: reduce over channels instead",
    ),
    "tokens": (
        "reads other tokens than its own",
        "A step of the bundle sees only its new tokens: use state.attend, state.convolve or "
        "state.extend, or continue a sum with state.recall and state.keep",
    ),
    "places": (
        "depends on a token's place in the chunk",
        "A step of the bundle begins anywhere in a sequence: use state.positions(ids)",
    ),
}
"""What is wrong, and what to do."""

SEEDS = 4
"""Attempts: a largest number, say, may happen to be in the row that stays."""


def other_ids(ids: Tensor, vocab_size: int, *, seed: int = 0) -> Tensor:
    """Another id in place of each, if there is one."""
    random = torch.Generator().manual_seed(seed)
    by = torch.randint(max(1, vocab_size - 1), ids.shape, generator=random) + 1
    return (ids + by) % vocab_size


def cause(runs: Runs, ids: Tensor, token: int, vocab_size: int) -> Kind | None:
    """What a token of a text `(1, T)` notices although its state is the same, if it does."""
    numbers, own = Numbers(ids.shape[1]), slice(token, token + 1)
    at_token = torch.arange(ids.shape[1]) == token

    def outputs(text: Tensor, rows: slice, tokens: slice) -> dict[str, Tensor]:
        received = runs.stood_in(text, numbers).outputs
        return {name: x[rows, tokens] for name, x in received.items()}

    for seed in range(SEEDS):
        one, two = (other_ids(ids, vocab_size, seed=seed + other) for other in (0, SEEDS))
        last = slice(1, None), slice(None)
        batches = [outputs(torch.cat([other, ids]), *last) for other in (one, two)]
        if difference(batches[0], batches[1], SAME):
            return "rows"
        alone = outputs(ids, slice(None), own)
        for other in (one, two):
            changed = outputs(torch.where(at_token, ids, other), slice(None), own)
            if difference(alone, changed, SAME):
                return "tokens"
    return None
