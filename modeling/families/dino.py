"""The vision transformers of DINO, with scaled layers.

DINOv2 (Oquab et al. 2023), also with registers (Darcet et al. 2024), and DINOv3 (Siméoni et al.
2025), which rotates queries and keys by the centers of their patches.
"""

from dataclasses import replace

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    EncoderConfig,
    FeedForwardConfig,
    Head,
    LearnedPositions,
    PatchInput,
    RotaryPositions,
    SquareTable,
)
from ortolan.modeling.config.positions import COLUMN, ROW
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.classifier import BASE, read_classifier
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.tables import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    UP,
    gate_up,
    layer,
    linear,
    qkv,
    without,
)
from ortolan.modeling.families.vit import (
    CLASSIFIER,
    read_heads,
    read_pair,
    read_vision,
    vit_weights,
)
from ortolan.modeling.weights import Entry, Target

V2, V2_REGISTERS, V3 = "dinov2", "dinov2_with_registers", "dinov3_vit"
"""Model types; in DINOv2, also the prefixes of the weights."""

CLASSES = {V2: "Dinov2", V2_REGISTERS: "Dinov2WithRegisters"}
"""Prefixes of the names of the model classes."""

MAX_RATIO = 64
"""Largest ratio of the widths of the mlp and the stream."""

MAX_REGISTERS = 1 << 10
"""Largest number of registers, far above every published one."""


def _v2_weights(config: EncoderConfig) -> dict[str, Entry]:
    """The weights of DINOv2, which names parts of a layer differently from ViT."""
    prefix = config.model_type
    theirs = f"{prefix}.encoder.layer.{{}}."
    shared = without(vit_weights(prefix), "layernorm_", "intermediate", ".{}.output")
    if config.blocks[0].dense.kind == "gated":
        gates = {
            f"{theirs}mlp.weights_in.{kind}": gate_up("blocks.{}.feed_forward", kind)
            for kind in ("weight", "bias")
        }
        mlp = gates | layer(theirs, {"mlp.weights_out": DOWN})
    else:
        mlp = layer(theirs, {"mlp.fc1": UP, "mlp.fc2": DOWN})
    return {
        **shared,
        **_tokens(config, f"{prefix}."),
        **layer(theirs, {"norm1": NORM_1, "norm2": NORM_2}),
        **_scales(theirs),
        **mlp,
    }


def _v3_weights(config: EncoderConfig) -> dict[str, Entry]:
    """The weights of DINOv3, whose keys have no bias."""
    theirs = "layer.{}."
    mlp = {"mlp.up_proj": UP, "mlp.down_proj": DOWN}
    if config.blocks[0].dense.kind == "gated":
        mlp["mlp.gate_proj"] = "feed_forward.gate"
    parts = {**qkv("attention.{}_proj"), "attention.o_proj": OUT, "norm1": NORM_1, "norm2": NORM_2}
    return {
        "model.layer.*": "layer.",  # the name in memory
        "embeddings.cls_token": Target("embedding.class_token", leading=2),
        **_tokens(config, ""),
        **linear({"embeddings.patch_embeddings": "embedding.projection", "norm": "final_norm"}),
        **layer(theirs, parts | mlp),
        f"{theirs}attention.k_proj.bias": Target("blocks.{}.attention.qkv.bias", zeros=True),
        **_scales(theirs),
    }


def _tokens(config: EncoderConfig, prefix: str) -> dict[str, Entry]:
    """Registers, and a token that replaces patches in pre-training."""
    registers = Target("registers.weight", leading=1) if config.registers else None
    return {
        f"{prefix}embeddings.mask_token": None,
        f"{prefix}embeddings.register_tokens": registers,
    }


def _scales(theirs: str) -> dict[str, Entry]:
    return {
        f"{theirs}layer_scale1.lambda1": Target("blocks.{}.attention_scale"),
        f"{theirs}layer_scale2.lambda1": Target("blocks.{}.feed_forward_scale"),
    }


