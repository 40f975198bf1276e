"""Changes tokens of a module whose state gives what it gave before: others must not notice.

This confirms, on numbers, what the graph says, and looks at operators that no rule knows.

Shape letters: B texts, S tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.layers.ops import Heads, Rotary
from ortolan.modeling.state import State

WORK = 1 << 35
"""Parameters times tokens that a forward may cost."""

NUMBERS = 1 << 25
"""Most logits of a text in memory at once."""

WATCHED = 4
"""Tokens that stay as they are: the first, the last, and others between."""

RUNS = 2
"""Forwards in which all other tokens are others, so that many ids are seen."""

CLOSE = 1e-4
"""Largest difference, relative to the largest number, that is rounding."""


class _FixedState(State):
    """A state that gives the same whatever it takes, and notes what that is."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Tensor] = []
        self._random = torch.Generator().manual_seed(0)

    def positions(self, ids: Tensor) -> Tensor:
        """From 0 on."""
        return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)

    def recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Zeros, as at the start of a text."""
        return like.new_zeros(like.shape[0], *shape)

    def keep(self, name: str, value: Tensor) -> None:
        """Nothing: what is kept comes from many tokens."""

    def extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of as many tokens, each to be seen by itself and those after it."""
        seen = torch.ones(1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
        return self._given(x), seen.tril()

    def convolve(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Any vectors."""
        return self._given(x.transpose(1, 2)).transpose(1, 2)

    def recur(
        self,
        name: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        decay: Tensor | None = None,
        rate: Tensor | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """Any vectors."""
        self.taken += [part.transpose(1, 2) for part in (query, key)]
        return self._given(value.transpose(1, 2)).transpose(1, 2)

    def _attend(
        self,
        layer: int,
        heads: Heads,
        rotary: Rotary | None,
        sinks: Tensor | None,
        spec: AttentionConfig,
    ) -> Tensor:
        self.taken += heads[1:]
        return self._given(heads.query)

    def _attend_shared(
        self,
        layer: int,
        query_BSX: Tensor,
        rotary: Rotary | None,
        sinks: Tensor | None,
        spec: AttentionConfig,
    ) -> Tensor:
        return self._given(query_BSX)

    def _given(self, taken_BSX: Tensor) -> Tensor:
        self.taken.append(taken_BSX)
        return torch.randn(taken_BSX.shape, generator=self._random).to(taken_BSX)


def check_perturbed(
    live: nn.Module, empty: nn.Module, *, vocab_size: int, context: int, joins: bool
) -> None:
    """Refuse a module of which a token, or a text, notices others although its state is the same.

    Args:
        live: with its weights.
        empty: the same module to call, without them.
        vocab_size: ids that it knows.
        context: tokens that have to fit.
        joins: it joins tokens with what it recalled, so that only texts are tried.

    Raises:
        ConfigError: one does.
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
        # One id alone, so that any other appears only where tokens are changed.
        base = others[:1].repeat(2, tokens)
        changed = others.index_copy(0, watched, base[0, watched])
        before = _taken(empty, weights, base)
        after = _taken(empty, weights, torch.stack([base[0], others]))
        _compare(empty, before, after, torch.arange(tokens), "texts")
        if not joins:
            after = _taken(empty, weights, torch.stack([changed, base[1]]))
            _compare(empty, before, after, watched, "tokens")


def _taken(module: nn.Module, weights: dict[str, Tensor], ids: Tensor) -> list[Tensor]:
    """What a state takes in a forward, and the logits, `(B, S, ...)` each."""
    device = next((weight.device for weight in weights.values()), torch.device("cpu"))
    state = _FixedState()
    with torch.no_grad():
        logits: Tensor = functional_call(module, weights, (ids.to(device), state))
    return [*state.taken, logits]


def _compare(
    module: nn.Module,
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    watched: Tensor,
    what: str,
) -> None:
    for one, other in zip(before, after, strict=True):
        if one.dim() < 2 or one.shape[1] <= int(watched.max()):
            continue
        places = watched.to(one.device)
        kept, found = (part[:1].index_select(1, places).float() for part in (one, other))
        if not torch.allclose(kept, found, rtol=0, atol=CLOSE * max(1.0, float(kept.abs().max()))):
            raise ConfigError(
                f"{type(module).__name__}: expected each token to be computed alone between calls "
                f"of the state, got other numbers after other {what} were changed. Nothing but the "
                "state may look at them; the operator was not found."
            )
