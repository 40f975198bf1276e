"""ModernBERT (Warner et al. 2024).

Norms before sublayers, gated MLPs, and windows in most layers.
"""

from dataclasses import replace

from ortolan.modeling.config import (
    DecoderConfig,
    EncoderConfig,
    Head,
    HeadLayer,
    LanguageModelHead,
    Pooling,
    as_encoder,
)
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.classifier import read_head
from ortolan.modeling.families.decoder import DecoderFormat, Keys
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    layers_of,
    read_layer_kinds,
    windows_of,
)
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import read_rotaries
from ortolan.modeling.families.tables import DOWN, NORM_1, NORM_2, OUT, QKV, gate_up, layer, linear
from ortolan.modeling.weights import Table, Target

CONTEXT = 8192

POOLINGS: dict[str, Pooling] = {"cls": "first", "mean": "mean"}

_BODY: Table = {
    "model.embeddings.tok_embeddings.weight": Target("embedding.weight"),
    **linear({"model.embeddings.norm": "embedding_norm", "model.final_norm": "final_norm"}),
    **layer(
        "model.layers.{}.",
        {
            "attn_norm": NORM_1,
            "attn.Wqkv": QKV,
            "attn.Wo": OUT,
            "mlp_norm": NORM_2,
            "mlp.Wo": DOWN,
        },
    ),
    **{
        f"model.layers.{{}}.mlp.Wi.{kind}": gate_up("blocks.{}.feed_forward", kind)
        for kind in ("weight", "bias")
    },
    **linear({"decoder": "head"}, spare=True),
}


def _weights(config: EncoderConfig) -> Table:
    """A layer of the same names is below either head."""
    dense = "transform" if isinstance(config.head, LanguageModelHead) else "dense"
    heads = {"head.dense": f"head.{dense}", "head.norm": "head.norm", "classifier": "head.out"}
    return {**_BODY, **linear(heads, spare=True)}


def _config(hf: ConfigReader) -> EncoderConfig:
    hf.skip("classifier_dropout", "initializer_cutoff_factor")
    # How transformers computed the same faster, and the loss; and keys of BERT.
    hf.skip("embedding_dropout", "mlp_dropout", "cls_token_id", "deterministic_flash_attn")
    hf.skip("reference_compile", "repad_logits_with_grad", "sparse_pred_ignore_index")
    hf.skip("sparse_prediction", "layer_norm_eps", "position_embedding_type")
    hf.require("tie_word_embeddings")
    # Half of the window lies on each side.
    window = hf.size("local_attention", 128) // 2 + 1
    period = hf.size("global_attn_every_n_layers", 3)
    default = [SLIDING if i % period else FULL for i in range(layers_of(hf))]
    kinds = read_layer_kinds(hf, default)
    rotaries = read_rotaries(
        hf,
        {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)},
        head_dim=max(hf.size("hidden_size") // hf.size("num_attention_heads"), 1),
        context_length=hf.size("max_position_embeddings", CONTEXT),
    )
    config = DecoderFormat(
        keys=Keys(kv_heads=None, head_dim=None, activation="hidden_activation", eps="norm_eps"),
        bias="attention_bias",
        mlp_bias="mlp_bias",
        windows=windows_of(kinds, window),
        activation="gelu",
        norm=layer_norm(1e-5, bias=hf.get("norm_bias", bool, False)),
        context=CONTEXT,
        positions=rotaries[FULL],
        rotaries=[None if kind == FULL else rotaries[SLIDING] for kind in kinds],
        tied=True,
    ).read(hf)
    # The embedding's norm is before the first layer.
    first, *others = config.blocks
    blocks = (replace(first, attention_norm=False), *others)
    config = replace(config, blocks=blocks, embedding_norm=config.final_norm)
    return as_encoder(config, causal=False, head=_head(hf, config))


def _head(hf: ConfigReader, config: DecoderConfig) -> Head | None:
    layer = HeadLayer(
        activation=read_activation(hf.get("classifier_activation", str, "gelu")),
        norm=config.blocks[0].norm,
        bias=hf.get("classifier_bias", bool, False),
    )
    return read_head(
        hf,
        "ModernBert",
        LanguageModelHead(tied=True, bias=hf.get("decoder_bias", bool, True), layer=layer),
        pooling=hf.get("classifier_pooling", str, "cls"),
        poolings=POOLINGS,
        token_layer=layer,
        layer=layer,
    )


FAMILIES: dict[str, Family[EncoderConfig]] = {
    "modernbert": Family(config=_config, weights=_weights),
}
