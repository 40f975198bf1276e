"""The families of published checkpoints.

A family maps a published config and published weight names to ours; some also write them. To add
one, add a `Family` to a file, and the file to `FAMILIES`.
"""

from difflib import get_close_matches
from typing import Any

from ortolan.modeling.config import (
    DecoderConfig,
    EmbeddingHead,
    EncoderConfig,
    ModelConfig,
    NormConfig,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import (
    alibi,
    bart,
    bert,
    bert_kin,
    clip,
    clip_text,
    dino,
    eurobert,
    gemma,
    gemma3,
    gpt,
    gpt_neox,
    granite,
    granite_hybrid,
    idefics3,
    internvl,
    latent,
    lfm2,
    lfm2_vl,
    llama,
    llama_kin,
    llava,
    mamba,
    mixtures,
    modernbert,
    moonshine,
    olmo,
    qwen3_5,
    qwen3_asr,
    qwen3_vl,
    recurrent,
    recurrent_gemma,
    rotary_bert,
    siglip2,
    sigmoid_mixtures,
    squared_relu,
    t5,
    vit,
    wav2vec2,
    whisper,
    xglm,
)
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.tables import PROJECTIONS
from ortolan.modeling.weights import HEAD, HEAD_BIAS, Entry, Table, Target

JOINED_STATES: Table = {
    "model.enorm.weight": Target("joined_states.embedding_norm.weight"),
    "model.hnorm.weight": Target("joined_states.state_norm.weight"),
    "model.eh_proj.weight": Target("joined_states.projection.weight"),
}
"""Layers that join embeddings with states, in any family whose head predicts further tokens."""

FAMILIES: dict[str, Family[Any]] = {
    **alibi.FAMILIES,
    **bart.FAMILIES,
    **bert.FAMILIES,
    **bert_kin.FAMILIES,
    **clip.FAMILIES,
    **clip_text.FAMILIES,
    **dino.FAMILIES,
    **eurobert.FAMILIES,
    **gemma.FAMILIES,
    **gemma3.FAMILIES,
    **gpt.FAMILIES,
    **gpt_neox.FAMILIES,
    **granite.FAMILIES,
    **granite_hybrid.FAMILIES,
    **idefics3.FAMILIES,
    **internvl.FAMILIES,
    **latent.FAMILIES,
    **lfm2.FAMILIES,
    **lfm2_vl.FAMILIES,
    **llama.FAMILIES,
    **llama_kin.FAMILIES,
    **llava.FAMILIES,
    **mamba.FAMILIES,
    **mixtures.FAMILIES,
    **modernbert.FAMILIES,
    **moonshine.FAMILIES,
    **olmo.FAMILIES,
    **xglm.FAMILIES,
    **qwen3_5.FAMILIES,
    **qwen3_asr.FAMILIES,
    **qwen3_vl.FAMILIES,
    **recurrent.FAMILIES,
    **recurrent_gemma.FAMILIES,
    **rotary_bert.FAMILIES,
    **siglip2.FAMILIES,
    **sigmoid_mixtures.FAMILIES,
    **squared_relu.FAMILIES,
    **t5.FAMILIES,
    **vit.FAMILIES,
    **wav2vec2.FAMILIES,
    **whisper.FAMILIES,
}
"""Families by the `model_type` of their configs."""


def weights_of(config: ModelConfig) -> Table:
    """The weight names of a model."""
    table = family_of(config.model_type).table(config)
    match config:
        case EncoderConfig(head=EmbeddingHead()):
            # A language model that embeds sequences does not use its head.
            return {**{name: _spare(entry) for name, entry in table.items()}, **PROJECTIONS}
        case DecoderConfig(state_norm=NormConfig()):
            return {**table, **JOINED_STATES}
        case _:
            return table


def _spare(entry: Entry) -> Entry:
    """A row of a table; if it is of a head, the checkpoint may hold it for nothing."""
    is_head = isinstance(entry, Target) and entry.name in (HEAD, HEAD_BIAS)
    return entry._replace(spare=True) if isinstance(entry, Target) and is_head else entry


def published_config(config: ModelConfig) -> dict[str, object]:
    """A config in the format of its family."""
    write = family_of(config.model_type).hf_config
    if write is None:
        savable = ", ".join(sorted(name for name, family in FAMILIES.items() if family.hf_config))
        raise ConfigError(
            f"{config.model_type}: models of this family cannot be saved. "
            f"Save it as one of these: {savable}."
        )
    return write(config)


def family_of(model_type: str) -> Family[Any]:
    """The family of a `model_type`."""
    if model_type not in FAMILIES:
        raise ConfigError(
            f"{unknown_family(model_type)}. `ortolan families` lists them, and CONTRIBUTING.md "
            "shows how to add one."
        )
    return FAMILIES[model_type]


def unknown_family(model_type: str, *, or_else: str = "") -> str:
    """The message for a `model_type` that no family has, with similar names."""
    close = get_close_matches(model_type, sorted(FAMILIES))
    near = f", much like {' or '.join(close)}" if close else ""
    return (
        f"model_type: expected one of the {len(FAMILIES)} families of Ortolan{or_else}, got "
        f"{model_type!r:.80}{near}"
    )
