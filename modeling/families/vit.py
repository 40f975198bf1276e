"""ViT (Dosovitskiy et al. 2021): a pre-norm encoder of the patches of an image."""

from dataclasses import replace

from ortolan.modeling.config import (
    EncoderConfig,
    Head,
    LearnedPositions,
    NormConfig,
    PatchInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.activations import write_activation
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "vit"

BASE, CLASSIFIER = "ViTModel", "ViTForImageClassification"

_LAYER = "vit.encoder.layer.{}"

WEIGHTS: Table = {
    "vit.embeddings.cls_token": Target("embedding.class_token", leading=True),
    "vit.embeddings.position_embeddings": Target("position_embedding.weight", leading=True),
    **bert.linear(
        {
            "vit.embeddings.patch_embeddings.projection": "embedding.projection",
            f"{_LAYER}.attention.attention.query": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.attention.key": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.attention.value": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.output.dense": "blocks.{}.attention.out",
            f"{_LAYER}.layernorm_before": "blocks.{}.attention_norm",
            f"{_LAYER}.intermediate.dense": "blocks.{}.feed_forward.up",
            f"{_LAYER}.output.dense": "blocks.{}.feed_forward.down",
            f"{_LAYER}.layernorm_after": "blocks.{}.feed_forward_norm",
            "vit.layernorm": "final_norm",
        }
    ),
    **bert.linear({"classifier": "head.out"}, spare=True),
    # The classifier does without it.
    "vit.pooler.dense.weight": None,
    "vit.pooler.dense.bias": None,
}


def config(hf: ConfigReader) -> EncoderConfig:
    """A `ViTConfig` of Hugging Face as an `EncoderConfig`.

    Raises:
        ConfigError: widths that do not fit.
    """
    hf.skip("hidden_dropout_prob", "attention_probs_dropout_prob")
    # Of heads that are not served, or of the pooler.
    hf.skip("encoder_stride", "pooler_act", "pooler_output_size", "tie_word_embeddings")
    head: Head | None = None
    if hf.architecture(BASE, CLASSIFIER) == CLASSIFIER:
        head = read_classifier(hf, pooling="first")
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    if width % heads:
        raise ConfigError(
            f"config.json: expected hidden_size divisible by num_attention_heads, got {width} "
            f"and {heads}. Correct one of them."
        )
    norm = NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-12))
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
        model_type="vit",
        input=image,
        hidden_size=width,
        context_length=image.length,
        positions=LearnedPositions(),
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
        final_norm=norm,
        head=head,
    )


def _read_size(hf: ConfigReader, key: str, default: int) -> tuple[int, int]:
    """Height and width under `key`, which is a number where both are the same."""
    pair = hf.get(key, list, None) if hf.is_list(key) else [hf.size(key, default)] * 2
    sizes = [n for n in pair or () if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    if len(sizes) != 2 or pair != sizes:
        raise ConfigError(
            f"config.json: expected {key} to be one or two numbers of pixels, got {pair!r:.40}. "
            "Correct it."
        )
    return sizes[0], sizes[1]


def hf_config(config: EncoderConfig) -> dict[str, object]:
    """The `config.json` of a ViT that computes what `config` says.

    Raises:
        ConfigError: an input that the format does not have.
    """
    first, source = config.blocks[0], config.input
    if not isinstance(source, PatchInput):
        raise ConfigError(
            f"{config.model_type}: expected patches of images, got {type(source).__name__}. "
            "Save it as another family."
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
        **bert.head_hf_config(config.head, BASE, BASE, CLASSIFIER),
    }


def _write_size(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
