"""ViT (Dosovitskiy et al. 2021): a pre-norm encoder of the patches of an image."""

from dataclasses import replace

from ortolan.modeling.config import EncoderConfig, Head, LearnedPositions, PatchInput
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.activations import write_activation
from ortolan.modeling.families.classifier import BASE, head_hf_config, read_classifier
from ortolan.modeling.families.decoder import layer_norm
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.tables import DOWN, NORM_1, NORM_2, OUT, QKV, UP, layer, linear
from ortolan.modeling.weights import Table, Target

CLASSES, CLASSIFIER = "ViT", "ForImageClassification"

_WEIGHTS: Table = {
    "vit.embeddings.cls_token": Target("embedding.class_token", leading=True),
    "vit.embeddings.position_embeddings": Target("position_embedding.weight", leading=True),
    **linear({"vit.embeddings.patch_embeddings.projection": "embedding.projection"}),
    **layer(
        "vit.encoder.layer.{}.",
        {
            "attention.attention.query": QKV,
            "attention.attention.key": QKV,
            "attention.attention.value": QKV,
            "attention.output.dense": OUT,
            "layernorm_before": NORM_1,
            "intermediate.dense": UP,
            "output.dense": DOWN,
            "layernorm_after": NORM_2,
        },
    ),
    **linear({"vit.layernorm": "final_norm"}),
    **linear({"classifier": "head.out"}, spare=True),
    # The classifier does without the pooler.
    "vit.pooler.dense.weight": None,
    "vit.pooler.dense.bias": None,
}


def _config(hf: ConfigReader) -> EncoderConfig:
    hf.skip("hidden_dropout_prob", "attention_probs_dropout_prob")
    # Keys of heads that are not served, and of the pooler.
    hf.skip("encoder_stride", "pooler_act", "pooler_output_size", "tie_word_embeddings")
    head: Head | None = None
    classifier = f"{CLASSES}{CLASSIFIER}"
    if hf.architecture(f"{CLASSES}{BASE}", classifier) == classifier:
        head = read_classifier(hf, pooling="first")
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    if width % heads:
        raise ConfigError(
            f"{hf.name}: hidden_size must be divisible by num_attention_heads (got {width} and "
            f"{heads}). Correct one of them."
        )
    norm = layer_norm(hf.get("layer_norm_eps", float, 1e-12))
    block = bert.encoder_block(
        width=width,
        heads=heads,
        hidden=hf.size("intermediate_size"),
        activation=hf.get("hidden_act", str, "gelu"),
        norm=norm,
    )
    attention = replace(block.attention, qkv_bias=hf.get("qkv_bias", bool, True))
    block = replace(block, mixer=attention, placement="pre")
    image = PatchInput(
        image_size=_read_size(hf, "image_size", 224),
        patch_size=_read_size(hf, "patch_size", 16),
        channels=hf.size("num_channels", 3),
        class_token=True,
    )
    return EncoderConfig(
        model_type=hf.get("model_type", str),
        input=image,
        hidden_size=width,
        context_length=image.length,
        positions=LearnedPositions(),
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
        final_norm=norm,
        head=head,
    )


def _read_size(hf: ConfigReader, key: str, default: int) -> tuple[int, int]:
    """Height and width under `key`: a list, or a number if both are the same."""
    pair = hf.get(key, list, None) if hf.is_list(key) else [hf.size(key, default)] * 2
    sizes = [n for n in pair or () if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    if len(sizes) != 2 or pair != sizes:
        raise ConfigError(
            f"{hf.name}: {key} must be one or two numbers of pixels (got {pair!r:.40}). Correct it."
        )
    return sizes[0], sizes[1]


def _hf_config(config: EncoderConfig) -> dict[str, object]:
    first, source = config.blocks[0], config.input
    if not isinstance(source, PatchInput):
        raise ConfigError(
            f"{config.model_type}: this format has patches of images only (got "
            f"{type(source).__name__}). Save the model as another family."
        )
    return {
        "model_type": "vit",
        "hidden_size": config.hidden_size,
        "intermediate_size": first.dense.intermediate_size,
        "num_hidden_layers": len(config.blocks),
        "num_attention_heads": first.attention.num_heads,
        "hidden_act": write_activation(first.dense.activation),
        "layer_norm_eps": first.norm.eps,
        "qkv_bias": first.attention.qkv_bias,
        "image_size": _write_size(source.image_size),
        "patch_size": _write_size(source.patch_size),
        "num_channels": source.channels,
        **head_hf_config(config.head, CLASSES, kind=CLASSIFIER),
    }


def _write_size(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


FAMILIES: dict[str, Family[EncoderConfig]] = {
    "vit": Family(config=_config, weights=_WEIGHTS, base_model_prefix="vit", hf_config=_hf_config)
}
