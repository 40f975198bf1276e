"""Mixtures of experts with latents: DeepSeek V2 and V3 (2024), GLM 4.7 Flash (2026).

V2 chooses experts by a softmax, and is read where it chooses among all of them.
"""

from collections.abc import Container

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.experts import read_mixture, read_sigmoid_mixture, with_experts
from ortolan.modeling.families.latent import LatentFamily, latent_like, latent_weights
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.sigmoid_mixtures import SIGMOID_WEIGHTS
from ortolan.modeling.weights import Table


def _weights(config: DecoderConfig) -> Table:
    """Published names to ours; layers after the last one predict further tokens, to draft with."""
    experts = {name: target for name, target in SIGMOID_WEIGHTS.items() if ".mlp." in name}
    return {**latent_weights(config), **experts, f"model.layers.{len(config.blocks)}.*": None}


def _latent_mixture(hf: ConfigReader, model_type: str, dense: Container[int]) -> DecoderConfig:
    interleaved = hf.get("rope_interleave", bool, True)
    made = latent_like(hf, model_type=model_type, interleaved=interleaved, eps=1e-6, tied=False)
    return with_experts(made, read_sigmoid_mixture(hf), dense=dense)


def _deepseek_v2(hf: ConfigReader) -> DecoderConfig:
    for key, only in (("topk_method", "greedy"), ("scoring_func", "softmax")):
        if hf.get(key, str, only) != only:
            raise ConfigError(
                f"{hf.name}: expected {key} {only}, got {hf.get(key, str, only)!r:.40}. "
                "This checkpoint cannot be loaded faithfully."
            )
    # transformers would not normalise, the original does.
    hf.refuse("norm_topk_prob")
    hf.skip("n_group", "topk_group", "moe_layer_freq", "ep_size", "aux_loss_alpha", "seq_aux")
    made = latent_like(hf, model_type="deepseek_v2", interleaved=True, eps=1e-6, tied=False)
    shared = hf.get("n_shared_experts", int, 2) * hf.size("moe_intermediate_size")
    mixture = read_mixture(
        hf,
        count="n_routed_experts",
        normalised=False,
        scale=hf.get("routed_scaling_factor", float, 1.0),
        shared_size=shared or None,
    )
    return with_experts(made, mixture, dense=range(hf.get("first_k_dense_replace", int, 0)))


def _deepseek_v3(hf: ConfigReader) -> DecoderConfig:
    hf.skip("moe_layer_freq")
    return _latent_mixture(hf, "deepseek_v3", range(hf.get("first_k_dense_replace", int, 3)))


def _glm4_moe_lite(hf: ConfigReader) -> DecoderConfig:
    # The list of kinds says it, and without it the first layer is the one.
    hf.skip("first_k_dense_replace")
    kinds = hf.get("mlp_layer_types", list, ["dense"])
    if not set(map(str, kinds)) <= {"dense", "sparse"}:
        raise ConfigError(
            f"{hf.name}: expected mlp_layer_types to hold dense or sparse, got {kinds!r:.80}. "
            "This checkpoint cannot be loaded faithfully."
        )
    dense = {i for i, kind in enumerate(kinds) if kind == "dense"}
    return _latent_mixture(hf, "glm4_moe_lite", dense)


DEEPSEEK_V2 = LatentFamily(config=_deepseek_v2, WEIGHTS=_weights)
DEEPSEEK_V3 = LatentFamily(config=_deepseek_v3, WEIGHTS=_weights)
GLM4_MOE_LITE = LatentFamily(config=_glm4_moe_lite, WEIGHTS=_weights)
