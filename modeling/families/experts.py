"""What configs and checkpoints of mixtures of experts have in common."""

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Any

from ortolan.modeling.config import DecoderConfig, MixtureConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureFamily:
    """A family that shares its file with others; see `families.Family`."""

    config: Callable[[ConfigReader], DecoderConfig]
    WEIGHTS: Table | Callable[[DecoderConfig], Table]
    BASE_MODEL_PREFIX: str = llama.BASE_MODEL_PREFIX


_OURS = "blocks.{}.feed_forward"

_LAYER = "model.layers.{}."


def router(name: str) -> Table:
    """The row of a router's weight, by its published name in a layer."""
    return {f"{_LAYER}{name}": Target(f"{_OURS}.router.weight")}


def selection_bias(name: str, **fields: Any) -> Table:
    """The row of what is added to the scores that experts are chosen by."""
    return {f"{_LAYER}{name}": Target(f"{_OURS}.selection_bias", **fields)}


def apart(
    place: str, *, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
) -> Table:
    """The rows of experts that are stored one by one, under `place` in a layer."""
    expert = f"{_LAYER}{place}.{{}}."
    return {
        f"{expert}{gate}.weight": Target(f"{_OURS}.experts.gate_up"),
        f"{expert}{up}.weight": Target(f"{_OURS}.experts.gate_up"),
        f"{expert}{down}.weight": Target(f"{_OURS}.experts.down"),
    }


def together(place: str) -> Table:
    """The rows of experts that are stored together, under `place` in a layer."""
    return {
        f"{_LAYER}{place}.gate_up_proj": Target(f"{_OURS}.experts.gate_up", halves=True),
        f"{_LAYER}{place}.down_proj": Target(f"{_OURS}.experts.down"),
    }


def shared(place: str) -> Table:
    """The rows of the expert of all tokens, under `place` in a layer."""
    return {
        f"{_LAYER}{place}.{part}_proj.weight": Target(f"{_OURS}.shared.{part}.weight")
        for part in ("gate", "up", "down")
    }


def with_experts(
    made: DecoderConfig, mixture: MixtureConfig, *, dense: Container[int] = ()
) -> DecoderConfig:
    """A decoder with experts in place of the gated layers, but for some layers.

    Raises:
        ConfigError: its activation is one that experts do not have.
    """
    blocks = []
    for number, block in enumerate(made.blocks):
        if number not in dense:
            if block.dense.activation != "silu":
                raise ConfigError(
                    f"hidden_act: expected silu in experts, got {block.dense.activation}. "
                    "This checkpoint cannot be loaded faithfully."
                )
            block = replace(block, feed_forward=mixture)
        blocks.append(block)
    return replace(made, blocks=tuple(blocks))


def read_mixture(
    hf: ConfigReader,
    *,
    size: str = "moe_intermediate_size",
    count: str = "num_experts",
    per_token: str = "num_experts_per_tok",
    **fields: Any,
) -> MixtureConfig:
    """The mixture that a config describes.

    Args:
        hf: the published config.
        size: the key of the width of an expert.
        count: the key of how many there are, which transformers also writes as
            `num_local_experts`.
        per_token: the key of how many each token is given to.
        fields: the others.
    """
    # Of training.
    hf.skip("output_router_logits", "router_aux_loss_coef", "router_z_loss_coef")
    key = count if count in hf else "num_local_experts"
    return MixtureConfig(
        experts=hf.size(key),
        per_token=hf.size(per_token),
        intermediate_size=hf.size(size),
        **fields,
    )


def read_sigmoid_mixture(
    hf: ConfigReader, *, count: str = "n_routed_experts", shared: str = "n_shared_experts"
) -> MixtureConfig:
    """The mixture of DeepSeek V3 and those after it: sigmoids, a bias that balances, groups.

    Args:
        hf: the published config.
        count: the key of how many experts there are.
        shared: the key of how many of all tokens there are, which are one wider one.

    Raises:
        ConfigError: another way to choose experts.
    """
    for key, only in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if hf.get(key, str, only) not in (only, "noaux_tc"):
            raise ConfigError(
                f"{hf.name}: expected {key} {only}, got {hf.get(key, str, only)!r:.40}. "
                "This checkpoint cannot be loaded faithfully."
            )
    hf.skip("num_nextn_predict_layers", "num_mtp_layers", "ep_size", "aux_loss_alpha", "seq_aux")
    shared_size = hf.get(shared, int, 0) * hf.size("moe_intermediate_size")
    return read_mixture(
        hf,
        count=count,
        score="sigmoid",
        selection_bias=True,
        normalised=hf.get("norm_topk_prob", bool, True),
        scale=hf.get("routed_scaling_factor", float, 1.0),
        groups=hf.size("n_group", 1),
        groups_per_token=hf.size("topk_group", 1),
        shared_size=shared_size or None,
    )
