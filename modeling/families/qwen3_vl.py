"""The image encoders of Qwen3-VL (Qwen Team 2025) and Qwen 3.5 (Qwen Team 2026).

That of Qwen3-VL also returns vectors of early layers.
Images keep their proportions. Patches have learned positions, interpolated from a square table, and
rotary positions whose channels are shared by rows and columns. Squares of patches are joined.
"""

import math

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    EncoderConfig,
    FeatureHead,
    FeedForwardConfig,
    GridInput,
    GridPositions,
    Projection,
    RotaryPositions,
)
from ortolan.modeling.config.positions import COLUMN, ROW
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.llava import read_sides
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.tables import DOWN, NORM_1, NORM_2, OUT, QKV, UP, layer, linear
from ortolan.modeling.weights import Entry, Target

PREFIX = "visual"

MOST_PATCHES = 1 << 14
"""Most patches of an image where no image processor says: 2,048 by 2,048 pixels."""


def _weights(config: EncoderConfig) -> dict[str, Entry]:
    """The weights, where a patch is a convolution over frames, rows and columns."""
    source = config.input
    if not isinstance(source, GridInput):
        raise TypeError("expected an encoder of patches")
    patch = (source.channels, source.frames, source.patch_size, source.patch_size)
    merger = f"{PREFIX}.deepstack_merger_list.{{}}."
    return {
        f"{PREFIX}.patch_embed.proj.weight": Target("embedding.projection.weight", last=patch),
        f"{PREFIX}.patch_embed.proj.bias": Target("embedding.projection.bias"),
        f"{PREFIX}.pos_embed.weight": Target("position_embedding.weight"),
        **layer(
            f"{PREFIX}.blocks.{{}}.",
            {
                "norm1": NORM_1,
                "attn.qkv": QKV,
                "attn.proj": OUT,
                "norm2": NORM_2,
                "mlp.linear_fc1": UP,
                "mlp.linear_fc2": DOWN,
            },
        ),
        **linear({"norm": "final_norm"}, f"{PREFIX}.merger."),
        **linear(
            {"linear_fc1": "projections.0", "linear_fc2": "projections.1"},
            f"{PREFIX}.merger.",
            "head.",
        ),
        **linear(
            {"norm": "norm", "linear_fc1": "projections.0", "linear_fc2": "projections.1"},
            merger,
            "head.early.{}.",
        ),
    }


def _qwen3_vl(hf: ConfigReader) -> EncoderConfig:
    tower, text = read_sides(hf)
    # Tokens around images, and of videos.
    hf.skip("vision_start_token_id", "vision_end_token_id", "video_token_id")
    tower.skip("model_type")
    width = tower.size("hidden_size", 1152)
    merge = tower.size("spatial_merge_size", 2)
    inner, out = width * merge**2, tower.size("out_hidden_size", 3584)
    if (of_text := text.size("hidden_size", 4096)) != out:
        raise ConfigError(
            f"{tower.name}: out_hidden_size must be {of_text}, the width of the language model "
            f"(got {out}). Correct it."
        )
    layers = tower.size("depth", 27, most=MAX_LAYERS)
    head = FeatureHead(
        skipped=0,
        projections=(
            Projection(width=inner, activation="gelu"),
            Projection(width=out, activation=None),
        ),
        pixel_shuffle=merge,
        early=tuple(index + 1 for index in tower.get("deepstack_visual_indexes", list, [])),
        early_norm=layer_norm(1e-6),
    )
    return EncoderConfig(
        model_type=hf.get("model_type", str),
        input=GridInput(
            patch_size=tower.size("patch_size", 16),
            channels=tower.size("in_channels", 3),
            frames=tower.size("temporal_patch_size", 2),
            merge=merge,
            layout="channels_first",
        ),
        hidden_size=width,
        context_length=MOST_PATCHES // merge**2 * merge**2,
        positions=GridPositions(side=_side(tower), interpolation="corners"),
        blocks=(_block(tower, width),) * layers,
        final_norm=layer_norm(1e-6),
        head=head,
    )


def _side(tower: ConfigReader) -> int:
    """Side of the table of positions."""
    count = tower.size("num_position_embeddings", 2304)
    side = math.isqrt(count)
    if side**2 != count:
        raise ConfigError(
            f"{tower.name}: num_position_embeddings must be a square number (got {count}). "
            "Correct it."
        )
    return side


def _block(tower: ConfigReader, width: int) -> BlockConfig:
    heads = tower.size("num_heads", 16)
    head_dim = width // heads
    if width % heads or head_dim % 4:
        raise ConfigError(
            f"{tower.name}: num_heads must share hidden_size evenly, with channels for rows and "
            f"columns (got {heads} for {width}). Correct it."
        )
    attention = AttentionConfig(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        qkv_bias=True,
        out_bias=True,
        causal=False,
        rotary=_rotary(tower, head_dim),
    )
    mlp = FeedForwardConfig(
        kind="mlp",
        intermediate_size=tower.size("intermediate_size", 4304),
        activation=read_activation(tower.get("hidden_act", str, "gelu_pytorch_tanh")),
        bias=True,
    )
    return BlockConfig(mixer=attention, feed_forward=mlp, norm=layer_norm(1e-6))


def _rotary(tower: ConfigReader, head_dim: int) -> RotaryPositions:
    """Pairs of channels, the first half for rows and the second for columns."""
    rope = tower.nested("rope_parameters") or ConfigReader({})
    kind = rope.get("rope_type", str, "axial")
    if kind != "axial":
        raise ConfigError(f"{tower.name}: rope_type must be axial (got {kind!r:.40}). Correct it.")
    share = head_dim // 4
    return RotaryPositions(
        dim=head_dim,
        theta=rope.get("rope_theta", float, 10_000.0),
        axes=(ROW,) * share + (COLUMN,) * share,
        axial=True,
    )


FAMILIES: dict[str, Family[EncoderConfig]] = {
    name: Family(config=_qwen3_vl, weights=_weights, base_model_prefix=PREFIX)
    for name in ("qwen3_5", "qwen3_vl")
}
