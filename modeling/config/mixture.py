"""A mixture of experts as data."""

from dataclasses import dataclass
from typing import Literal

from ortolan.modeling.config.base import Config, Size
from ortolan.modeling.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig(Config):
    """Gated MLPs, "experts", of which a router chooses a few for each token (Shazeer et al. 2017).

    With the gate `g`, clipped to at most `limit`, and up `u`, clipped to `-limit` and `limit`, an
    expert computes `down(g * sigmoid(alpha * g) * (u + beta))`. The defaults make it the usual
    `down(silu(gate(x)) * up(x))`.

    Attributes:
        per_token: number of experts with the highest scores, which also weight their outputs.
        score: from the router's logits. `softmax` is over all experts. `sparsemixer` chooses two,
            one after the other, each by a softmax over those close to the best (Liu et al. 2023).
        normalised: the weights of a token add up to 1. With `softmax`, this is the softmax over the
            chosen experts.
        selection_bias: a trained number per expert is added to the scores that choose experts, not
            to those that weight them (Wang et al. 2024, "Loss-Free Balancing").
        groups: groups of adjacent experts. Only experts of the best groups are chosen: those whose
            two best scores have the highest sum.
    """

    experts: Size
    per_token: Size
    intermediate_size: Size  # channels of an expert
    score: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    jitter: float = 0.0  # for `sparsemixer`, half the relative distance that counts as close
    normalised: bool = True
    scale: float = 1.0  # multiplies the weights
    selection_bias: bool = False
    groups: Size = 1
    groups_per_token: Size = 1
    router_bias: bool = False
    expert_bias: bool = False  # of gate, up and down
    alpha: float = 1.0
    beta: float = 0.0
    limit: float | None = None
    shared_size: Size | None = None  # channels of an expert for all tokens, if there is one
    shared_gate: bool = False  # multiply the output of that expert by a sigmoid of the token

    def _check(self) -> None:
        if self.score == "sparsemixer" and self.per_token != 2:
            raise ConfigError(
                f"mixture: sparsemixer chooses two experts per token (got {self.per_token}). "
                "Check num_experts_per_tok."
            )
        size, rest = divmod(self.experts, self.groups)
        if rest or self.groups_per_token > self.groups or (self.groups > 1 and size < 2):
            raise ConfigError(
                f"mixture: {self.experts} experts must be in equal groups of two or more, and a "
                f"token in some of them (got {self.groups_per_token} of {self.groups}). Check "
                "n_group and topk_group."
            )
        if self.per_token > self.groups_per_token * size:
            raise ConfigError(
                f"mixture: a token cannot have {self.per_token} of "
                f"{self.groups_per_token * size} experts. Check num_experts_per_tok, n_group and "
                "topk_group."
            )
