"""Limits, token types and padding of classifiers, rerankers and embedders, as other libraries save
and run them: the same numbers, or an error that names the difference."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import ortolan

pytestmark = pytest.mark.slow

QUICK = ortolan.ExportOptions(proof="quick")
WORDS = [*"abcdefghijklmnop", "[MASK]"]
SMALL: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.5,
    "max_position_embeddings": 66,
    "num_labels": 1,
}
LONG = ("a b c d e " * 9, "f g h i j k " * 9)
PAIRS = [("a b", "c"), ("a b", LONG[0]), (LONG[1], "c d e"), LONG, ("a <pad> b", "<pad> c <pad>")]
NAMES = ["input_ids", "token_type_ids", "attention_mask"]

Save = Callable[[Path], Any]
"""Saves a checkpoint, and returns the model of the other library."""


def tokenizer(
    *, doubled: bool = False, kind: str = "PreTrainedTokenizerFast", **options: Any
) -> Any:
    """Words of one letter, after special tokens, with a type for the second text of a pair."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = {word: token for token, word in enumerate([*special, *WORDS])}
    library = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    between = "</s> </s>:1" if doubled else "</s>"
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair=f"<s> $A {between} $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    names = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "unk": "<unk>"}
    names |= {"pad": "<pad>", "mask": "[MASK]"}
    tokens = {f"{name}_token": text for name, text in names.items()}
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_object=library, **tokens, **options)


def save(folder: Path, architecture: str, library: Any, **values: Any) -> Any:
    """Save a model of random weights and a tokenizer with transformers."""
    torch.manual_seed(0)
    kind: Any = getattr(transformers, architecture)
    model = kind(kind.config_class(**SMALL | {"pad_token_id": 1} | values)).eval()
    model.save_pretrained(folder)
    library.save_pretrained(folder)
    return model


def cross_encoder(
    architecture: str,
    library: Callable[[], Any],
    *,
    values: dict[str, Any] | None = None,
    **options: Any,
) -> Save:
    """A reranker as sentence-transformers saves it."""

    def write(folder: Path) -> Any:
        from sentence_transformers import CrossEncoder

        save(folder / "plain", architecture, library(), **values or {})
        CrossEncoder(str(folder / "plain"), **options).save_pretrained(str(folder / "saved"))
        return CrossEncoder(str(folder / "saved"))

    return write


ELECTRA = {"embedding_size": 32}
ROBERTA = {"type_vocab_size": 1}
RERANKERS: dict[str, Save] = {
    "bert, 24 tokens": cross_encoder(
        "BertForSequenceClassification", lambda: tokenizer(model_input_names=NAMES), max_length=24
    ),
    "bert, 25 tokens without types": cross_encoder(
        "BertForSequenceClassification", tokenizer, max_length=25
    ),
    "bert, own limit of the tokenizer": cross_encoder(
        "BertForSequenceClassification",
        lambda: tokenizer(model_input_names=NAMES, model_max_length=31),
    ),
    "bert, identity": cross_encoder(
        "BertForSequenceClassification",
        lambda: tokenizer(model_input_names=NAMES),
        activation_fn=torch.nn.Identity(),
        max_length=20,
    ),
    "electra, 30 tokens": cross_encoder(
        "ElectraForSequenceClassification",
        lambda: tokenizer(model_input_names=NAMES),
        values=ELECTRA,
        max_length=30,
    ),
    "albert, names without types": cross_encoder(
        "AlbertForSequenceClassification",
        lambda: tokenizer(model_input_names=["input_ids", "attention_mask"]),
        values={"embedding_size": 16},
        max_length=30,
    ),
    "roberta, padding in texts": cross_encoder(
        "RobertaForSequenceClassification",
        lambda: tokenizer(doubled=True),
        values=ROBERTA,
        max_length=33,
    ),
    "mpnet, padding in texts": cross_encoder(
        "MPNetForSequenceClassification", lambda: tokenizer(doubled=True), max_length=19
    ),
}


def load(folder: Path) -> ortolan.Encoder:
    ortolan.export(folder, folder / "bundle", options=QUICK)
    return ortolan.load(folder / "bundle", ortolan.Encoder, threads=1)


