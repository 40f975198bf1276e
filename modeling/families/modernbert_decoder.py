"""The decoder of ModernBERT, Ettin (Weller et al. 2025): causal, with windows in most layers."""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, HeadLayer, NormConfig
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.gpt_like import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    gpt_block,
    gpt_like,
    named,
)
from ortolan.modeling.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotaries
from ortolan.modeling.weights import Rows, Table, Target

BASE_MODEL_PREFIX = "model"

WEIGHTS: Table = {
    "model.embeddings.tok_embeddings.weight": Target("embedding.weight"),
    **named("model.embeddings.", "", {"norm": "embedding_norm"}),
    **named(
        "model.layers.{}.",
        "blocks.{}.",
        {
            "attn_norm": NORM_1,
            "attn.q_proj": QKV,
            "attn.k_proj": QKV,
            "attn.v_proj": QKV,
            "attn.Wo": OUT,
            "mlp_norm": NORM_2,
            "mlp.Wo": DOWN,
        },
    ),
    **{
        f"model.layers.{{}}.mlp.Wi.{kind}": (
            Target(f"blocks.{{}}.feed_forward.gate.{kind}", rows=Rows(1, 2, -1, ((0, 1),))),
            Target(f"blocks.{{}}.feed_forward.up.{kind}", rows=Rows(1, 2, -1, ((1, 2),))),
        )
        for kind in ("weight", "bias")
    },
    **named("model.", "", {"final_norm": "final_norm"}),
    **named("lm_head.", "head_layer.", {"dense": "dense", "norm": "norm"}),
    "decoder.weight": Target("head.weight"),
    "decoder.bias": Target("head_bias"),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `ModernBertDecoderConfig` of Hugging Face as a `DecoderConfig`."""
    # Keys of the encoder's configs.
    hf.skip("layer_norm_eps", "position_embedding_type", "cls_token_id", "causal_mask", "is_causal")
    hf.skip("embedding_dropout", "mlp_dropout", "classifier_pooling")
    hf.skip("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad")
    hf.skip("sparse_prediction", "sparse_pred_ignore_index")
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    bias, mlp_bias = (hf.get(f"{part}_bias", bool, False) for part in ("attention", "mlp"))
    norm = NormConfig(
        kind="layer", eps=hf.get("norm_eps", float, 1e-5), bias=hf.get("norm_bias", bool, False)
    )
    block = gpt_block(
        width,
        heads=heads,
        intermediate_size=hf.size("intermediate_size"),
        activation=hf.get("hidden_activation", str, "gelu"),
        norm=norm,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=mlp_bias,
    )
    block = replace(block, feed_forward=replace(block.dense, kind="gated"))
    context_length = hf.size("max_position_embeddings")
    rotaries = read_rotaries(
        hf,
        {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)},
        head_dim=width // heads,
        context_length=context_length,
    )
    # transformers writes both keys, and reads the half
    window = hf.size("sliding_window", max(hf.size("local_attention", 128) // 2, 1))
    local = replace(block.attention, sliding_window=window, rotary=rotaries[SLIDING])
    kinds = {FULL: block, SLIDING: replace(block, mixer=local)}
    period = hf.size("global_attn_every_n_layers", 3)
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    named_kinds = read_layer_kinds(hf, [SLIDING if i % period else FULL for i in range(layers)])
    first, *others = (kinds[kind] for kind in named_kinds)
    return gpt_like(
        hf,
        model_type="modernbert-decoder",
        width=width,
        context_length=context_length,
        positions=rotaries[FULL],
        # The embedding's norm is before the first layer.
        blocks=(replace(first, attention_norm=False), *others),
        embedding_norm=norm,
        head_bias=hf.get("decoder_bias", bool, True),
        head_layer=HeadLayer(
            activation=read_activation(hf.get("classifier_activation", str, "gelu")),
            norm=norm,
            bias=hf.get("classifier_bias", bool, False),
        ),
    )
