"""ModernBERT (Warner et al. 2024), and Ettin (Weller et al. 2025), its decoder.

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
from ortolan.modeling.families.decoder import DecoderFormat, Keys, layer_norm
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    layers_of,
    read_layer_kinds,
    windows_of,
)
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import read_rotaries
from ortolan.modeling.families.tables import DOWN, NORM_1, NORM_2, OUT, QKV, gate_up, layer, linear
from ortolan.modeling.weights import Entry, Table, Target

POOLINGS: dict[str, Pooling] = {"cls": "first", "mean": "mean"}


def _body(*qkv: str) -> dict[str, Entry]:
    """The weights below the head; `qkv` are the names of queries, keys and values."""
    modules = {f"attn.{name}": QKV for name in qkv}
    modules |= {"attn_norm": NORM_1, "attn.Wo": OUT, "mlp_norm": NORM_2, "mlp.Wo": DOWN}
    ends = {"model.embeddings.norm": "embedding_norm", "model.final_norm": "final_norm"}
    return {
        "model.embeddings.tok_embeddings.weight": Target("embedding.weight"),
        **linear(ends),
        **layer("model.layers.{}.", modules),
        **{
            f"model.layers.{{}}.mlp.Wi.{kind}": gate_up("blocks.{}.feed_forward", kind)
            for kind in ("weight", "bias")
        },
    }


def _weights(config: EncoderConfig) -> Table:
    """A layer of the same names is below either head."""
    dense = "transform" if isinstance(config.head, LanguageModelHead) else "dense"
    heads = {"head.dense": f"head.{dense}", "head.norm": "head.norm", "classifier": "head.out"}
    return {
        **_body("Wqkv"),
        **linear(heads, spare=True),
        **linear({"decoder": "head"}, spare=True),
    }


_DECODER_WEIGHTS: Table = {
    **_body("q_proj", "k_proj", "v_proj"),
    **linear({"lm_head.dense": "head_layer.dense", "lm_head.norm": "head_layer.norm"}),
    "decoder.weight": Target("head.weight"),
    "decoder.bias": Target("head_bias"),
}


def _read(hf: ConfigReader, window: int, context: int | None = None) -> DecoderConfig:
    """The layers of either."""
    # How transformers computed the same faster, and the loss; and keys of BERT.
    hf.skip("embedding_dropout", "mlp_dropout", "cls_token_id", "deterministic_flash_attn")
    hf.skip("reference_compile", "repad_logits_with_grad", "sparse_pred_ignore_index")
    hf.skip("sparse_prediction", "layer_norm_eps", "position_embedding_type")
    period = hf.size("global_attn_every_n_layers", 3)
    default = [SLIDING if i % period else FULL for i in range(layers_of(hf))]
    kinds = read_layer_kinds(hf, default)
    length = "max_position_embeddings"
    rotaries = read_rotaries(
        hf,
        {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)},
        head_dim=max(hf.size("hidden_size") // hf.size("num_attention_heads"), 1),
        context_length=hf.size(length) if context is None else hf.size(length, context),
    )
    config = DecoderFormat(
        keys=Keys(kv_heads=None, head_dim=None, activation="hidden_activation", eps="norm_eps"),
        bias="attention_bias",
        mlp_bias="mlp_bias",
        windows=windows_of(kinds, window),
        activation="gelu",
        norm=layer_norm(1e-5, bias=hf.get("norm_bias", bool, False)),
        context=context,
        positions=rotaries[FULL],
        rotaries=[None if kind == FULL else rotaries[SLIDING] for kind in kinds],
        tied=True,
    ).read(hf)
    # The embedding's norm is before the first layer.
    first, *others = config.blocks
    return replace(
        config,
        blocks=(replace(first, attention_norm=False), *others),
        embedding_norm=config.final_norm,
    )


def _encoder(hf: ConfigReader) -> EncoderConfig:
    hf.skip("classifier_dropout", "initializer_cutoff_factor")
    hf.require("tie_word_embeddings")
    # Half of the window lies on each side.
    config = _read(hf, hf.size("local_attention", 128) // 2 + 1, context=8192)
    return as_encoder(config, causal=False, head=_head(hf, config))


def _head(hf: ConfigReader, config: DecoderConfig) -> Head | None:
    layer = _head_layer(hf, config)
    return read_head(
        hf,
        "ModernBert",
        LanguageModelHead(tied=True, bias=hf.get("decoder_bias", bool, True), layer=layer),
        pooling=hf.get("classifier_pooling", str, "cls"),
        poolings=POOLINGS,
        token_layer=layer,
        layer=layer,
    )


def _head_layer(hf: ConfigReader, config: DecoderConfig) -> HeadLayer:
    return HeadLayer(
        activation=read_activation(hf.get("classifier_activation", str, "gelu")),
        norm=config.blocks[0].norm,
        bias=hf.get("classifier_bias", bool, False),
    )


def _decoder(hf: ConfigReader) -> DecoderConfig:
    # Keys of the encoder's configs.
    hf.skip("causal_mask", "is_causal", "classifier_pooling")
    # transformers writes both keys, and reads the half.
    window = hf.size("sliding_window", max(hf.size("local_attention", 128) // 2, 1))
    config = _read(hf, window)
    bias = hf.get("decoder_bias", bool, True)
    return replace(config, head_bias=bias, head_layer=_head_layer(hf, config))


FAMILIES: dict[str, Family[EncoderConfig] | Family[DecoderConfig]] = {
    "modernbert": Family(config=_encoder, weights=_weights),
    "modernbert-decoder": Family(config=_decoder, weights=_DECODER_WEIGHTS),
}
