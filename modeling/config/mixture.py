"""A mixture of experts as data."""

from dataclasses import dataclass
from typing import Literal

from ortolan.modeling.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig:
    """Gated layers, "experts", of which a router gives each token to a few (Shazeer et al. 2017).

    An expert computes `down(g * sigmoid(alpha * g) * (u + beta))` of g, its gate, which is at
    most `limit`, and u, its up, which is between `-limit` and `limit`. The defaults make it the
    common `down(silu(gate(x)) * up(x))`.

    Attributes:
        experts: how many.
        per_token: how many each token is given to: those of the highest scores. The sum of what
            they give is weighted by these scores.
        intermediate_size: of each expert.
        score: of the router's logits. `softmax` is over all experts. `sparsemixer` chooses two,
            one after the other, each by a softmax over those that are close to the best (Liu et
            al. 2023).
        jitter: of `sparsemixer`: close is a relative distance of at most twice this.
        normalised: the weights of a token sum to 1. With `softmax` this is the softmax over the
            chosen ones alone.
        scale: multiplies the weights.
        selection_bias: a trained number of each expert is added to its score where experts are
            chosen, not where they are weighted (Wang et al. 2024, "Loss-Free Balancing").
        groups: of experts next to each other. Only those of the best groups are chosen, which
            are those whose two best have the highest sum.
        groups_per_token: how many.
        router_bias: of the router's logits.
        expert_bias: of gate, up and down.
        alpha: in the sigmoid of the gate.
        beta: added to up.
        limit: of gate and up; None for none.
        shared_size: of one more expert that every token is given to; None without one.
        shared_gate: a number between 0 and 1, from the token, multiplies what that one gives.
    """

    experts: int
    per_token: int
    intermediate_size: int
    score: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    jitter: float = 0.0
    normalised: bool = True
    scale: float = 1.0
    selection_bias: bool = False
    groups: int = 1
    groups_per_token: int = 1
    router_bias: bool = False
    expert_bias: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    limit: float | None = None
    shared_size: int | None = None
    shared_gate: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.experts or self.intermediate_size < 1:
            raise ConfigError(
                f"mixture: expected experts of at least one channel, and 1 to {self.experts} of "
                f"them for each token, got {self.intermediate_size} channels and "
                f"{self.per_token}. Check num_experts_per_tok and moe_intermediate_size."
            )
        if self.score == "sparsemixer" and self.per_token != 2:
            raise ConfigError(
                f"mixture: expected two experts for each token where they are chosen by "
                f"sparsemixer, got {self.per_token}. Check num_experts_per_tok."
            )
        self._check_groups()

    def _check_groups(self) -> None:
        size, rest = divmod(self.experts, max(self.groups, 1))
        reached = self.groups_per_token * size
        if self.groups < 1 or rest or not 1 <= self.groups_per_token <= self.groups:
            raise ConfigError(
                f"mixture: expected {self.experts} experts in equal groups, and at least one of "
                f"these for each token, got {self.groups} and {self.groups_per_token}. "
                "Check n_group and topk_group."
            )
        if self.groups > 1 and (size < 2 or reached < self.per_token):
            raise ConfigError(
                f"mixture: expected groups of at least two experts, and {self.per_token} experts "
                f"in those that are chosen, got {size} and {reached}. "
                "Check n_group and topk_group."
            )
