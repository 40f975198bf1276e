"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019), with their kin.

`BertFormat` serves the families that differ from BERT by names and values. RoBERTa and its kin
number positions from the padding id on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    ClassifierHead,
    EncoderConfig,
    FeedForwardConfig,
    Head,
    HeadLayer,
    LanguageModelHead,
    LearnedPositions,
    NormConfig,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation, write_activation
from ortolan.modeling.families.classifier import head_hf_config, read_head
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.tables import DOWN, NORM_1, NORM_2, OUT, QKV, UP, layer, linear
from ortolan.modeling.weights import Entry, Table, Target, targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """Published names of the norms: of the embedding, of a layer's halves, and the last one."""

    embedding: str | None = "embeddings.LayerNorm"
    attention: str = "attention.output.LayerNorm"
    feed_forward: str = "output.LayerNorm"
    final: str | None = None


def body(prefix: str, norms: Norms = Norms()) -> dict[str, Entry]:
    """The weights below the heads, whose names begin with `prefix`."""
    modules = {
        "attention.self.query": QKV,
        "attention.self.key": QKV,
        "attention.self.value": QKV,
        "attention.output.dense": OUT,
        norms.attention: NORM_1,
        "intermediate.dense": UP,
        "output.dense": DOWN,
        norms.feed_forward: NORM_2,
    }
    ends = {norms.embedding: "embedding_norm", norms.final: "final_norm"}
    return {
        **embeddings(f"{prefix}.embeddings"),
        **layer(f"{prefix}.encoder.layer.{{}}.", modules),
        **linear({f"{prefix}.{theirs}": ours for theirs, ours in ends.items() if theirs}),
    }


def embeddings(prefix: str) -> dict[str, Entry]:
    """The tables of BERT's input."""
    return {
        f"{prefix}.word_embeddings.weight": Target("embedding.weight"),
        f"{prefix}.position_embeddings.weight": Target("position_embedding.weight"),
        f"{prefix}.token_type_embeddings.weight": Target("type_embedding.weight"),
        # The numbers 0, 1, ..., which old versions of transformers saved.
        f"{prefix}.position_ids": None,
    }


def with_token_heads(
    table: Table, *, classifier: str = "classifier", answers: str = "qa_outputs"
) -> Callable[[EncoderConfig], Table]:
    """A table in which the last matrix of a head has the name of the model's class."""
    others = {
        name: entry
        for name, entry in table.items()
        if not any(target.name.startswith("head.out.") for target in targets(table, name))
    }

    def weights(config: EncoderConfig) -> Table:
        match config.head:
            case ClassifierHead(pooling=None, scores=scores):
                return others | linear({answers if scores == "none" else classifier: "head.out"})
            case _:
                return table

    return weights


def bert_heads(prefix: str, *, norm: str = "LayerNorm") -> dict[str, Entry]:
    """The heads of BERT: a classifier after the pooler, and a language model."""
    classifier = {f"{prefix}.pooler.dense": "head.dense", "classifier": "head.out"}
    return {**linear(classifier, spare=True), **masked_head(norm=norm)}


def masked_head(*, norm: str = "LayerNorm") -> dict[str, Entry]:
    """The head of BERT's language model; `norm` is the published name of its norm."""
    return {
        **linear(
            {
                "cls.predictions.transform.dense": "head.transform",
                f"cls.predictions.transform.{norm}": "head.norm",
            },
            spare=True,
        ),
        "cls.predictions.bias": Target("head.bias", spare=True),
        "cls.predictions.decoder.weight": Target("head.weight", spare=True),
        # A second name of cls.predictions.bias.
        "cls.predictions.decoder.bias": None,
        # Which of two sentences comes first: a task of pre-training alone.
        "cls.seq_relationship.weight": None,
        "cls.seq_relationship.bias": None,
    }