def _v2(hf: ConfigReader) -> EncoderConfig:
    model_type = hf.get("model_type", str)
    _skip_backbone(hf)
    hf.skip("use_mask_token")
    head: Head | None = None
    classes = CLASSES[model_type]
    classifier = f"{classes}{CLASSIFIER}"
    if hf.architecture(f"{classes}{BASE}", classifier) == classifier:
        head = read_classifier(hf, pooling="first_and_mean")
    ratio = hf.get("mlp_ratio", float, 4.0)
    if not 0 < ratio <= MAX_RATIO or int(hf.size("hidden_size") * ratio) < 1:
        raise ConfigError(
            f"{hf.name}: mlp_ratio must be above 0 and at most {MAX_RATIO} (got {ratio}). "
            "Correct it."
        )
    hidden = int(hf.size("hidden_size") * ratio)
    is_gated = hf.get("use_swiglu_ffn", bool, False)
    if is_gated:
        hidden = -(-int(hidden * 2 / 3) // 8) * 8
    registers = _registers(hf, 4) if model_type == V2_REGISTERS else 0
    config = read_vision(hf, head=head, eps=1e-6, hidden=hidden, registers=registers)
    table = _table(hf, config)
    block = replace(config.blocks[0], layer_scale=True)
    if is_gated:
        gated = replace(block.dense, kind="gated", activation="silu")
        block = replace(block, feed_forward=gated)
    positions = LearnedPositions(published=table)
    return replace(config, blocks=(block,) * len(config.blocks), positions=positions)


def _table(hf: ConfigReader, config: EncoderConfig) -> SquareTable | None:
    """The table of positions; None if no other size follows from it."""
    if not isinstance(config.input, PatchInput) or len(set(config.input.image_size)) > 1:
        raise ConfigError(
            f"{hf.name}: image_size must be the same for both sides, which the table of positions "
            f"was trained for (got {hf.get('image_size', object)}). Correct it."
        )
    rows, columns = config.input.grid
    if rows != columns:
        return None
    return SquareTable(side=rows, antialiased=config.model_type == V2_REGISTERS)


def _v3(hf: ConfigReader) -> EncoderConfig:
    _skip_backbone(hf)
    # Random changes of the positions in training, and of a classifier that transformers has not.
    hf.skip("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale", "tie_word_embeddings")
    hf.architecture("DINOv3ViTModel")
    width, heads = read_heads(hf)
    image = PatchInput(
        image_size=read_pair(hf, "image_size", 224),
        patch_size=read_pair(hf, "patch_size", 16),
        channels=hf.size("num_channels", 3),
        class_token=True,
        registers=_registers(hf, 0),
    )
    norm = layer_norm(hf.get("layer_norm_eps", float, 1e-5))
    attention = AttentionConfig(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        scale=(width // heads) ** -0.5,
        qkv_bias=_has_biases(hf),
        out_bias=hf.get("proj_bias", bool, True),
        causal=False,
    )
    mlp = FeedForwardConfig(
        kind="gated" if hf.get("use_gated_mlp", bool, False) else "mlp",
        intermediate_size=hf.size("intermediate_size", 1536),
        activation=read_activation(hf.get("hidden_act", str, "gelu")),
        bias=hf.get("mlp_bias", bool, True),
    )
    block = BlockConfig(mixer=attention, feed_forward=mlp, norm=norm, layer_scale=True)
    return EncoderConfig(
        model_type=hf.get("model_type", str),
        input=image,
        hidden_size=width,
        context_length=image.length,
        positions=_centers(hf, width // heads),
        blocks=(block,) * hf.size("num_hidden_layers", 12, most=MAX_LAYERS),
        final_norm=norm,
    )


def _has_biases(hf: ConfigReader) -> bool:
    """Whether queries and values have biases; keys have none."""
    hf.refuse("key_bias")
    of_queries, of_values = (hf.get(f"{part}_bias", bool, True) for part in ("query", "value"))
    if of_queries != of_values:
        raise ConfigError(
            f"{hf.name}: query_bias and value_bias must be the same (got {of_queries} and "
            f"{of_values}). This checkpoint cannot be loaded faithfully."
        )
    return of_queries


def _centers(hf: ConfigReader, head_dim: int) -> RotaryPositions:
    """Pairs of channels, the first half for rows and the second for columns."""
    if head_dim % 4:
        raise ConfigError(
            f"{hf.name}: a head must have a multiple of 4 channels, for rows and columns (got "
            f"{head_dim}). Correct hidden_size or num_attention_heads."
        )
    share = head_dim // 4
    return RotaryPositions(
        dim=head_dim,
        theta=hf.get("rope_theta", float, 100.0),
        axes=(ROW,) * share + (COLUMN,) * share,
        axial=True,
        centers=True,
    )


def _skip_backbone(hf: ConfigReader) -> None:
    """Skip the initial value of the scales, and keys of a backbone of other models."""
    hf.skip("layerscale_value", "apply_layernorm", "reshape_hidden_states", "return_class_token")
    hf.skip("stage_names", "out_features", "out_indices", "_out_features", "_out_indices")


def _registers(hf: ConfigReader, default: int) -> int:
    count = hf.get("num_register_tokens", int, default)
    if not 0 <= count <= MAX_REGISTERS:
        raise ConfigError(
            f"{hf.name}: num_register_tokens must be 0 to {MAX_REGISTERS} (got {count!r:.40}). "
            "Correct it."
        )
    return count


FAMILIES: dict[str, Family[EncoderConfig]] = {
    V2: Family(config=_v2, weights=_v2_weights, base_model_prefix=V2),
    V2_REGISTERS: Family(config=_v2, weights=_v2_weights, base_model_prefix=V2_REGISTERS),
    V3: Family(config=_v3, weights=_v3_weights),
}
