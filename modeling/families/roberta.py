"""RoBERTa and its kin: BERT whose positions are counted from the padding id on."""

from ortolan.modeling.families.bert import BertLike, Norms

ROBERTA = BertLike(
    model_type="roberta",
    classes="Roberta",
    BASE_MODEL_PREFIX="roberta",
    heads="roberta",
    after_padding=True,
)
"""RoBERTa (Liu et al. 2019)."""

CAMEMBERT = BertLike(
    model_type="camembert",
    classes="Camembert",
    BASE_MODEL_PREFIX="roberta",
    heads="roberta",
    after_padding=True,
)
"""CamemBERT (Martin et al. 2020)."""

XLM_ROBERTA = BertLike(
    model_type="xlm-roberta",
    classes="XLMRoberta",
    BASE_MODEL_PREFIX="roberta",
    heads="roberta",
    after_padding=True,
)
"""XLM-R (Conneau et al. 2020)."""

DATA2VEC_TEXT = BertLike(
    model_type="data2vec-text",
    classes="Data2VecText",
    BASE_MODEL_PREFIX="data2vec_text",
    heads="roberta",
    after_padding=True,
)
"""data2vec (Baevski et al. 2022)."""

ROBERTA_PRELAYERNORM = BertLike(
    model_type="roberta-prelayernorm",
    classes="RobertaPreLayerNorm",
    BASE_MODEL_PREFIX="roberta_prelayernorm",
    heads="roberta",
    after_padding=True,
    placement="pre",
    norms=Norms(
        attention="attention.LayerNorm", feed_forward="intermediate.LayerNorm", final="LayerNorm"
    ),
)

XLM_ROBERTA_XL = BertLike(
    model_type="xlm-roberta-xl",
    classes="XLMRobertaXL",
    BASE_MODEL_PREFIX="roberta",
    heads="roberta",
    after_padding=True,
    placement="pre",
    norms=Norms(
        embedding=None,
        attention="attention.self_attn_layer_norm",
        feed_forward="LayerNorm",
        final="encoder.LayerNorm",
    ),
)
"""XLM-R XL (Goyal et al. 2021)."""
