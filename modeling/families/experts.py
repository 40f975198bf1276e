"""Shared by mixtures of experts: their configs and checkpoints."""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from ortolan.modeling.config import DecoderConfig, MixtureConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table, Target

_OURS = "blocks.{}.feed_forward"

_LAYER = "model.layers.{}."


def router(name: str) -> Table:
    """The row of a router's weight, by its published name in a layer."""
    return {f"{_LAYER}{name}": Target(f"{_OURS}.router.weight")}


def selection_bias(name: str, **fields: Any) -> Table:
    """The row of what is added to the scores that choose experts."""
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


def together(gate_up: str, down: str) -> Table:
    """The rows of experts that are stored in two tensors, by their published names in a layer."""
    return {
        f"{_LAYER}{gate_up}": Target(f"{_OURS}.experts.gate_up", halves=True),
        f"{_LAYER}{down}": Target(f"{_OURS}.experts.down"),
    }


def shared(place: str) -> Table:
    """The rows of the expert of all tokens, under `place` in a layer."""
    return {
        f"{_LAYER}{place}.{part}_proj.weight": Target(f"{_OURS}.shared.{part}.weight")
        for part in ("gate", "up", "down")
    }


QWEN3_MOE_WEIGHTS: Table = {
    **llama.WEIGHTS,
    **llama.QUERY_KEY_NORMS,
    **router("mlp.gate.weight"),
    **apart("mlp.experts"),
}

MIXTRAL_EXPERTS: Table = {
    **router("block_sparse_moe.gate.weight"),
    **apart("block_sparse_moe.experts", gate="w1", up="w3", down="w2"),
}

SIGMOID_WEIGHTS: Table = {
    **QWEN3_MOE_WEIGHTS,
    **shared("mlp.shared_experts"),
    **selection_bias("mlp.gate.e_score_correction_bias"),
}


def with_experts(
    config: DecoderConfig, mixture: MixtureConfig, *, dense: Container[int] = ()
) -> DecoderConfig:
    """A decoder with experts instead of MLPs, except in the layers of `dense`."""
    blocks = []
    for number, block in enumerate(config.blocks):
        if number not in dense:
            if block.dense.activation != "silu":
                raise ConfigError(
                    f"hidden_act must be silu in experts (got {block.dense.activation}). "
                    "This checkpoint cannot be loaded faithfully."
                )
            block = replace(block, feed_forward=mixture)
        blocks.append(block)
    return replace(config, blocks=tuple(blocks))


def read_mixture(
    hf: ConfigReader,
    *,
    size: str = "moe_intermediate_size",
    count: str = "num_experts",
    per_token: str = "num_experts_per_tok",
    **fields: Any,
) -> MixtureConfig:
    """The mixture that a config describes."""
    # Keys of training.
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
    """The mixture of DeepSeek V3 and its successors: sigmoids, a balancing bias, groups."""
    for key, only in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        check_choice(hf, key, only, "noaux_tc")
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


def check_choice(hf: ConfigReader, key: str, *allowed: str) -> None:
    """Raise ConfigError if experts are chosen in another way; the first is the default."""
    if (value := hf.get(key, str, allowed[0])) not in allowed:
        raise ConfigError(
            f"{hf.name}: {key} must be {allowed[0]} (got {value!r:.40}). "
            "This checkpoint cannot be loaded faithfully."
        )


def read_mlp_kinds(hf: ConfigReader, default: list[str], *, layers: int | None = None) -> set[int]:
    """Numbers of the layers without experts, by `mlp_layer_types`."""
    kinds = hf.get("mlp_layer_types", list, default)
    known = all(kind in ("dense", "sparse") for kind in kinds)
    if not known or (layers is not None and len(kinds) != layers):
        raise ConfigError(
            f"{hf.name}: mlp_layer_types must hold dense or sparse for every layer (got "
            f"{kinds!r:.80}). This checkpoint cannot be loaded faithfully."
        )
    return {number for number, kind in enumerate(kinds) if kind == "dense"}
