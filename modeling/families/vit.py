"""ViT (Dosovitskiy et al. 2021) and its kin: pre-norm encoders of the patches of an image."""

from dataclasses import replace

from ortolan.modeling.config import (
    ClassifierHead,
    EncoderConfig,
    Head,
    LearnedPositions,
    PatchInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.activations import write_activation
from ortolan.modeling.families.classifier import BASE, head_hf_config, read_classifier
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.tables import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    UP,
    layer,
    linear,
    without,
)
from ortolan.modeling.weights import Entry, Target

CLASSES, CLASSIFIER = "ViT", "ForImageClassification"

DEIT = ("DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher")


def vit_weights(prefix: str) -> dict[str, Entry]:
    """The weights of ViT, with the published prefix."""
    return {
        f"{prefix}.embeddings.cls_token": Target("embedding.class_token", leading=2),
        f"{prefix}.embeddings.distillation_token": Target(
            "embedding.distillation_token", leading=2
        ),
        f"{prefix}.embeddings.position_embeddings": Target("position_embedding.weight", leading=1),
        **linear({f"{prefix}.embeddings.patch_embeddings.projection": "embedding.projection"}),
        **layer(
            f"{prefix}.encoder.layer.{{}}.",
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
        **linear({f"{prefix}.layernorm": "final_norm"}),
        **linear({"classifier": "head.out"}, spare=True),
        # The classifier does without the pooler.
        f"{prefix}.pooler.dense.weight": None,
        f"{prefix}.pooler.dense.bias": None,
    }


def _deit_weights(config: EncoderConfig) -> dict[str, Entry]:
    """The weights of DeiT, whose classifiers have other names if there are two."""
    table = vit_weights("deit")
    if not isinstance(config.head, ClassifierHead) or not config.head.distilled:
        return table
    heads = {"cls_classifier": "head.out", "distillation_classifier": "head.distilled"}
    return without(table, "classifier") | linear(heads)


def _vit(hf: ConfigReader) -> EncoderConfig:
    head: Head | None = None
    classifier = f"{CLASSES}{CLASSIFIER}"
    if hf.architecture(f"{CLASSES}{BASE}", classifier) == classifier:
        head = read_classifier(hf, pooling="first")
    return read_vision(hf, head=head, eps=1e-12, hidden=hf.size("intermediate_size"))


def _deit(hf: ConfigReader) -> EncoderConfig:
    """DeiT (Touvron et al. 2021), whose second token learns from another network."""
    head: Head | None = None
    architecture = hf.architecture(*DEIT)
    if architecture != DEIT[0]:
        head = read_classifier(hf, pooling="first", distilled=architecture == DEIT[2])
    return read_vision(
        hf, head=head, eps=1e-12, hidden=hf.size("intermediate_size"), distillation_token=True
    )


def read_vision(
    hf: ConfigReader,
    *,
    head: Head | None,
    eps: float,
    hidden: int,
    activation: str = "gelu",
    patch: int = 16,
    class_token: bool = True,
    distillation_token: bool = False,
    registers: int = 0,
) -> EncoderConfig:
    """A pre-norm encoder of patches at learned positions."""
    hf.skip("hidden_dropout_prob", "attention_probs_dropout_prob")
    # Keys of heads that are not served, and of the pooler.
    hf.skip("encoder_stride", "pooler_act", "pooler_output_size", "tie_word_embeddings")
    width, heads = read_heads(hf)
    norm = layer_norm(hf.get("layer_norm_eps", float, eps))
    block = bert.encoder_block(
        width=width,
        heads=heads,
        hidden=hidden,
        activation=hf.get("hidden_act", str, activation),
        norm=norm,
    )
    qkv_bias = hf.get("qkv_bias", bool, True)
    block = replace(block, mixer=replace(block.attention, qkv_bias=qkv_bias), placement="pre")
    image = PatchInput(
        image_size=read_pair(hf, "image_size", 224),
        patch_size=read_pair(hf, "patch_size", patch),
        channels=hf.size("num_channels", 3),
        class_token=class_token,
        distillation_token=distillation_token,
        registers=registers,
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


def read_heads(hf: ConfigReader) -> tuple[int, int]:
    """Width of the stream, and number of heads."""
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    if width % heads:
        raise ConfigError(
            f"{hf.name}: hidden_size must be divisible by num_attention_heads (got {width} and "
            f"{heads}). Correct one of them."
        )
    return width, heads


def read_pair(hf: ConfigReader, key: str, default: int) -> tuple[int, int]:
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
    "vit": Family(
        config=_vit, weights=vit_weights("vit"), base_model_prefix="vit", hf_config=_hf_config
    ),
    "deit": Family(config=_deit, weights=_deit_weights, base_model_prefix="deit"),
}
