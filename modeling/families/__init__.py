"""The families of published checkpoints: one small file each.

A family maps a published config to a config of ours and published weight names to ours; those
that a model can be saved in, back too. Adding one is a file and a row in `FAMILIES`.
"""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar

from ortolan.modeling.config import EmbeddingHead, EncoderConfig, ModelConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import (
    albert,
    apertus,
    bart,
    bert,
    bert_kin,
    biogpt,
    bloom,
    codegen,
    cohere,
    ctrl,
    distilbert,
    electra,
    eurobert,
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
    granite_hybrid,
    latent,
    latent_mixtures,
    lfm2,
    llama,
    llama_values,
    mamba,
    marian,
    mistral,
    mixtures,
    modernbert,
    modernbert_decoder,
    mpnet,
    mpt,
    olmo,
    openai_gpt,
    opt,
    persimmon,
    phi,
    qwen2,
    qwen3,
    qwen3_5,
    recurrent,
    recurrent_gemma,
    roberta,
    rotary_bert,
    sigmoid_mixtures,
    smollm3,
    squared_relu,
    stablelm,
    starcoder2,
    t5,
    vit,
    xglm,
)
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import HEAD, HEAD_BIAS, Entry, Table, Target

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
    "albert": albert,
    "apertus": apertus,
    "arcee": squared_relu.ARCEE,
    "bart": bart.BART,
    "bert": bert.BERT,
    "big_bird": bert_kin.BIG_BIRD,
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
    "deepseek_v2": latent_mixtures.DEEPSEEK_V2,
    "deepseek_v3": latent_mixtures.DEEPSEEK_V3,
    "distilbert": distilbert,
    "dots1": sigmoid_mixtures.DOTS1,
    "electra": electra,
    "ernie": bert.ERNIE,
    "ernie4_5": llama_values.ERNIE4_5,
    "ernie4_5_moe": mixtures.ERNIE4_5_MOE,
    "eurobert": eurobert,
    "exaone4": olmo.EXAONE4,
    "exaone_moe": sigmoid_mixtures.EXAONE_MOE,
    "falcon": falcon,
    "falcon_mamba": mamba.FALCON_MAMBA,
    "flex_olmo": mixtures.FLEX_OLMO,
    "gemma": gemma.GEMMA,
    "gemma2": gemma.GEMMA2,
    "gemma3_text": gemma.GEMMA3_TEXT,
    "glm": fused_gate.GLM,
    "glm4": fused_gate.GLM4,
    "glm4_moe": sigmoid_mixtures.GLM4_MOE,
    "glm4_moe_lite": latent_mixtures.GLM4_MOE_LITE,
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gpt_neox_japanese": gpt_neox_japanese,
    "gpt_oss": mixtures.GPT_OSS,
    "gptj": gptj,
    "granite": granite.GRANITE,
    "granite_swa": granite.GRANITE_SWA,
    "granitemoe": mixtures.GRANITEMOE,
    "granitemoe_swa": mixtures.GRANITEMOE_SWA,
    "granitemoehybrid": granite_hybrid,
    "granitemoeshared": mixtures.GRANITEMOESHARED,
    "gte": rotary_bert.GTE,
    "helium": llama_values.HELIUM,
    "hunyuan_v1_dense": llama_values.HUNYUAN_V1_DENSE,
    "hunyuan_v1_moe": mixtures.HUNYUAN_V1_MOE,
    "hyperclovax": granite.HYPERCLOVAX,
    "internlm3": llama_values.INTERNLM3,
    "iquestcoder": llama_values.IQUESTCODER,
    "jais2": squared_relu.JAIS2,
    "jina_embeddings_v3": rotary_bert.JINA_EMBEDDINGS_V3,
    "lfm2": lfm2,
    "llama": llama,
    "m2m_100": bart.M2M_100,
    "mamba": mamba.MAMBA,
    "mamba2": mamba.MAMBA2,
    "marian": marian,
    "mbart": bart.MBART,
    "megatron-bert": bert.MEGATRON_BERT,
    "minicpm3": latent.MINICPM3,
    "minimax_m2": sigmoid_mixtures.MINIMAX_M2,
    "ministral": llama_values.MINISTRAL,
    "ministral3": llama_values.MINISTRAL3,
    "mistral": mistral,
    "mixtral": mixtures.MIXTRAL,
    "modernbert": modernbert,
    "modernbert-decoder": modernbert_decoder,
    "mpnet": mpnet,
    "mpt": mpt,
    "mt5": t5.MT5,
    "mvp": bart.MVP,
    "nanochat": squared_relu.NANOCHAT,
    "nemotron": squared_relu.NEMOTRON,
    "nomic_bert": rotary_bert.NOMIC_BERT,
    "olmo": olmo.OLMO,
    "olmo2": olmo.OLMO2,
    "olmo3": olmo.OLMO3,
    "olmoe": mixtures.OLMOE,
    "openai-gpt": openai_gpt,
    "opt": opt,
    "pegasus": bart.PEGASUS,
    "persimmon": persimmon,
    "phi": phi,
    "phi3": fused_gate.PHI3,
    "phimoe": mixtures.PHIMOE,
    "plbart": bart.PLBART,
    "qwen2": qwen2,
    "qwen2_moe": mixtures.QWEN2_MOE,
    "qwen3": qwen3,
    "qwen3_5_text": qwen3_5,
    "qwen3_moe": mixtures.QWEN3_MOE,
    "recurrent": recurrent,
    "recurrent_gemma": recurrent_gemma,
    "rembert": bert_kin.REMBERT,
    "roberta": roberta.ROBERTA,
    "roberta-prelayernorm": roberta.ROBERTA_PRELAYERNORM,
    "roformer": bert_kin.ROFORMER,
    "seed_oss": llama_values.SEED_OSS,
    "smollm3": smollm3,
    "solar_open": sigmoid_mixtures.SOLAR_OPEN,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
    "t5": t5.T5,
    "umt5": t5.UMT5,
    "vaultgemma": gemma.VAULTGEMMA,
    "vit": vit,
    "xglm": xglm,
    "xlm-roberta": roberta.XLM_ROBERTA,
    "xlm-roberta-xl": roberta.XLM_ROBERTA_XL,
    "youtu": latent.YOUTU,
}


