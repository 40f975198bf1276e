"""Encoders of pairs of texts: rerankers, and classification by entailment."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from tests.cases import FP32, QUICK, Case, Command
from tests.cases.encoders import ENCODES, ONE, as_json, publisher_of, table, write
from tests.tiny.encoders import BERT
from tests.tiny.tokenizers import of_pairs

from ortolan.export.witness.texts import Reading
from ortolan.export.witness.topics.labels import theirs as scores_of

PAIRS = {
    "alike": ("def f(", "return x"),
    "other second": ("def f(", "import os, sys"),
    "letters": ("a", "b"),
    "empty": ("", "x"),
    "truncated": ("def main(x): " * 9, "return " * 20),
}

SMALL = BERT | {"num_hidden_layers": 1, "max_position_embeddings": 40}
PLAIN = {"type_vocab_size": 1, "pad_token_id": 0}


def fast_tokenizer(folder: Path, **options: Any) -> Any:
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="<s>", **options)


def classifier_of(folder: Path) -> Any:
    auto: Any = transformers.AutoModelForSequenceClassification
    return auto.from_pretrained(folder).eval()


def scores(model: Any, pairs: Sequence[tuple[str, str]]) -> list[float]:
    return [float(one.score) for one in model.classify(list(pairs), truncate=True)]


def by_pairs(folder: Path, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Those of transformers, with its tokenizer."""
    publisher = publisher_of(folder)
    return [scores_of(publisher, Reading(texts=pair))["LABEL_0"] for pair in pairs]


def reranker(name: str, architecture: str, values: dict[str, Any], **more: Any) -> Case:
    values = SMALL | ONE | values
    return Case(
        name=f"pairs {name}",
        write=partial(write, f"{architecture}ForSequenceClassification", values, of_pairs),
        inputs=PAIRS,
        call=scores,
        reference=by_pairs,
        features=ENCODES,
        **more,
    )


RERANKED = reranker(
    "bert",
    "Bert",
    {},
    variants=(QUICK,),
    refusals={
        "a long pair": lambda model: model.classify([PAIRS["alike"], PAIRS["truncated"]]),
        "three texts": lambda model: model.classify([("a", "b", "c")]),
    },
)

# --- entailment -----------------------------------------------------------------------------------

TOPICS = ["x", "for", "def f("]

CLAIMS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "three": ("def main(", TOPICS, {}),
    "one": ("import os", ["x"], {}),
    "each alone": ("return x", TOPICS, {"multi_label": True}),
    "one alone": ("def main(", ["x"], {"multi_label": True}),
    "template": ("def main(", ["{0}", "x"], {"multi_label": True, "template": "It is {}!"}),
}


def verdicts(model: Any, claims: Sequence[Any]) -> list[dict[str, float]]:
    return [
        dict(model.classify_as(text, topics, **options)[0].probabilities)
        for text, topics, options in claims
    ]


def by_entailment(folder: Path, claims: Sequence[Any]) -> list[dict[str, float]]:
    names = ["input_ids", "token_type_ids", "attention_mask"]
    library = fast_tokenizer(folder, model_input_names=names)
    zero_shot: Any = transformers.ZeroShotClassificationPipeline
    pipeline = zero_shot(model=classifier_of(folder), tokenizer=library)
    found = []
    for text, topics, options in claims:
        more = {"hypothesis_template": options["template"]} if "template" in options else {}
        multi_label = options.get("multi_label", False)
        theirs = pipeline(text, candidate_labels=topics, multi_label=multi_label, **more)
        found.append(dict(zip(theirs["labels"], theirs["scores"], strict=True)))
    return found


def entailment(name: str, labels: tuple[str, ...], **more: Any) -> Case:
    named = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}}
    values = SMALL | {"max_position_embeddings": 80} | named
    return Case(
        name=f"entailment {name}",
        write=partial(write, "BertForSequenceClassification", values, of_pairs),
        inputs=CLAIMS,
        call=verdicts,
        reference=by_entailment,
        features=frozenset({"own service"}),
        **more,
    )


def printed(model: Any, **options: Any) -> str:
    (result,) = model.classify_as("def main(", ["x", "for"], **options)
    return table([(label, f"{score:6.1%}") for label, score in result.probabilities.items()])


def shown(model: Any) -> str:
    (result,) = model.classify_as("def main(", ["x", "for"])
    row = {"input": "def main(", "label": result.label, "probability": result.score}
    return as_json(results=[row | {"probabilities": dict(result.probabilities)}])


TYPED = ("classify", "def main(", "--labels", "x, for", "--threads", "1")

ENTAILED = entailment(
    "last",
    ("contradiction", "neutral", "ENTAILMENT"),
    variants=(QUICK,),
    commands={
        "of labels": Command(words=TYPED, written=printed),
        "of each label": Command(
            words=(*TYPED, "--multi-label"),
            written=partial(printed, multi_label=True),
        ),
        "template": Command(
            words=(*TYPED, "--template", "It is {}."),
            written=partial(printed, template="It is {}."),
        ),
        "as JSON": Command(words=(*TYPED, "--json"), written=shown),
    },
    refusals={
        "no labels": lambda model: model.classify_as("a", []),
        "one text": lambda model: model.classify_as("a", "sport"),
        "a blank label": lambda model: model.classify_as("a", ["a", " "]),
        "a number": lambda model: model.classify_as("a", ["a", 1]),
        "a label twice": lambda model: model.classify_as("a", ["a", "a"]),
        "a template without a place": lambda model: model.classify_as("a", ["a"], template="It."),
        "a template of another type": lambda model: model.classify_as("a", ["a"], template=3),
        "ids": lambda model: model.classify_as([[1, 2]], ["a"]),
    },
)

CASES = (RERANKED, ENTAILED)

MORE = (
    reranker("roberta", "Roberta", PLAIN | {"model_type": "roberta"}, variants=(FP32,)),
    reranker("xlm-roberta", "XLMRoberta", PLAIN | {"model_type": "xlm-roberta"}),
    reranker("electra", "Electra", {"model_type": "electra", "embedding_size": 32}),
    entailment("first", ("entailment", "neutral", "contradiction")),
    entailment("of two", ("entailment", "not_entailment")),
)
"""Cases whose answers alone are compared."""
