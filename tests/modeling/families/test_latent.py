"""Decoders with latents: what their configs may not say."""

from typing import Any

import pytest
from tests.tiny.modern import DEEPSEEK_V2, GLM4_MOE_LITE, YOUTU

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "change", "message"),
    [
        (DEEPSEEK_V2, {"topk_method": "group_limited_greedy"}, "topk_method"),
        (DEEPSEEK_V2, {"scoring_func": "sigmoid"}, "scoring_func"),
        (DEEPSEEK_V2, {"norm_topk_prob": True}, "norm_topk_prob"),
        (GLM4_MOE_LITE, {"mlp_layer_types": ["dense", "other"]}, "mlp_layer_types"),
        (YOUTU, {"num_key_value_heads": 1}, "latents need"),
        (YOUTU, {"kv_lora_rank": None}, "kv_lora_rank"),
    ],
)
def test_a_config_that_computes_something_else_is_refused(
    values: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    assert config_from_hf(values).blocks[0].attention.latent is not None
    with pytest.raises(ConfigError, match=message):
        config_from_hf(values | change)


def test_scores_are_warmer_where_positions_are_scaled() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    plain, warm = (
        config_from_hf(YOUTU | {"rope_scaling": rope}).blocks[0].attention.scale
        for rope in (None, scaling)
    )
    # Peng et al. 2023: 0.1 ln(factor) + 1, for queries and for keys.
    assert warm == pytest.approx(plain * 1.1386294**2)
