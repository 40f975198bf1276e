"""BERTs with rotary positions: Nomic's, GTE and Jina embeddings 3.

Nomic's (Nussbaum et al. 2024) and GTE (Zhang et al. 2024) also have a gated MLP; Jina's (Sturua et
al. 2024) is read without its adapters.
"""

from dataclasses import dataclass, replace
from typing import Literal

from ortolan.modeling.config import (
    BlockConfig,
    EncoderConfig,
    FeedForwardConfig,
    Head,
    HeadLayer,
    LanguageModelHead,
    NormConfig,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.classifier import read_head
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import MAX_LAYERS, MAX_SIZE, ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.families.tables import (
    DOWN,
    HALVES,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    UP,
    layer,
    linear,
    without,
)
from ortolan.modeling.weights import Entry, Table, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryBertFormat:
    """How the configs of one of these families are read.

    Attributes:
        classes: the prefix of the names of its model classes.
        theta: default base of the wavelengths.
        kind: of the MLP.
        bias: the attention has biases, and so has an MLP that is not gated.
        down_bias: the last product of the MLP has one.
        activation: default activation of the MLP.
        types: default number of token types.
        masked: activation in the head of a language model; None for that of the MLP.
    """

    classes: str
    theta: float
    kind: Literal["gated", "mlp"]
    bias: bool
    down_bias: bool
    activation: str
    types: int
    masked: str | None

    def read(self, hf: ConfigReader) -> EncoderConfig:
        """A published config as an `EncoderConfig`."""
        hf.skip("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
        hf.require("tie_word_embeddings")
        _check_old_switches(hf)
        width, heads = _size(hf, "hidden_size"), _size(hf, "num_attention_heads")
        head_dim = hf.size("head_dim", width // heads)
        if head_dim * heads != width:
            raise ConfigError(
                f"{hf.name}: num_attention_heads must share hidden_size (got {heads} of "
                f"{head_dim} channels and {width}). Correct one of them."
            )
        eps = hf.get("layer_norm_eps", float, hf.get("layer_norm_epsilon", float, 1e-12))
        norm = NormConfig(kind="layer", eps=eps)
        block = self._block(hf, width, heads, norm)
        # Wavelengths are the same beyond the length of the training sequences.
        trained = hf.size("max_position_embeddings", None)
        context_length = (
            hf.size("n_positions") if trained is None else hf.size("n_positions", trained)
        )
        return EncoderConfig(
            **hf.model_fields(),
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
        activation = self.masked or hf.get("hidden_act", str, self.activation)
        layer = HeadLayer(activation=read_activation(activation), norm=norm)
        language_model = LanguageModelHead(tied=True, bias=True, layer=layer)
        return read_head(hf, self.classes, language_model, layer=HeadLayer(activation="tanh"))


_OLD_SIZES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
}
"""Keys of Nomic's first configs, which later ones still have."""

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
"""Copies of other keys, kernels, and heads that are not served."""

_GATES = {"glu": "sigmoid", "geglu": "gelu", "swiglu": "silu"}
"""Values of `activation_function` that name a gated mlp, and its activation."""


def _size(hf: ConfigReader, key: str, *, most: int = MAX_SIZE) -> int:
    """A size, by its key or by its old one."""
    old = hf.size(_OLD_SIZES[key], None, most=most)
    return hf.size(key, most=most) if old is None or key in hf else old


def _check_old_switches(hf: ConfigReader) -> None:
    """Raise ConfigError if the code published with a checkpoint computes something else."""
    for switch in _OLD_SWITCHES:
        hf.refuse(switch)
    hf.require("scale_attn_weights")
    hf.skip(*_OLD_INERT)
    part = hf.get("rotary_emb_fraction", float, 1.0)
    if part != 1.0:
        raise ConfigError(
            f"{hf.name}: rotary_emb_fraction must be 1 (got {part}). "
            "This checkpoint cannot be loaded faithfully."
        )


def _check_old_activation(hf: ConfigReader, activation: str) -> None:
    """Raise ConfigError if `activation_function`, which transformers ignores, says otherwise."""
    named = hf.get("activation_function", str, None)
    if named is not None and _GATES.get(named, named) != activation:
        raise ConfigError(
            f"{hf.name}: activation_function is {named!r:.40}, but transformers computes "
            f"{activation!r:.40}. Set hidden_act to what the model was trained with, and remove "
            "activation_function."
        )


def _table(prefix: str, layers: str, modules: dict[str, str], norm: str) -> dict[str, Entry]:
    """The weights below the heads."""
    return {
        **without(bert.embeddings(f"{prefix}.embeddings"), "position"),
        **linear({f"{prefix}.{norm}": "embedding_norm"}),
        **layer(f"{prefix}.encoder.{layers}.{{}}.", modules),
    }


_NORMS = {"norm1": NORM_1, "norm2": NORM_2}

_NOMIC: Table = {
    **_table(
        "nomic_bert",
        "layers",
        {
            "attn.Wqkv": QKV,
            "attn.out_proj": OUT,
            "mlp.fc12": "feed_forward.gate",
            "mlp.fc11": UP,
            "mlp.fc2": DOWN,
            **_NORMS,
        },
        "emb_ln",
    ),
    **bert.bert_heads("nomic_bert", norm="layer_norm"),
}

_GTE: Table = {
    **_table(
        "gte",
        "layer",
        {
            "attention.qkv_proj": QKV,
            "attention.o_proj": OUT,
            "mlp.down_proj": DOWN,
            "attn_ln": NORM_1,
            "mlp_ln": NORM_2,
        },
        "embeddings.LayerNorm",
    ),
    # The rows of up come first.
    "gte.encoder.layer.{}.mlp.up_gate_proj.weight": (
        Target("blocks.{}.feed_forward.up.weight", rows=HALVES[0]),
        Target("blocks.{}.feed_forward.gate.weight", rows=HALVES[1]),
    ),
    **linear(
        {
            "gte.pooler.dense": "head.dense",
            "classifier": "head.out",
            "lm_head.dense": "head.transform",
            "lm_head.norm": "head.norm",
            "lm_head.decoder": "head",
        },
        spare=True,
    ),
}

_JINA: Table = {
    **_table(
        "roberta",
        "layers",
        {
            "mixer.Wqkv": QKV,
            "mixer.out_proj": OUT,
            "mlp.fc1": UP,
            "mlp.fc2": DOWN,
            **_NORMS,
        },
        "emb_ln",
    ),
    **bert.roberta_heads("roberta"),
}

_FORMATS = {
    "nomic_bert": RotaryBertFormat(
        classes="NomicBert",
        theta=1000.0,
        kind="gated",
        bias=False,
        down_bias=False,
        activation="silu",
        types=2,
        masked=None,
    ),
    "gte": RotaryBertFormat(
        classes="Gte",
        theta=160_000.0,
        kind="gated",
        bias=True,
        down_bias=True,
        activation="gelu",
        types=1,
        masked="gelu",
    ),
    "jina_embeddings_v3": RotaryBertFormat(
        classes="JinaEmbeddingsV3",
        theta=20_000.0,
        kind="mlp",
        bias=True,
        down_bias=True,
        activation="gelu",
        types=1,
        masked="gelu",
    ),
}

FAMILIES: dict[str, Family[EncoderConfig]] = {
    name: Family(
        config=_FORMATS[name].read,
        weights=bert.with_token_heads(weights),
        base_model_prefix=prefix,
    )
    for name, weights, prefix in (
        ("nomic_bert", _NOMIC, "nomic_bert"),
        ("gte", _GTE, "gte"),
        ("jina_embeddings_v3", _JINA, "roberta"),
    )
}
