"""Runs a module with its real state: in one call, with changed tokens, and in several calls.

The bundle's proof would reject the same modules, but only by how far the logits differ.

Shape letters: B rows, S tokens.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ortolan.export.locality.calls import called, close, own_copy
from ortolan.export.locality.perturbation import WORK
from ortolan.export.trace.module import Carried
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.state import CachedState

TOKENS = 16
"""Tokens of a sequence."""

CLOSE = 1e-3
"""Largest rounding error of float32 in several calls, relative to the largest number."""

SAME = 1e-5
"""The same between calls of one shape."""

ROUNDINGS = 64
"""The same for other types, in units of their last place."""


def check_steps(live: nn.Module, carried: Carried, *, vocab_size: int, context: int) -> None:
    """Refuse a module that computes something else when its tokens arrive in several calls.

    1. Change one token: tokens before it, and other rows, must not change.
    2. Split the sequence: logits and states must be the same as in one call.

    Args:
        live: the module with its weights.
        carried: its states.
        vocab_size: number of ids.
        context: tokens that have to fit.
    """
    size = sum(parameter.numel() for parameter in live.parameters())
    tokens = min(context, TOKENS)
    if tokens < 2 or tokens * size > WORK or vocab_size < 2:
        return
    name, module = type(live).__name__, own_copy(live)
    dtype = next((p.dtype for p in live.parameters() if p.is_floating_point()), torch.float32)
    tolerance = max(CLOSE, 0.0 if dtype == torch.float32 else ROUNDINGS * torch.finfo(dtype).eps)
    random = torch.Generator().manual_seed(1)
    ids, others = torch.randint(vocab_size, (2, 1, tokens), generator=random)
    others = torch.where(others == ids, (others + 1) % vocab_size, others)
    _check_changes(name, module, ids, others, tolerance * SAME / CLOSE)
    _check_split(name, module, carried, ids, tolerance)


def _check_changes(
    name: str, module: nn.Module, ids: Tensor, others: Tensor, tolerance: float
) -> None:
    """Change all tokens of another row, then each token of a row."""
    alone = called(module, ids.expand(2, -1))[0]
    if not close(alone, called(module, torch.cat([ids, others]))[0], tolerance):
        raise ConfigError(
            f"{name}: the first row of a batch changes when the second does. Rows must not affect "
            "each other: are axes swapped (the state expects the batch first), or is there a mean "
            "or norm over the batch?"
        )
    count = ids.shape[1]
    changed = torch.where(torch.eye(count, dtype=torch.bool), others, ids)  # row t changes token t
    alone, logits = called(module, ids.expand(count, -1))[0], called(module, changed)
    for token in range(count - 1, 0, -1):
        for place in range(token):
            if not close(alone[place], logits[token, place], tolerance):
                raise ConfigError(
                    f"{name}: position {place} changes when token {token} changes. A token must "
                    "not see later ones. Does attention lack its causal mask? Apply the mask that "
                    "state.extend returns, or use state.attend."
                )


def _check_split(
    name: str, module: nn.Module, carried: Carried, ids: Tensor, tolerance: float
) -> None:
    """Compare one call with several, of one token each or in two parts."""
    tokens = ids.shape[1]
    whole = called(module, ids)
    once, kept = _continued(module, carried, ids, [tokens])
    splits = [[1] * tokens]
    if not carried.takes_one:
        splits += [[tokens // 2, tokens - tokens // 2], [1, tokens - 1]]
    for sizes in splits:
        logits, states = _continued(module, carried, ids, sizes)
        calls = f"{len(sizes)} calls instead of one"
        for state, value in kept.items():
            if not close(value.float(), states[state].float(), tolerance):
                raise ConfigError(
                    f"{name}: state {state!r} differs after {tokens} tokens in {calls}: it counts "
                    "or weighs calls, not tokens. Keep only what follows from the tokens so far, "
                    "such as `n + ids.shape[1]` instead of `n + 1`."
                )
        for place in range(tokens):
            for expected in (whole, once):
                if not close(expected[0, place], logits[0, place], tolerance):
                    most = float((expected[0, place] - logits[0, place]).abs().max())
                    raise ConfigError(
                        f"{name}: position {place} differs by {most:.2g} after {tokens} tokens in "
                        f"{calls}. Something crosses tokens that no state carries on: check masks "
                        "and positions, and that every step recalls what the one before it kept."
                    )


def _continued(
    module: nn.Module, carried: Carried, ids: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Logits of ids that arrive in several calls, and the states of fixed size after the last."""
    rows, tokens = ids.shape
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    caches = {
        layer: LayerCache(*like.new_zeros(2, rows, spec.num_kv_heads, tokens, spec.head_dim))
        for layer, spec in carried.layers.items()
    }
    grown = {name: like.new_zeros(rows, tokens, size) for name, size in carried.extended.items()}
    kept = {name: like.new_zeros(rows, *shape) for name, shape in carried.kept.items()}
    logits, done = [], 0
    for size in sizes:
        part, done = ids[:, done : done + size], done + size
        last = torch.full((rows,), done - 1, dtype=torch.int32, device=like.device)
        total = torch.tensor(done, dtype=torch.int32, device=like.device)
        state = CachedState(StepLengths(last, total, done), caches, kept, None, grown)
        logits.append(called(module, part, state=state))
        caches, grown = {**caches, **state.presents}, {**grown, **state.extended}
        kept = {**kept, **state.kept}
    return torch.cat(logits, 1), kept
