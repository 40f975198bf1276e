"""BERTs whose queries and keys are turned: Nomic's, GTE and Jina embeddings 3.

Nomic's (Nussbaum et al. 2024) and GTE (Zhang et al. 2024) have a gate in the mlp as well; Jina's
(Sturua et al. 2024) is without its adapters.
"""

from dataclasses import dataclass, replace
from typing import Literal

from ortolan.modeling.config import (
    BlockConfig,
    ClassifierHead,
    EncoderConfig,
    FeedForwardConfig,
    Head,
    LanguageModelHead,
    NormConfig,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Entry, Rows, Table, Target

_HALVES = (Rows(1, 2, -1, ((0, 1),)), Rows(1, 2, -1, ((1, 2),)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryBert:
    """One of these families.

    Attributes:
        model_type: of its configs.
        classes: what the names of its models begin with.
        BASE_MODEL_PREFIX: of the names of its weights.
        WEIGHTS: published names to ours.
        theta: the base of the wavelengths where the config has none.
        kind: of the mlp.
        bias: the attention has biases, and the mlp where it is not gated.
        down_bias: the last product of the mlp has one.
        activation: of the mlp where the config does not say.
        types: of tokens, where the config does not say.
        masked: activation in the head of a language model; None for that of the mlp.
    """

    model_type: str
    classes: str
    BASE_MODEL_PREFIX: str
    WEIGHTS: Table
    theta: float
    kind: Literal["gated", "mlp"]
    bias: bool
    down_bias: bool
    activation: str
    types: int
    masked: str | None

    def config(self, hf: ConfigReader) -> EncoderConfig:
        """A published config as an `EncoderConfig`.

        Raises:
            ConfigError: widths that do not fit.
        """
        hf.skip("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
        hf.skip("num_labels")
        hf.require("tie_word_embeddings")
        width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
        head_dim = hf.size("head_dim", width // heads)
        if head_dim * heads != width:
            raise ConfigError(
                f"{hf.name}: expected num_attention_heads that share hidden_size, got {heads} of "
                f"{head_dim} channels and {width}. Correct one of them."
            )
        norm = NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-12))
        block = self._block(hf, width, heads, norm)
        context_length = hf.size("max_position_embeddings")
        return EncoderConfig(
            model_type=self.model_type,
            input=TokenInput(
                vocab_size=hf.size("vocab_size"),
                types=hf.get("type_vocab_size", int, self.types),
            ),
            hidden_size=width,
            context_length=context_length,
            positions=read_rotary(
                hf, head_dim=head_dim, context_length=context_length, theta=self.theta
            ),
            embedding_norm=norm,
            blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
            final_norm=None,
            head=self._head(hf, norm),
            bos_token_id=hf.get("bos_token_id", int, None),
            eos_token_ids=hf.token_ids("eos_token_id"),
            pad_token_id=hf.get("pad_token_id", int, None),
        )

    def _block(self, hf: ConfigReader, width: int, heads: int, norm: NormConfig) -> BlockConfig:
        hidden = hf.size("intermediate_size")
        activation = hf.get("hidden_act", str, self.activation)
        block = bert.encoder_block(
            width=width, heads=heads, hidden=hidden, activation=activation, norm=norm
        )
        return replace(
            block,
            attention=replace(block.attention, qkv_bias=self.bias, out_bias=self.bias),
            feed_forward=FeedForwardConfig(
                kind=self.kind,
                intermediate_size=hidden,
                activation=read_activation(activation),
                bias=self.kind == "mlp" and self.bias,
                down_bias=self.down_bias,
            ),
        )

    def _head(self, hf: ConfigReader, norm: NormConfig) -> Head | None:
        base, masked, classifier = (
            f"{self.classes}{kind}"
            for kind in ("Model", "ForMaskedLM", "ForSequenceClassification")
        )
        name = hf.architecture(base, masked, classifier)
        if name == classifier:
            return ClassifierHead(labels=hf.labels(), pooling="first", activation="tanh")
        if name == base:
            return None
        own = self.masked or hf.get("hidden_act", str, self.activation)
        return LanguageModelHead(tied=True, bias=True, activation=read_activation(own), norm=norm)


def _table(prefix: str, layer: str, modules: dict[str, str], norm: str) -> dict[str, Entry]:
    """The rows of a family whose modules have a weight, and some a bias."""
    table: dict[str, Entry] = {
        f"{prefix}.embeddings.word_embeddings.weight": Target("embedding.weight"),
        f"{prefix}.embeddings.token_type_embeddings.weight": Target("type_embedding.weight"),
    }
    named = {f"{layer}.{theirs}": f"blocks.{{}}.{ours}" for theirs, ours in modules.items()}
    return {**table, **bert.linear({f"{prefix}.{norm}": "embedding_norm", **named})}


_NORMS = {"norm1": "attention_norm", "norm2": "feed_forward_norm"}

_NOMIC: Table = {
    **_table(
        "nomic_bert",
        "nomic_bert.encoder.layers.{}",
        {
            "attn.Wqkv": "attention.qkv",
            "attn.out_proj": "attention.out",
            "mlp.fc12": "feed_forward.gate",
            "mlp.fc11": "feed_forward.up",
            "mlp.fc2": "feed_forward.down",
            **_NORMS,
        },
        "emb_ln",
    ),
    **bert.bert_heads("nomic_bert", norm="layer_norm"),
}

_GTE: Table = {
    **_table(
        "gte",
        "gte.encoder.layer.{}",
        {
            "attention.qkv_proj": "attention.qkv",
            "attention.o_proj": "attention.out",
            "mlp.down_proj": "feed_forward.down",
            "attn_ln": "attention_norm",
            "mlp_ln": "feed_forward_norm",
        },
        "embeddings.LayerNorm",
    ),
    "gte.encoder.layer.{}.mlp.up_gate_proj.weight": (
        Target("blocks.{}.feed_forward.up.weight", rows=_HALVES[0]),
        Target("blocks.{}.feed_forward.gate.weight", rows=_HALVES[1]),
    ),
    **bert.linear(
        {
            "gte.pooler.dense": "head.dense",
            "classifier": "head.out",
            "lm_head.dense": "head.transform",
            "lm_head.norm": "head.norm",
        },
        spare=True,
    ),
    "lm_head.decoder.bias": Target("head.bias", spare=True),
    "lm_head.decoder.weight": Target("head.weight", spare=True),
}

_JINA: Table = {
    **_table(
        "roberta",
        "roberta.encoder.layers.{}",
        {
            "mixer.Wqkv": "attention.qkv",
            "mixer.out_proj": "attention.out",
            "mlp.fc1": "feed_forward.up",
            "mlp.fc2": "feed_forward.down",
            **_NORMS,
        },
        "emb_ln",
    ),
    **bert.roberta_heads("roberta"),
}

NOMIC_BERT = RotaryBert(
    model_type="nomic_bert",
    classes="NomicBert",
    BASE_MODEL_PREFIX="nomic_bert",
    WEIGHTS=_NOMIC,
    theta=1000.0,
    kind="gated",
    bias=False,
    down_bias=False,
    activation="silu",
    types=2,
    masked=None,
)

GTE = RotaryBert(
    model_type="gte",
    classes="Gte",
    BASE_MODEL_PREFIX="gte",
    WEIGHTS=_GTE,
    theta=160_000.0,
    kind="gated",
    bias=True,
    down_bias=True,
    activation="gelu",
    types=1,
    masked="gelu",
)

JINA_EMBEDDINGS_V3 = RotaryBert(
    model_type="jina_embeddings_v3",
    classes="JinaEmbeddingsV3",
    BASE_MODEL_PREFIX="roberta",
    WEIGHTS=_JINA,
    theta=20_000.0,
    kind="mlp",
    bias=True,
    down_bias=True,
    activation="gelu",
    types=1,
    masked="gelu",
)