def weights_of(config: ModelConfig) -> Table:
    """The table of a model's family.

    Raises:
        ConfigError: there is no such family.
    """
    weights = family_of(config.model_type).WEIGHTS
    table: Table = weights(config) if callable(weights) else weights
    match config:
        case EncoderConfig(head=EmbeddingHead()):
            # A language model that embeds texts does without its head.
            spared = {name: _spare(target) for name, target in table.items()}
            return {**spared, **PROJECTIONS}
        case _:
            return table


def _spare(target: Entry) -> Entry:
    """A row of a table; where it is a head's weight, the checkpoint may hold it for nothing."""
    is_head = isinstance(target, Target) and target.name in (HEAD, HEAD_BIAS)
    return target._replace(spare=True) if isinstance(target, Target) and is_head else target


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
            f"{unknown_family(model_type)}. `ortolan families` lists them, and CONTRIBUTING.md "
            "shows how to add one."
        )
    return FAMILIES[model_type]


def unknown_family(model_type: str, *, or_else: str = "") -> str:
    """What is wrong with a `model_type` that no family has, and which are spelled much like it.

    Args:
        model_type: of a config.
        or_else: what else it may have been.
    """
    close = get_close_matches(model_type, FAMILIES)
    near = f", much like {' or '.join(close)}" if close else ""
    return (
        f"model_type: expected one of the {len(FAMILIES)} families of Ortolan{or_else}, got "
        f"{model_type!r:.80}{near}"
    )
