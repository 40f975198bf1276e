"""The text encoders of CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023).

Both are pre-norm encoders at learned positions. CLIP's is causal and reads a text up to its end
token. SigLIP's is bidirectional and reads the padding too.
"""

from collections.abc import Mapping
from dataclasses import replace

from ortolan.modeling.config import (
    EmbeddingHead,
    EncoderConfig,
    EndToken,
    LearnedPositions,
    Projection,
    TokenInput,
)
from ortolan.modeling.families import bert
from ortolan.modeling.families.clip import BOTH, SIGLIP2_BOTH, SIGLIP_BOTH, layers, side
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.tables import linear
from ortolan.modeling.families.vit import read_heads
from ortolan.modeling.weights import Entry, Target

PREFIX = "text_model"

TOWER, PROJECTED = "CLIPTextModel", "CLIPTextModelWithProjection"

OLD_END = 2
"""The `eos_token_id` of configs from before transformers 4.31, which is not the id of that token:
the tokenizer's has the highest id."""

CLIP: Mapping[str, object] = {
    "model_type": "",  # that of the whole counts
    "vocab_size": 49_408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "eos_token_id": 49_407,
}

SIGLIP: Mapping[str, object] = {
    "model_type": "",
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "pad_token_id": 1,
}
"""Values that `text_config` may leave out: defaults of transformers' config classes."""

_TOWER: dict[str, Entry] = {
    f"{PREFIX}.embeddings.token_embedding.weight": Target("embedding.weight"),
    f"{PREFIX}.embeddings.position_embedding.weight": Target("position_embedding.weight"),
    # The numbers 0, 1, ..., which old versions of transformers saved.
    f"{PREFIX}.embeddings.position_ids": None,
    **layers(PREFIX),
    **linear({f"{PREFIX}.final_layer_norm": "final_norm"}),
}

_OF_IMAGES: dict[str, Entry] = {
    "vision_model.*": None,
    "visual_projection.weight": None,
    "logit_scale": None,
    "logit_bias": None,
}
"""Weights of the encoder of images, and of the comparison of both."""


def _clip(hf: ConfigReader) -> EncoderConfig:
    """A tower on its own, or the texts' side of both."""
    architecture = hf.architecture(TOWER, PROJECTED, BOTH)
    tower = hf
    if architecture == BOTH:
        hf.skip("vision_config", "vision_config_dict", "logit_scale_init_value")
        tower = side(hf, "text", CLIP)
        tower.skip("projection_dim", "model_type")
    else:
        hf.skip("projection_dim")
    projections: tuple[Projection, ...] = ()
    if architecture != TOWER:
        width = hf.size("projection_dim", 512)
        projections = (Projection(width=width, bias=False, activation=None),)
    token = tower.get("eos_token_id", int)
    end: EndToken = "highest" if token == OLD_END else token
    head = EmbeddingHead(
        pooling=("last",), projections=projections, normalised=architecture == BOTH, end=end
    )
    config = _read_text(tower, head, causal=True)
    return replace(config, model_type=hf.get("model_type", str))


def _siglip(hf: ConfigReader) -> EncoderConfig:
    """A tower on its own, or the texts' side of both."""
    architecture = hf.architecture("SiglipTextModel", "Siglip2TextModel", SIGLIP_BOTH, SIGLIP2_BOTH)
    is_whole = architecture in (SIGLIP_BOTH, SIGLIP2_BOTH)
    tower = hf
    if is_whole:
        hf.skip("vision_config")
        tower = side(hf, "text", SIGLIP)
        tower.skip("model_type")
    tower.skip("eos_token_id")
    width = tower.size("projection_size", tower.size("hidden_size"))
    head = EmbeddingHead(
        pooling=("last",),
        projections=(Projection(width=width, activation=None),),
        normalised=is_whole,
    )
    config = _read_text(tower, head, causal=False)
    return replace(config, model_type=hf.get("model_type", str))


def _read_text(hf: ConfigReader, head: EmbeddingHead, *, causal: bool) -> EncoderConfig:
    """A pre-norm encoder of tokens at learned positions; one that is not causal reads padding."""
    hf.skip("bos_token_id")
    width, heads = read_heads(hf)
    norm = layer_norm(hf.get("layer_norm_eps", float))
    block = bert.encoder_block(
        width=width,
        heads=heads,
        hidden=hf.size("intermediate_size"),
        activation=hf.get("hidden_act", str),
        norm=norm,
    )
    block = replace(block, mixer=replace(block.attention, causal=causal), placement="pre")
    return EncoderConfig(
        model_type=hf.get("model_type", str),
        pad_token_id=hf.get("pad_token_id", int, None),
        input=TokenInput(vocab_size=hf.size("vocab_size"), padded=not causal),
        hidden_size=width,
        context_length=hf.size("max_position_embeddings"),
        positions=LearnedPositions(),
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
        final_norm=norm,
        head=head,
    )


_SIGLIP = Family(
    config=_siglip,
    weights={
        **_TOWER,
        **_OF_IMAGES,
        f"{PREFIX}.head.*": "projections.0.",
        "head.*": "projections.0.",
    },
    base_model_prefix=PREFIX,
)

FAMILIES: dict[str, Family[EncoderConfig]] = {
    "clip_text_model": Family(
        config=_clip,
        weights={**_TOWER, **_OF_IMAGES, "text_projection.*": "projections.0."},
        base_model_prefix=PREFIX,
    ),
    "siglip_text_model": _SIGLIP,
    "siglip2_text_model": _SIGLIP,
}
