"""Checkpoints of text encoders as their libraries save them: tiny, random."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.modeling.tiny_encoders import EncoderCase
from tests.runtime.tiny_tokenizers import byte_level, wordpiece
from tests.tiny.encoders import SIGLIP_TEXT
from tests.tiny.tokenizers import with_ends
from tokenizers import processors

from ortolan.modeling.checkpoint.sentence_head import write_sentence_head
from ortolan.modeling.config import EmbeddingHead

SIZES: dict[str, Any] = {
    "vocab_size": 420,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}

NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def tokenizer_of(kind: str, limit: int) -> Any:
    """A tokenizer of BERT or of RoBERTa, with a limit of tokens."""
    fast: Any = transformers.PreTrainedTokenizerFast
    if kind == "bert":
        library = wordpiece()
        library.add_special_tokens(["[PAD]", "[MASK]"])
        library = with_ends(library, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
        names = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "MASK", "CLS", "SEP")}
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        names["unk_token"] = "[UNK]"
    else:
        library = byte_level()
        start, end = ((name, library.token_to_id(name) or 0) for name in ("<s>", "</s>"))
        library.post_processor = processors.RobertaProcessing(
            end, start, trim_offsets=True, add_prefix_space=False
        )
        names = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<s>"}
        inputs = ["input_ids", "attention_mask"]
    return fast(tokenizer_object=library, model_max_length=limit, model_input_names=inputs, **names)


def save(folder: Path, architecture: str, *, limit: int = 40, **values: Any) -> None:
    """Write a random model with its tokenizer."""
    torch.manual_seed(0)
    kind = "bert" if architecture.startswith("Bert") else "roberta"
    config = getattr(transformers, "BertConfig" if kind == "bert" else "RobertaConfig")
    types = {} if kind == "bert" else {"type_vocab_size": 1, "pad_token_id": 0}
    model = getattr(transformers, architecture)(config(**SIZES, **types, **values))
    model.eval().save_pretrained(folder)
    tokenizer_of(kind, limit).save_pretrained(folder)


def padded(folder: Path) -> None:
    """A SigLIP, which reads padding like other tokens."""
    EncoderCase("SiglipTextModel", SIGLIP_TEXT | {"vocab_size": SIZES["vocab_size"]}).write(folder)
    tokenizer_of("roberta", SIGLIP_TEXT["max_position_embeddings"]).save_pretrained(folder)


def labels(*names: str) -> dict[str, Any]:
    """The keys of a config that name labels."""
    return {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}


def embedder(folder: Path) -> None:
    """A SentenceTransformer with prompts, one of them for every text."""
    save(folder, "BertModel")
    write_sentence_head(folder, EmbeddingHead(pooling=("mean",), normalised=True), 32)
    prompts = {"prompts": {"query": "find: ", "passage": "text: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24}))


def reranker(folder: Path) -> None:
    """A CrossEncoder with a limit and a function of its own."""
    from sentence_transformers import CrossEncoder

    save(folder / "plain", "BertForSequenceClassification", **labels("LABEL_0"))
    encoder: Any = CrossEncoder(
        str(folder / "plain"), max_length=24, activation_fn=torch.nn.Identity()
    )
    encoder.save_pretrained(str(folder))


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "embedder": embedder,
    "reranker": reranker,
    "classifier": lambda folder: save(
        folder,
        "RobertaForSequenceClassification",
        problem_type="multi_label_classification",
        **labels("calm", "loud", "odd"),
    ),
    "tagger": lambda folder: save(folder, "RobertaForTokenClassification", **labels(*NAMES)),
    "reader": lambda folder: save(folder, "RobertaForQuestionAnswering"),
    "padded": padded,
    "masked": lambda folder: save(folder, "BertForMaskedLM"),
}
"""Functions that write a checkpoint, by name."""
