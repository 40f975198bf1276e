"""Mistral (Jiang et al. 2023): Llama with a sliding window in every layer."""

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader

BASE_MODEL_PREFIX = llama.BASE_MODEL_PREFIX
WEIGHTS = llama.WEIGHTS


def config(hf: ConfigReader) -> DecoderConfig:
    """A `MistralConfig` of Hugging Face as a `DecoderConfig`."""
    # Where the key is absent, transformers takes this; null means no window.
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 4096
    return llama.llama_like(
        hf,
        model_type="mistral",
        windows=(window,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
    )


def hf_config(config: DecoderConfig) -> dict[str, object]:
    """The `config.json` of a Mistral that computes what `config` says."""
    return llama.llama_like_hf_config(config, architecture="MistralForCausalLM") | {
        "sliding_window": config.blocks[0].attention.sliding_window
    }
