"""Changes tokens of a module over a fixed state: other tokens and rows must not notice.

This confirms with numbers what the graph shows, and covers operators without a rule.

Shape letters: B rows, S tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ortolan.export.locality.stub import CALLS, CutState
from ortolan.export.trace.module import apart
from ortolan.modeling.errors import ConfigError

WORK = 1 << 35
"""Largest cost of a forward, in parameters times tokens."""

NUMBERS = 1 << 25
"""Largest number of logits of a row in memory at once."""

WATCHED = 4
"""Number of tokens that stay the same: the first, the last, and others between."""

RUNS = 2
"""Forwards with other ids for all other tokens, so that many ids are seen."""

CLOSE = 1e-4
"""Largest rounding error, relative to the largest number."""


class _FixedState(CutState):
    """A state whose outputs do not depend on its inputs, and which records those."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Tensor] = []
        self._random = torch.Generator().manual_seed(0)

    def positions(self, ids: Tensor) -> Tensor:
        """From 0 on."""
        return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)

    def _recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Zeros, as at the start of a sequence."""
        return like.new_zeros(like.shape[0], *shape)

    def _keep(self, name: str, value: Tensor) -> None:
        """Record nothing: what is kept comes from many tokens."""

    def _extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Random vectors of the new tokens alone, visible to themselves and later ones."""
        seen = torch.ones(1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
        return self._output("extend", [x], x), seen.tril()

    def _output(self, call: str, inputs: Sequence[Tensor], like: Tensor) -> Tensor:
        token_axis = CALLS[call].inputs[1] or 1
        self.taken += [part.transpose(1, token_axis) for part in inputs[:3]]
        return torch.randn(like.shape, generator=self._random).to(like)


def check_perturbed(
    live: nn.Module, empty: nn.Module, *, vocab_size: int, context: int, joins: bool
) -> None:
    """Refuse a module in which a token or a row notices others although its state is the same.

    Args:
        live: the module with its weights.
        empty: the same module without them, to call.
        vocab_size: number of ids.
        context: tokens that have to fit.
        joins: whether it joins tokens with what it recalled, so that only rows can be checked.
    """
    size = sum(parameter.numel() for parameter in live.parameters())
    tokens = min(context, WORK // max(size, 1), NUMBERS // vocab_size)
    if tokens < 2:
        return
    random = torch.Generator().manual_seed(0)
    watched = torch.linspace(0, tokens - 1, min(WATCHED, tokens)).long()
    weights: dict[str, Tensor] = dict(live.named_parameters())
    order = torch.randperm(vocab_size, generator=random).repeat(-(-RUNS * tokens // vocab_size))
    for others in order[: RUNS * tokens].reshape(RUNS, tokens):
        # The base repeats one id, so every other id appears only where tokens are changed.
        base = others[:1].repeat(2, tokens)
        changed = others.index_copy(0, watched, base[0, watched])
        before = _taken(empty, weights, base)
        after = _taken(empty, weights, torch.stack([base[0], others]))
        _compare(empty, before, after, torch.arange(tokens), "rows")
        if not joins:
            after = _taken(empty, weights, torch.stack([changed, base[1]]))
            _compare(empty, before, after, watched, "tokens")


def _taken(module: nn.Module, weights: dict[str, Tensor], ids: Tensor) -> list[Tensor]:
    """The inputs of the state in a forward, and the logits, each `(B, S, ...)`."""
    device = next((weight.device for weight in weights.values()), torch.device("cpu"))
    state = _FixedState()
    with torch.no_grad():
        logits: Tensor = functional_call(apart(module), weights, (ids.to(device), state))
    return [*state.taken, logits]


def _compare(
    module: nn.Module,
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    watched: Tensor,
    others: str,
) -> None:
    """Refuse a module whose watched tokens in the first row have changed."""
    for old, new in zip(before, after, strict=True):
        if old.dim() < 2 or old.shape[1] <= int(watched.max()):
            continue
        places = watched.to(old.device)
        old, new = (part[:1].index_select(1, places).float() for part in (old, new))
        if not torch.allclose(old, new, rtol=0, atol=CLOSE * max(1.0, float(old.abs().max()))):
            raise ConfigError(
                f"{type(module).__name__}: a token changes when other {others} change, although "
                "its state is the same. Only the state may look at them; the graph does not show "
                "which operator does."
            )
