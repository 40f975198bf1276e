"""The audio encoder of Qwen3-ASR (Qwen Team 2026), up to the vectors that its language model reads.

Chunks of a second pass through the convolutions one by one, and attention sees several of them.
"""

from ortolan.modeling.config import (
    ChunkedAudioInput,
    EncoderConfig,
    FeatureHead,
    Projection,
    SinusoidalPositions,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.bart import NORM, read_blocks
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    PROJECTIONS,
    UP,
    layer,
    linear,
    qkv,
)
from ortolan.modeling.weights import Table, Target

PREFIX = "audio_tower"

_WEIGHTS: Table = {
    **linear({f"{PREFIX}.conv2d{n}": f"embedding.conv{n}" for n in (1, 2, 3)}),
    f"{PREFIX}.conv_out.weight": Target("embedding.projection.weight"),
    **layer(
        f"{PREFIX}.layers.{{}}.",
        {
            **qkv("self_attn.{}_proj"),
            "self_attn.out_proj": OUT,
            "self_attn_layer_norm": NORM_1,
            "fc1": UP,
            "fc2": DOWN,
            "final_layer_norm": NORM_2,
        },
    ),
    **linear({f"{PREFIX}.ln_post": "final_norm"}),
    **PROJECTIONS,
}


def _qwen3_asr(hf: ConfigReader) -> EncoderConfig:
    # Read with the language model, and of a head that finds the times of words.
    hf.skip("audio_token_id", "architectures", "tie_word_embeddings", "text_config")
    hf.skip("timestamp_token_id", "token_classification_bias")
    hf.skip("bos_token_id", "eos_token_id", "pad_token_id")
    tower = hf.nested("audio_config")
    if tower is None:
        raise ConfigError(f"{hf.name}: expected audio_config, got nothing. Correct it.")
    # The model stores this switch and never reads it.
    tower.skip("scale_embedding", "model_type")
    width, half = tower.size("d_model", 1024), tower.size("n_window", 50)
    source = ChunkedAudioInput(
        bins=tower.size("num_mel_bins", 128),
        frames=tower.size("n_window_infer", 800),
        chunk=2 * half,
        channels=tower.size("downsample_hidden_size", 480),
    )
    rows = tower.size("max_position_embeddings", 13)
    if rows < source.chunk_vectors:
        raise ConfigError(
            f"{hf.name}: max_position_embeddings must be at least {source.chunk_vectors}, the "
            f"vectors of a chunk (got {rows}). Correct it or n_window."
        )
    activation = read_activation(tower.get("activation_function", str, "gelu"))
    head = FeatureHead(
        skipped=0,
        projections=(
            Projection(width=width, bias=True, activation=activation),
            Projection(width=tower.size("output_dim", 3584), bias=True, activation=None),
        ),
    )
    return EncoderConfig(
        model_type=hf.get("model_type", str),
        input=source,
        hidden_size=width,
        context_length=source.length,
        positions=SinusoidalPositions(endpoint=True),
        blocks=read_blocks(tower, "encoder", width, "pre"),
        final_norm=NORM,
        head=head,
    )


FAMILIES: dict[str, Family[EncoderConfig]] = {
    "qwen3_asr": Family(config=_qwen3_asr, weights=_WEIGHTS, base_model_prefix=PREFIX),
}
