"""BERTs whose queries and keys are turned: Nomic's, GTE and Jina embeddings 3.

Nomic's (Nussbaum et al. 2024) and GTE (Zhang et al. 2024) have a gate in the mlp as well; Jina's
(Sturua et al. 2024) is without its adapters.
"""

from dataclasses import dataclass, replace
from typing import Literal

from ortolan.modeling.config import (
    BlockConfig,
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
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.reader import MAX_LAYERS, MAX_SIZE, ConfigReader
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
        hf.require("tie_word_embeddings")
        _check_old_switches(hf)
        width, heads = _size(hf, "hidden_size"), _size(hf, "num_attention_heads")
        head_dim = hf.size("head_dim", width // heads)
        if head_dim * heads != width:
            raise ConfigError(
                f"{hf.name}: expected num_attention_heads that share hidden_size, got {heads} of "
                f"{head_dim} channels and {width}. Correct one of them."
            )
        eps = hf.get("layer_norm_eps", float, hf.get("layer_norm_epsilon", float, 1e-12))
        norm = NormConfig(kind="layer", eps=eps)
        block = self._block(hf, width, heads, norm)
        # The wavelengths are the same for what is longer than the texts it was trained with.
        trained = hf.size("max_position_embeddings", None)
        context_length = (
            hf.size("n_positions") if trained is None else hf.size("n_positions", trained)
        )
        return EncoderConfig(
            model_type=self.model_type,
            input=TokenInput(
                vocab_size=hf.size("vocab_size"),
                types=hf.get("type_vocab_size", int, self.types),
            ),
            hidden_size=width,
            context_length=context_length,
            positions=read_rotary(
                hf,
                head_dim=head_dim,
                context_length=context_length,
                theta=hf.get("rotary_emb_base", float, self.theta),
            ),
            embedding_norm=norm,
            blocks=(block,) * _size(hf, "num_hidden_layers", most=MAX_LAYERS),
            final_norm=None,
            head=self._head(hf, norm),
            bos_token_id=hf.get("bos_token_id", int, None),
            eos_token_ids=hf.token_ids("eos_token_id"),
            pad_token_id=hf.get("pad_token_id", int, None),
        )

    def _block(self, hf: ConfigReader, width: int, heads: int, norm: NormConfig) -> BlockConfig:
        hidden = _size(hf, "intermediate_size")
        activation = hf.get("hidden_act", str, self.activation)
        _check_old_activation(hf, activation)
        block = bert.encoder_block(
            width=width, heads=heads, hidden=hidden, activation=activation, norm=norm
        )
        return replace(
            block,
            mixer=replace(block.attention, qkv_bias=self.bias, out_bias=self.bias),
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
            return read_classifier(hf, pooling="first", activation="tanh")
        if name == base:
            return None
        own = self.masked or hf.get("hidden_act", str, self.activation)
        return LanguageModelHead(tied=True, bias=True, activation=read_activation(own), norm=norm)


_OLD_SIZES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
}
"""Keys that Nomic's first configs have, and later ones besides."""

_OLD_SWITCHES = (
    "causal",
    "mlp_fc1_bias",
    "mlp_fc2_bias",
    "parallel_block",
    "parallel_block_tied_norm",
    "prenorm",
    "qkv_proj_bias",
    "reorder_and_upcast_attn",
    "rotary_emb_interleaved",
    "scale_attn_by_inverse_layer_idx",
    "use_rms_norm",
)

_OLD_INERT = (
    "dense_seq_output",
    "fused_bias_fc",
    "fused_dropout_add_ln",
    "max_trained_positions",
    "pad_vocab_size_multiple",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "use_flash_attn",
    "use_xentropy",
)
"""What says the same as another key, how it was computed, or what heads that are not served do."""

_GATES = {"glu": "sigmoid", "geglu": "gelu", "swiglu": "silu"}
"""Values of `activation_function` that name a gated mlp, and its activation."""


def _size(hf: ConfigReader, key: str, *, most: int = MAX_SIZE) -> int:
    """A size, by its key or by the one that it had."""
    old = hf.size(_OLD_SIZES[key], None, most=most)
    return hf.size(key, most=most) if old is None or key in hf else old


def _check_old_switches(hf: ConfigReader) -> None:
    """Raise ConfigError where the code that was published with a checkpoint computes another."""
    for switch in _OLD_SWITCHES:
        hf.refuse(switch)
    hf.require("scale_attn_weights")
    hf.skip(*_OLD_INERT)
    part = hf.get("rotary_emb_fraction", float, 1.0)
    if part != 1.0:
        raise ConfigError(
            f"{hf.name}: expected rotary_emb_fraction of 1, got {part}. "
            "This checkpoint cannot be loaded faithfully."
        )


def _check_old_activation(hf: ConfigReader, activation: str) -> None:
    """Raise ConfigError where `activation_function`, which transformers ignores, says another."""
    named = hf.get("activation_function", str, None)
    if named is not None and _GATES.get(named, named) != activation:
        raise ConfigError(
            f"{hf.name}: activation_function is {named!r:.40}, but transformers computes "
            f"{activation!r:.40}. Set hidden_act to what the model was trained with, and remove "
            "activation_function."
        )


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
