"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biased queries, keys and values."""

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader

BASE_MODEL_PREFIX = llama.BASE_MODEL_PREFIX
WEIGHTS = llama.WEIGHTS


def config(hf: ConfigReader) -> DecoderConfig:
    """A `Qwen2Config` of Hugging Face as a `DecoderConfig`."""
    hf.refuse("use_mrope")
    return llama.llama_like(
        hf,
        model_type="qwen2",
        qkv_bias=True,
        out_bias=False,
        mlp_bias=False,
        windows=_read_windows(hf),
    )


def _read_windows(hf: ConfigReader) -> tuple[int | None, ...]:
    """The window of each layer: `layer_types` if given, else from `max_window_layers` on."""
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    # Where the key is absent, transformers takes this; null means no window.
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 4096
    used = hf.get("use_sliding_window", bool, False)
    first = hf.get("max_window_layers", int, 28)
    default = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    kinds = hf.get("layer_types", list, default)
    known = all(kind in ("full_attention", "sliding_attention") for kind in kinds)
    if len(kinds) != layers or not known:
        raise ConfigError(
            f"config.json: expected layer_types to hold full_attention or sliding_attention for "
            f"{layers} layers, got {kinds!r:.80}. This checkpoint cannot be loaded faithfully."
        )
    return tuple(window if used and kind == "sliding_attention" else None for kind in kinds)


def hf_config(config: DecoderConfig) -> dict[str, object]:
    """The `config.json` of a Qwen2 that computes what `config` says."""
    windows = [block.attention.sliding_window for block in config.blocks]
    given = {window for window in windows if window is not None}
    return llama.llama_like_hf_config(config, architecture="Qwen2ForCausalLM") | {
        "use_sliding_window": bool(given),
        "sliding_window": max(given, default=None),
        "layer_types": ["sliding_attention" if w else "full_attention" for w in windows],
    }
