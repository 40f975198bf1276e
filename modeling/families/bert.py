"""BERT (Devlin et al. 2019): an encoder with norms after the residuals, and three heads.

`BertLike` serves every family that differs from BERT by names and values alone.
"""

from dataclasses import dataclass, replace
from typing import Literal

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    ClassifierHead,
    EncoderConfig,
    FeedForwardConfig,
    Head,
    LanguageModelHead,
    LearnedPositions,
    NormConfig,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation, write_activation
from ortolan.modeling.families.classifier import problem_of, read_classifier
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Table, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """What a family calls its norms: of the embedding, of a layer's halves, and the last one."""

    embedding: str | None = "embeddings.LayerNorm"
    attention: str = "attention.output.LayerNorm"
    feed_forward: str = "output.LayerNorm"
    final: str | None = None


AFTER = Norms()
"""Norms after the residuals, as in BERT."""


def body(prefix: str, norms: Norms = AFTER) -> dict[str, Target | None]:
    """The table of all but the heads, whose names begin with `prefix`."""
    layer = f"{prefix}.encoder.layer.{{}}"
    modules = {
        f"{layer}.attention.self.query": "blocks.{}.attention.qkv",
        f"{layer}.attention.self.key": "blocks.{}.attention.qkv",
        f"{layer}.attention.self.value": "blocks.{}.attention.qkv",
        f"{layer}.attention.output.dense": "blocks.{}.attention.out",
        f"{layer}.{norms.attention}": "blocks.{}.attention_norm",
        f"{layer}.intermediate.dense": "blocks.{}.feed_forward.up",
        f"{layer}.output.dense": "blocks.{}.feed_forward.down",
        f"{layer}.{norms.feed_forward}": "blocks.{}.feed_forward_norm",
    }
    ends = {norms.embedding: "embedding_norm", norms.final: "final_norm"}
    modules |= {f"{prefix}.{theirs}": ours for theirs, ours in ends.items() if theirs}
    return {
        f"{prefix}.embeddings.word_embeddings.weight": Target("embedding.weight"),
        f"{prefix}.embeddings.position_embeddings.weight": Target("position_embedding.weight"),
        f"{prefix}.embeddings.token_type_embeddings.weight": Target("type_embedding.weight"),
        # Counted numbers that old versions of transformers saved.
        f"{prefix}.embeddings.position_ids": None,
        **linear(modules),
    }


def linear(modules: dict[str, str], *, spare: bool = False) -> dict[str, Target | None]:
    """The rows of a table for modules with a weight and a bias, by their names and ours."""
    return {
        f"{theirs}.{kind}": Target(f"{ours}.{kind}", spare=spare)
        for theirs, ours in modules.items()
        for kind in ("weight", "bias")
    }


def bert_heads(prefix: str, *, norm: str = "LayerNorm") -> dict[str, Target | None]:
    """The heads of BERT: a pooler below the classifier, a transform below the logits."""
    classifier = {f"{prefix}.pooler.dense": "head.dense", "classifier": "head.out"}
    return {**linear(classifier, spare=True), **masked_head(norm=norm)}


def masked_head(*, norm: str = "LayerNorm") -> dict[str, Target | None]:
    """The head of BERT's language model, with the name of its norm."""
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
        # Which of two sentences comes first: a task of the pre-training alone.
        "cls.seq_relationship.weight": None,
        "cls.seq_relationship.bias": None,
    }


def roberta_heads(prefix: str) -> dict[str, Target | None]:
    """The heads of RoBERTa: a classifier with a layer of its own in place of the pooler."""
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
class BertLike:
    """A family that differs from BERT by names and values alone.

    Attributes:
        model_type: of its configs.
        classes: what the names of its models begin with.
        BASE_MODEL_PREFIX: of the names of its weights.
        heads: whose heads it has.
        after_padding: positions are counted from the padding id on.
        norms: what it calls them.
        placement: of a layer's norms.
    """

    model_type: str
    classes: str
    BASE_MODEL_PREFIX: str
    heads: Literal["bert", "roberta"]
    after_padding: bool
    norms: Norms = AFTER
    placement: Literal["pre", "post"] = "post"

    @property
    def WEIGHTS(self) -> Table:  # noqa: N802 - the table
        """Published weight names to ours."""
        prefix = self.BASE_MODEL_PREFIX
        heads = bert_heads(prefix) if self.heads == "bert" else roberta_heads(prefix)
        return body(prefix, self.norms) | heads

    def config(self, hf: ConfigReader) -> EncoderConfig:
        """A published config as an `EncoderConfig`.

        Raises:
            ConfigError: positions of another kind, or widths that do not fit.
        """
        # Of ERNIE's tasks, and how the pooler of old checkpoints was made: it is the same here.
        hf.refuse("use_task_id")
        hf.skip("task_type_vocab_size", "directionality", "pooler_fc_size", "pooler_type")
        hf.skip("pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head")
        # The rows up to that of the padding id are for padding.
        offset = hf.get("pad_token_id", int, 1) + 1 if self.after_padding else 0
        config = bert_like(hf, model_type=self.model_type, offset=offset, head=self._head(hf))
        norm = config.blocks[0].norm
        return replace(
            config,
            blocks=tuple(replace(block, placement=self.placement) for block in config.blocks),
            embedding_norm=norm if self.norms.embedding else None,
            final_norm=norm if self.norms.final else None,
        )

    def _head(self, hf: ConfigReader) -> Head | None:
        base, masked, pretraining, classifier = self._architectures()
        known = (base, masked, classifier)
        name = hf.architecture(*known, *([pretraining] if self.heads == "bert" else []))
        if name == classifier:
            return read_classifier(hf, pooling="first", activation="tanh")
        if name == base:
            return None
        # RoBERTa's has it, whatever the layers have.
        own = hf.get("hidden_act", str, "gelu") if self.heads == "bert" else "gelu"
        return LanguageModelHead(
            tied=True, bias=True, activation=read_activation(own), norm=_norm(hf)
        )

    def _architectures(self) -> list[str]:
        kinds = ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification")
        return [f"{self.classes}{kind}" for kind in kinds]

    def hf_config(self, config: EncoderConfig) -> dict[str, object]:
        """The `config.json` of a model that computes what `config` says."""
        base, masked, _, classifier = self._architectures()
        values = bert_like_hf_config(config, base, masked, classifier)
        if self.after_padding and isinstance(config.positions, LearnedPositions):
            values["pad_token_id"] = config.positions.offset - 1
        return values


