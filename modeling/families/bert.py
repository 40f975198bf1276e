"""BERT (Devlin et al. 2019): an encoder with norms after the residuals, and three heads.

`bert_like` serves every family that differs from BERT by values alone.
"""

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
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "bert"

BASE, MASKED, PRETRAINING, CLASSIFIER = (
    f"Bert{kind}"
    for kind in ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification")
)


def body(prefix: str) -> dict[str, Target | None]:
    """The table of all but the heads, whose names begin with `prefix`."""
    layer = f"{prefix}.encoder.layer.{{}}"
    modules = {
        f"{prefix}.embeddings.LayerNorm": "embedding_norm",
        f"{layer}.attention.self.query": "blocks.{}.attention.qkv",
        f"{layer}.attention.self.key": "blocks.{}.attention.qkv",
        f"{layer}.attention.self.value": "blocks.{}.attention.qkv",
        f"{layer}.attention.output.dense": "blocks.{}.attention.out",
        f"{layer}.attention.output.LayerNorm": "blocks.{}.attention_norm",
        f"{layer}.intermediate.dense": "blocks.{}.feed_forward.up",
        f"{layer}.output.dense": "blocks.{}.feed_forward.down",
        f"{layer}.output.LayerNorm": "blocks.{}.feed_forward_norm",
    }
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


WEIGHTS: Table = {
    **body("bert"),
    **linear({"bert.pooler.dense": "head.dense", "classifier": "head.out"}, spare=True),
    **linear(
        {
            "cls.predictions.transform.dense": "head.transform",
            "cls.predictions.transform.LayerNorm": "head.norm",
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


def config(hf: ConfigReader) -> EncoderConfig:
    """A `BertConfig` of Hugging Face as an `EncoderConfig`."""
    # How the pooler of old checkpoints was made; it is always the same here.
    hf.skip("directionality", "pooler_fc_size", "pooler_num_attention_heads")
    hf.skip("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type")
    head: Head | None = None
    architecture = hf.architecture(BASE, MASKED, PRETRAINING, CLASSIFIER)
    if architecture == CLASSIFIER:
        head = ClassifierHead(labels=hf.labels(), pooling="first", activation="tanh")
    elif architecture != BASE:
        head = LanguageModelHead(
            tied=True,
            bias=True,
            activation=read_activation(hf.get("hidden_act", str, "gelu")),
            norm=_norm(hf),
        )
    return bert_like(hf, model_type="bert", offset=0, head=head)


def _norm(hf: ConfigReader) -> NormConfig:
    return NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-12))


def bert_like(
    hf: ConfigReader, *, model_type: str, offset: int, head: Head | None
) -> EncoderConfig:
    """A bidirectional, post-norm encoder with learned positions after `offset` rows.

    Raises:
        ConfigError: positions of another kind, or widths that do not fit.
    """
    hf.skip("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
    hf.skip("num_labels")
    hf.refuse("is_decoder")
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
        activation=hf.get("hidden_act", str, "gelu"),
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
        attention=AttentionConfig(
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


def hf_config(config: EncoderConfig) -> dict[str, object]:
    """The `config.json` of a BERT that computes what `config` says."""
    return bert_like_hf_config(config, BASE, MASKED, CLASSIFIER)


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
                "architectures": [classifier],
                "id2label": {str(i): label for i, label in enumerate(labels)},
                "label2id": {label: i for i, label in enumerate(labels)},
            }
        case _:
            return {"architectures": [base]}
