"""The families of published checkpoints: one small file each.

A family maps a published config to a config of ours and published weight names to ours; those
that a model can be saved in, back too. Adding one is a file and a row in `FAMILIES`.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ortolan.modeling.config import EmbeddingHead, EncoderConfig, ModelConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import (
    albert,
    apertus,
    bart,
    bert,
    biogpt,
    bloom,
    codegen,
    cohere,
    ctrl,
    distilbert,
    electra,
    falcon,
    fused_gate,
    gemma,
    gpt2,
    gpt_bigcode,
    gpt_neo,
    gpt_neox,
    gpt_neox_japanese,
    gptj,
    granite,
    llama,
    llama_values,
    marian,
    mistral,
    mpnet,
    mpt,
    olmo,
    openai_gpt,
    opt,
    persimmon,
    phi,
    qwen2,
    qwen3,
    roberta,
    smollm3,
    squared_relu,
    stablelm,
    starcoder2,
    t5,
    vit,
    xglm,
)
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table, Target

C = TypeVar("C", bound=ModelConfig)

PROJECTIONS: Table = {
    f"projections.{{}}.{kind}": Target(f"head.projections.{{}}.{kind}")
    for kind in ("weight", "bias")
}
"""Of the head of any family that embeds texts: layers after the pooling, in their order."""


class Family(Protocol[C]):
    """The parts of a family's file.

    One whose format a model can be saved in has `hf_config(config)` besides: ours as a published
    config (see `published_config`).
    """

    @property
    def WEIGHTS(self) -> Table | Callable[[C], Table]:  # noqa: N802 - a module's constant
        """Published weight names to ours; a function where they depend on the config."""
        ...

    @property
    def BASE_MODEL_PREFIX(self) -> str:  # noqa: N802 - a module's constant
        """What checkpoints of the model without its head leave out of names."""
        ...

    def config(self, hf: ConfigReader, /) -> C:
        """A published config as ours."""
        ...


FAMILIES: dict[str, Family[Any]] = {
    "apertus": apertus,
    "albert": albert,
    "arcee": squared_relu.ARCEE,
    "bart": bart.BART,
    "bert": bert.BERT,
    "biogpt": biogpt,
    "bitnet": squared_relu.BITNET,
    "blenderbot": bart.BLENDERBOT,
    "bloom": bloom,
    "camembert": roberta.CAMEMBERT,
    "codegen": codegen,
    "cohere": cohere.COHERE,
    "cohere2": cohere.COHERE2,
    "ctrl": ctrl,
    "cwm": llama_values.CWM,
    "data2vec-text": roberta.DATA2VEC_TEXT,
    "distilbert": distilbert,
    "electra": electra,
    "ernie": bert.ERNIE,
    "ernie4_5": llama_values.ERNIE4_5,
    "exaone4": olmo.EXAONE4,
    "falcon": falcon,
    "gemma": gemma.GEMMA,
    "gemma2": gemma.GEMMA2,
    "gemma3_text": gemma.GEMMA3_TEXT,
    "glm": fused_gate.GLM,
    "glm4": fused_gate.GLM4,
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gpt_neox_japanese": gpt_neox_japanese,
    "gptj": gptj,
    "granite": granite.GRANITE,
    "granite_swa": granite.GRANITE_SWA,
    "helium": llama_values.HELIUM,
    "hunyuan_v1_dense": llama_values.HUNYUAN_V1_DENSE,
    "hyperclovax": granite.HYPERCLOVAX,
    "internlm3": llama_values.INTERNLM3,
    "iquestcoder": llama_values.IQUESTCODER,
    "jais2": squared_relu.JAIS2,
    "llama": llama,
    "m2m_100": bart.M2M_100,
    "marian": marian,
    "mbart": bart.MBART,
    "megatron-bert": bert.MEGATRON_BERT,
    "ministral": llama_values.MINISTRAL,
    "ministral3": llama_values.MINISTRAL3,
    "mistral": mistral,
    "mpnet": mpnet,
    "mpt": mpt,
    "mt5": t5.MT5,
    "mvp": bart.MVP,
    "nanochat": squared_relu.NANOCHAT,
    "nemotron": squared_relu.NEMOTRON,
    "olmo": olmo.OLMO,
    "olmo2": olmo.OLMO2,
    "olmo3": olmo.OLMO3,
    "openai-gpt": openai_gpt,
    "opt": opt,
    "pegasus": bart.PEGASUS,
    "persimmon": persimmon,
    "phi": phi,
    "phi3": fused_gate.PHI3,
    "plbart": bart.PLBART,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "roberta": roberta.ROBERTA,
    "roberta-prelayernorm": roberta.ROBERTA_PRELAYERNORM,
    "seed_oss": llama_values.SEED_OSS,
    "smollm3": smollm3,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
    "t5": t5.T5,
    "umt5": t5.UMT5,
    "vaultgemma": gemma.VAULTGEMMA,
    "vit": vit,
    "xglm": xglm,
    "xlm-roberta": roberta.XLM_ROBERTA,
    "xlm-roberta-xl": roberta.XLM_ROBERTA_XL,
}


def weights_of(config: ModelConfig) -> Table:
    """The table of a model's family.

    Raises:
        ConfigError: there is no such family.
    """
    weights = family_of(config.model_type).WEIGHTS
    table: Table = weights(config) if callable(weights) else weights
    match config:
        case EncoderConfig(head=EmbeddingHead(projections=projections)) if projections:
            return {**table, **PROJECTIONS}
        case _:
            return table


def published_config(config: ModelConfig) -> dict[str, object]:
    """A config in the format of its family.

    Raises:
        ConfigError: there is no such family, or it is one that Ortolan only reads.
    """
    write = getattr(family_of(config.model_type), "hf_config", None)
    if write is None:
        savable = ", ".join(
            name for name, family in FAMILIES.items() if hasattr(family, "hf_config")
        )
        raise ConfigError(
            f"{config.model_type}: expected a family that can be saved, which are {savable}, got "
            "one that is only read. Save it as one of them."
        )
    values: dict[str, object] = write(config)
    return values


def family_of(model_type: str) -> Family[Any]:
    """The family of a `model_type`.

    Raises:
        ConfigError: there is none of that name.
    """
    if model_type not in FAMILIES:
        raise ConfigError(
            f"model_type: expected one of {', '.join(FAMILIES)}, got {model_type!r}. "
            "CONTRIBUTING.md shows how to add a family."
        )
    return FAMILIES[model_type]
