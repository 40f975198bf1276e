"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biased queries, keys and values."""

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.layer_kinds import FULL, SLIDING, read_layer_kinds, windows_of
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
        windows=read_windows(hf),
    )


def read_windows(hf: ConfigReader) -> tuple[int | None, ...]:
    """The window of each layer: `layer_types` if given, else from `max_window_layers` on."""
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    # Where the key is absent, transformers takes this; null means no window.
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 4096
    used = hf.get("use_sliding_window", bool, False)
    first = hf.get("max_window_layers", int, 28)
    kinds = read_layer_kinds(hf, [SLIDING if i >= first else FULL for i in range(layers)])
    return windows_of(kinds, window if used else None)


def hf_config(config: DecoderConfig) -> dict[str, object]:
    """The `config.json` of a Qwen2 that computes what `config` says."""
    windows = [block.attention.sliding_window for block in config.blocks]
    given = {window for window in windows if window is not None}
    return llama.llama_like_hf_config(config, architecture="Qwen2ForCausalLM") | {
        "use_sliding_window": bool(given),
        "sliding_window": max(given, default=None),
        "layer_types": [SLIDING if w else FULL for w in windows],
    }