@pytest.mark.parametrize("name", RERANKERS)
def test_scores_of_rerankers_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    reference = RERANKERS[name](tmp_path)
    expected = np.ravel(reference.predict(PAIRS, show_progress_bar=False, batch_size=1))
    model = load(tmp_path / "saved")
    got = [one.score for one in model.classify(PAIRS, truncate=True)]
    np.testing.assert_allclose(got, expected, atol=2e-5)
    assert len(set(np.round(expected, 5))) > 3
    with pytest.raises(ortolan.ContextLengthError):
        model.classify([LONG])


CLASSIFIERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bert": ("Bert", {}, {"model_input_names": NAMES}),
    "roberta": ("Roberta", ROBERTA, {}),
    "mpnet": ("MPNet", {}, {}),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("task", ["text-classification", "token-classification"])
def test_labels_of_long_texts_are_those_of_the_pipeline(
    name: str, task: str, tmp_path: Path
) -> None:
    prefix, values, options = CLASSIFIERS[name]
    kind = "SequenceClassification" if task == "text-classification" else "TokenClassification"
    library = tokenizer(model_max_length=21, **options)
    model = save(tmp_path, f"{prefix}For{kind}", library, **values | {"num_labels": 3})
    texts = ["a b c", "a <pad> b c <pad>", LONG[0]]
    make: Any = transformers.pipeline
    pipeline = make(task, model=model, tokenizer=library)
    encoder = load(tmp_path)
    if task == "text-classification":
        whole = pipeline(texts, truncation=True, top_k=None)
        expected = [{entry["label"]: entry["score"] for entry in one} for one in whole]
        for one, scores in zip(encoder.classify(texts, truncate=True), expected, strict=True):
            assert dict(one.scores) == pytest.approx(scores, abs=1e-4)
        return
    for labelled, entries in zip(
        encoder.classify_tokens(texts, aggregation="none", truncate=True),
        pipeline(texts),
        strict=True,
    ):
        got = [(entity.label, entity.start, entity.end) for entity in labelled.entities]
        assert got == [(entry["entity"], entry["start"], entry["end"]) for entry in entries]


EMBEDDERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bert, 12 tokens": ("BertModel", {}, {"max_seq_length": 12}),
    "roberta, padding in texts": ("RobertaModel", ROBERTA, {"max_seq_length": 40}),
    "mpnet, limit of the call": (
        "MPNetModel",
        {},
        {"processing_kwargs": {"text": {"max_length": 9}}},
    ),
}


def embedder(folder: Path, architecture: str, values: dict[str, Any], options: Any) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    library = tokenizer(model_max_length=50)
    save(folder / "plain", architecture, library, **values)
    transformer = Transformer(str(folder / "plain"), **options)
    model = SentenceTransformer(modules=[transformer, Pooling(32)])
    model.save_pretrained(str(folder / "saved"))
    return SentenceTransformer(str(folder / "saved"))


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embeddings_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    reference = embedder(tmp_path, *EMBEDDERS[name])
    texts = ["a b c", "a <pad> b <pad> <pad> c", LONG[0], LONG[1]]
    expected = np.stack([reference.encode(text) for text in texts])
    got = load(tmp_path / "saved").embed(texts, truncate=True)
    np.testing.assert_allclose(got, expected, atol=1e-4 * float(np.abs(expected).max()))


def refused_prompt(folder: Path) -> None:
    write = cross_encoder(
        "BertForSequenceClassification",
        tokenizer,
        prompts={"query": "a b "},
        default_prompt_name="query",
    )
    write(folder)


def refused_deberta(folder: Path) -> None:
    save(folder / "saved", "DebertaV2ForSequenceClassification", tokenizer())


def refused_lengths(folder: Path) -> None:
    embedder(folder, "BertModel", {}, {"query_length": 8, "document_length": 16})


REFUSED: Sequence[tuple[Callable[[Path], None], str]] = [
    (refused_prompt, "default prompt"),
    (refused_deberta, "deberta-v2"),
    (refused_lengths, "query_length"),
]


@pytest.mark.parametrize(("write", "message"), REFUSED)
def test_what_is_not_supported_is_named(
    write: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    write(tmp_path)
    with pytest.raises(ortolan.OrtolanError, match=message):
        ortolan.export(tmp_path / "saved", tmp_path / "bundle", options=QUICK)