def _norm(hf: ConfigReader) -> NormConfig:
    return NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-12))


def bert_like(
    hf: ConfigReader,
    *,
    model_type: str,
    offset: int,
    head: Head | None,
    activation: str = "gelu",
    tied: bool = True,
) -> EncoderConfig:
    """A bidirectional, post-norm encoder with learned positions after `offset` rows.

    Raises:
        ConfigError: positions of another kind, or widths that do not fit.
    """
    hf.skip("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
    hf.refuse("is_decoder")
    if tied:
        # Without it, transformers takes the bias of the logits from elsewhere, too.
        hf.require("tie_word_embeddings")
    kind = hf.get("position_embedding_type", str, "absolute")
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    rows = hf.size("max_position_embeddings")
    if kind != "absolute" or width % heads or rows <= offset:
        raise ConfigError(
            f"config.json: expected absolute positions, more than {offset} of them, and "
            f"hidden_size divisible by num_attention_heads, got {kind!r:.40}, {rows}, {width} "
            f"and {heads}. This checkpoint cannot be loaded faithfully."
        )
    block = encoder_block(
        width=width,
        heads=heads,
        hidden=hf.size("intermediate_size"),
        activation=hf.get("hidden_act", str, activation),
        norm=_norm(hf),
    )
    return EncoderConfig(
        model_type=model_type,
        input=TokenInput(vocab_size=hf.size("vocab_size"), types=hf.get("type_vocab_size", int, 2)),
        hidden_size=width,
        context_length=rows - offset,
        positions=LearnedPositions(offset=offset),
        embedding_norm=block.norm,
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
        final_norm=None,
        head=head,
        bos_token_id=hf.get("bos_token_id", int, None),
        eos_token_ids=hf.token_ids("eos_token_id"),
        pad_token_id=hf.get("pad_token_id", int, None),
    )


def encoder_block(
    *, width: int, heads: int, hidden: int, activation: str, norm: NormConfig
) -> BlockConfig:
    """A layer as all these families have it: every matrix biased, norms after residuals."""
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


def bert_like_hf_config(
    config: EncoderConfig, base: str, masked: str, classifier: str
) -> dict[str, object]:
    """The keys that BERT-like families share, with the class of each head.

    Raises:
        ConfigError: an input or positions that the format does not have.
    """
    first, source, positions = config.blocks[0], config.input, config.positions
    if not isinstance(source, TokenInput) or not isinstance(positions, LearnedPositions):
        raise ConfigError(
            f"{config.model_type}: expected tokens at learned positions, got "
            f"{type(source).__name__} and {type(positions).__name__}. Save it as another family."
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
        **head_hf_config(config.head, base, masked, classifier),
    }


def head_hf_config(head: Head | None, base: str, masked: str, classifier: str) -> dict[str, object]:
    """The keys that say what head a model has."""
    match head:
        case LanguageModelHead(tied=tied):
            return {"architectures": [masked], "tie_word_embeddings": tied}
        case ClassifierHead(labels=labels):
            return {
                **problem_of(head),
                "architectures": [classifier],
                "id2label": {str(i): label for i, label in enumerate(labels)},
                "label2id": {label: i for i, label in enumerate(labels)},
            }
        case _:
            return {"architectures": [base]}


BERT = BertLike(
    model_type="bert",
    classes="Bert",
    BASE_MODEL_PREFIX="bert",
    heads="bert",
    after_padding=False,
)

ERNIE = BertLike(
    model_type="ernie",
    classes="Ernie",
    BASE_MODEL_PREFIX="ernie",
    heads="bert",
    after_padding=False,
)
"""ERNIE (Sun et al. 2019), without its tasks."""

MEGATRON_BERT = BertLike(
    model_type="megatron-bert",
    classes="MegatronBert",
    BASE_MODEL_PREFIX="bert",
    heads="bert",
    after_padding=False,
    placement="pre",
    norms=Norms(embedding=None, attention="attention.ln", feed_forward="ln", final="encoder.ln"),
)
"""Megatron's BERT (Shoeybi et al. 2019)."""
