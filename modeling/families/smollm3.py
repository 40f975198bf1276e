"""SmolLM3 (Bakouch et al. 2025): Llama without positions in every fourth layer."""

from ortolan.modeling.config import DecoderConfig, NoPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.layer_kinds import FULL, SLIDING, read_layer_kinds, windows_of
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader

BASE_MODEL_PREFIX = llama.BASE_MODEL_PREFIX
WEIGHTS = llama.WEIGHTS


def config(hf: ConfigReader) -> DecoderConfig:
    """A `SmolLM3Config` of Hugging Face as a `DecoderConfig`."""
    hf.skip("max_window_layers")
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    period = hf.size("no_rope_layer_interval", 4)
    rotated = hf.get("no_rope_layers", list, [int((i + 1) % period != 0) for i in range(layers)])
    if len(rotated) < layers or not all(flag in (0, 1) for flag in rotated):
        raise ConfigError(
            f"{hf.name}: expected no_rope_layers to hold 0 or 1 for {layers} layers, got "
            f"{rotated!r:.80}. Correct it."
        )
    window = hf.size("sliding_window", None)
    used = hf.get("use_sliding_window", bool, False) and window is not None
    default = [SLIDING if used and not flag else FULL for flag in rotated[:layers]]
    bias = hf.get("attention_bias", bool, False)
    made = llama.llama_like(
        hf,
        model_type="smollm3",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=hf.get("mlp_bias", bool, False),
        windows=windows_of(read_layer_kinds(hf, default), window if used else None),
        theta=2_000_000.0,
        tied=True,
    )
    return llama.altered(
        made, rotaries=[None if flag else NoPositions() for flag in rotated[:layers]]
    )