def roberta_heads(prefix: str) -> dict[str, Entry]:
    """The heads of RoBERTa, whose classifier has its own layer instead of the pooler."""
    return {
        f"{prefix}.pooler.dense.weight": None,
        f"{prefix}.pooler.dense.bias": None,
        **linear(
            {
                "lm_head.dense": "head.transform",
                "lm_head.layer_norm": "head.norm",
                "classifier.dense": "head.dense",
                "classifier.out_proj": "head.out",
            },
            spare=True,
        ),
        "lm_head.bias": Target("head.bias", spare=True),
        "lm_head.decoder.weight": Target("head.weight", spare=True),
        # A second name of lm_head.bias.
        "lm_head.decoder.bias": None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class BertFormat:
    """A checkpoint format that differs from BERT's by names and values alone.

    Attributes:
        classes: the prefix of the names of its model classes.
        prefix: of the names of its weights.
        heads: whose heads it has.
        after_padding: positions are numbered from the padding id on.
        norms: published names of the norms.
        placement: of a layer's norms.
    """

    classes: str
    prefix: str
    heads: Literal["bert", "roberta"] = "bert"
    after_padding: bool = False
    norms: Norms = Norms()
    placement: Literal["pre", "post"] = "post"

    @property
    def family(self) -> Family[EncoderConfig]:
        """The format as a family."""
        heads = bert_heads if self.heads == "bert" else roberta_heads
        return Family(
            config=self.read,
            weights=with_token_heads(body(self.prefix, self.norms) | heads(self.prefix)),
            base_model_prefix=self.prefix,
            hf_config=self.write,
        )

    def read(self, hf: ConfigReader) -> EncoderConfig:
        """A published config as an `EncoderConfig`."""
        # Tasks of ERNIE, and how the pooler of old checkpoints was made, which is the same here.
        hf.refuse("use_task_id")
        hf.skip("task_type_vocab_size", "directionality", "pooler_fc_size", "pooler_type")
        hf.skip("pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head")
        # The rows up to that of the padding id are for padding.
        padding = hf.get("pad_token_id", int, 1) if self.after_padding else None
        config = read_encoder(hf, padding=padding, head=self._head(hf))
        norm = config.blocks[0].norm
        return replace(
            config,
            blocks=tuple(replace(block, placement=self.placement) for block in config.blocks),
            embedding_norm=norm if self.norms.embedding else None,
            final_norm=norm if self.norms.final else None,
        )

    def _head(self, hf: ConfigReader) -> Head | None:
        # RoBERTa's head has it, whatever the layers have.
        activation = hf.get("hidden_act", str, "gelu") if self.heads == "bert" else "gelu"
        layer = HeadLayer(activation=read_activation(activation), norm=_norm(hf))
        return read_head(
            hf,
            self.classes,
            LanguageModelHead(tied=True, bias=True, layer=layer),
            pretraining=self.heads == "bert",
            layer=HeadLayer(activation="tanh"),
        )

    def write(self, config: EncoderConfig) -> dict[str, object]:
        """The `config.json` of a model that computes what `config` says."""
        values = write_encoder(config, self.classes)
        if self.after_padding and isinstance(config.positions, LearnedPositions):
            values["pad_token_id"] = config.positions.offset - 1
        return values


def _norm(hf: ConfigReader) -> NormConfig:
    return layer_norm(hf.get("layer_norm_eps", float, 1e-12))


def read_encoder(
    hf: ConfigReader,
    *,
    padding: int | None = None,
    head: Head | None = None,
    activation: str = "gelu",
    tied: bool = True,
) -> EncoderConfig:
    """A bidirectional, post-norm encoder with learned positions.

    Positions are numbered from the `padding` id on, which has none itself.
    """
    hf.skip("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
    hf.refuse("is_decoder")
    offset = 0 if padding is None else padding + 1
    if tied:
        # Untied, transformers takes the bias of the logits from elsewhere, too.
        hf.require("tie_word_embeddings")
    kind = hf.get("position_embedding_type", str, "absolute")
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    rows = hf.size("max_position_embeddings")
    if kind != "absolute" or width % heads or rows <= offset:
        raise ConfigError(
            f"{hf.name}: position_embedding_type must be absolute, max_position_embeddings above "
            f"{offset}, and hidden_size divisible by num_attention_heads (got {kind!r:.40}, "
            f"{rows}, {width} and {heads}). This checkpoint cannot be loaded faithfully."
        )
    block = encoder_block(
        width=width,
        heads=heads,
        hidden=hf.size("intermediate_size"),
        activation=hf.get("hidden_act", str, activation),
        norm=_norm(hf),
    )
    return EncoderConfig(
        **hf.model_fields(),
        input=TokenInput(vocab_size=hf.size("vocab_size"), types=hf.get("type_vocab_size", int, 2)),
        hidden_size=width,
        context_length=rows - offset,
        positions=LearnedPositions(offset=offset, padding=padding),
        embedding_norm=block.norm,
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
        final_norm=None,
        head=head,
    )


def encoder_block(
    *, width: int, heads: int, hidden: int, activation: str, norm: NormConfig
) -> BlockConfig:
    """A layer of these families: every matrix biased, norms after residuals."""
    return BlockConfig(
        mixer=AttentionConfig(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=width // heads,
            scale=(width // heads) ** -0.5,
            qkv_bias=True,
            out_bias=True,
            causal=False,
        ),
        feed_forward=FeedForwardConfig(
            kind="mlp", intermediate_size=hidden, activation=read_activation(activation), bias=True
        ),
        norm=norm,
        placement="post",
    )


def write_encoder(config: EncoderConfig, classes: str) -> dict[str, object]:
    """The keys of a published config that these families share."""
    first, source, positions = config.blocks[0], config.input, config.positions
    if not isinstance(source, TokenInput) or not isinstance(positions, LearnedPositions):
        raise ConfigError(
            f"{config.model_type}: this format has tokens at learned positions only (got "
            f"{type(source).__name__} and {type(positions).__name__}). Save the model as another "
            "family."
        )
    return {
        "model_type": config.model_type,
        "vocab_size": source.vocab_size,
        "type_vocab_size": source.types,
        "hidden_size": config.hidden_size,
        "intermediate_size": first.dense.intermediate_size,
        "num_hidden_layers": len(config.blocks),
        "num_attention_heads": first.attention.num_heads,
        "max_position_embeddings": config.context_length + positions.offset,
        "hidden_act": write_activation(first.dense.activation),
        "layer_norm_eps": first.norm.eps,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "pad_token_id": config.pad_token_id,
        **head_hf_config(config.head, classes),
    }


_ROBERTA = BertFormat(classes="Roberta", prefix="roberta", heads="roberta", after_padding=True)

_FORMATS = {
    "bert": BertFormat(classes="Bert", prefix="bert"),
    # ERNIE (Sun et al. 2019), without its tasks.
    "ernie": BertFormat(classes="Ernie", prefix="ernie"),
    # Megatron's BERT (Shoeybi et al. 2019).
    "megatron-bert": BertFormat(
        classes="MegatronBert",
        prefix="bert",
        placement="pre",
        norms=Norms(
            embedding=None, attention="attention.ln", feed_forward="ln", final="encoder.ln"
        ),
    ),
    "roberta": _ROBERTA,
    # CamemBERT (Martin et al. 2020), XLM-R (Conneau et al. 2020), data2vec (Baevski et al. 2022).
    "camembert": replace(_ROBERTA, classes="Camembert"),
    "xlm-roberta": replace(_ROBERTA, classes="XLMRoberta"),
    "data2vec-text": replace(_ROBERTA, classes="Data2VecText", prefix="data2vec_text"),
    "roberta-prelayernorm": replace(
        _ROBERTA,
        classes="RobertaPreLayerNorm",
        prefix="roberta_prelayernorm",
        placement="pre",
        norms=Norms(
            attention="attention.LayerNorm",
            feed_forward="intermediate.LayerNorm",
            final="LayerNorm",
        ),
    ),
    # XLM-R XL (Goyal et al. 2021).
    "xlm-roberta-xl": replace(
        _ROBERTA,
        classes="XLMRobertaXL",
        placement="pre",
        norms=Norms(
            embedding=None,
            attention="attention.self_attn_layer_norm",
            feed_forward="LayerNorm",
            final="encoder.LayerNorm",
        ),
    ),
}

FAMILIES = {name: form.family for name, form in _FORMATS.items()}
