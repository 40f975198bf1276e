"""Encoders of texts that label tokens, find answers and fill blanks."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.cases import FP32, QUICK, Case, Command, Variant, low_bit
from tests.cases.encoders import NAMES, as_json, publisher_of, table, write
from tests.modeling.tiny_encoders import ROBERTA
from tests.runtime.tiny_tokenizers import KINDS
from tests.tiny.encoders import BERT, DISTILBERT
from tests.tiny.tokenizers import of_pairs, of_texts, with_ends
from tokenizers import Tokenizer, pre_tokenizers

from ortolan.export.witness.texts import Reading
from ortolan.export.witness.topics.answers import theirs as answer_of
from ortolan.export.witness.topics.blanks import theirs as blanks_of
from ortolan.export.witness.topics.entities import theirs as entities_of

OWN = frozenset({"own service"})

# --- labels of tokens -----------------------------------------------------------------------------

STRATEGIES = ("none", "simple", "first", "average", "max")

SENTENCES = {
    "plain": "the quick brown fox jumps over it",
    "accents": "déjà vu 👩‍👧 in Łódź, naïve",
    "signs": "(Größe) it's\nhere",
}


def write_tagger(kind: str, folder: Path) -> None:
    """A tagger of tokens with a tokenizer that was trained."""
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    tagged = {"id2label": dict(enumerate(("O", "B-PER", "I-PER", "B-LOC", "I-LOC")))}
    sizes = {"vocab_size": tokenizer.get_vocab_size() + 3, "max_position_embeddings": 128}
    values = BERT | tagged | sizes | {"pad_token_id": 0}
    known = [name for name in ("<unk>", "[UNK]") if tokenizer.token_to_id(name) is not None]
    names = {"unk_token": known[0]} if known else {"cls_token": "[CLS]"}
    ended = with_ends(tokenizer, "[CLS] $A [SEP]")
    write("BertForTokenClassification", values, lambda: ended, folder, **names)


def entities(model: Any, texts: Sequence[str]) -> list[Any]:
    found: list[Any] = [{} for _ in texts]
    for each in STRATEGIES:
        results = model.classify_tokens(list(texts), aggregation=each)
        for place, (text, result) in enumerate(zip(texts, results, strict=True)):
            assert all(own.text == text[own.start : own.end] for own in result.entities)
            found[place][each] = [
                (own.label, own.start, own.end, float(own.score)) for own in result.entities
            ]
    return found


def by_tagging(folder: Path, texts: Sequence[str]) -> list[Any]:
    publisher = publisher_of(folder)
    found = [entities_of(publisher, (Reading(texts=(text,)), True)) for text in texts]
    return [{each: own[each] for each in STRATEGIES} for own in found]


def entity_rows(model: Any) -> list[tuple[str, str]]:
    (result,) = model.classify_tokens(SENTENCES["plain"])
    return [
        (own.label, f"{own.score:6.1%}  {own.start}-{own.end}  {own.text}")
        for own in result.entities
    ]


def tagger(kind: str, *variants: Variant, **more: Any) -> Case:
    return Case(
        name=f"tokens {kind}",
        write=partial(write_tagger, kind),
        inputs=SENTENCES,
        call=entities,
        reference=by_tagging,
        features=OWN,
        variants=variants or (FP32,),
        **more,
    )


TOKENS = tagger(
    "wordpiece",
    FP32,
    low_bit("int8"),
    low_bit("int4"),
    commands={
        "of a text": Command(
            words=("classify", SENTENCES["plain"], "--threads", "1"),
            written=lambda model: table(entity_rows(model)),
        ),
        "as JSON": Command(
            words=("classify", SENTENCES["plain"], "--threads", "1", "--json"),
            written=lambda model: as_json(
                results=[
                    {
                        "input": SENTENCES["plain"],
                        "entities": [
                            asdict(own)
                            for own in model.classify_tokens(SENTENCES["plain"])[0].entities
                        ],
                    }
                ]
            ),
        ),
    },
    refusals={
        "another aggregation": lambda model: model.classify_tokens("a", aggregation="mean"),
        "ids": lambda model: model.classify_tokens([[5, 6]]),
        "a long text": lambda model: model.classify_tokens("fox " * 400),
        "labels of the text": lambda model: model.classify("a"),
    },
)

# --- answers --------------------------------------------------------------------------------------

WORDS = ("def", "main", "(x)", ":", "return", "x", "import", "os", "for", "in", "range", "print")

SHORT = {"max_position_embeddings": 64}


def of_letters() -> Tokenizer:
    """A token per letter, in words."""
    tokenizer = of_pairs()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def questions() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Random questions and contexts, of which most need several windows."""
    random = np.random.default_rng(0)
    options: tuple[dict[str, Any], ...] = ({}, {"allow_none": True}, {"max_answer_tokens": 2})
    return {
        f"{place}": (
            " ".join(random.choice(WORDS, 3)),
            " ".join(random.choice(WORDS, int(random.integers(3, 80)))),
            options[place % len(options)],
        )
        for place in range(45)
    }


def answers(model: Any, inputs: Sequence[Any]) -> list[Any]:
    found = [model.answer(question, text, **options) for question, text, options in inputs]
    return [(own.text, own.start, own.end, own.score) for own in found]


def spans(folder: Path, inputs: Sequence[Any]) -> list[Any]:
    publisher = publisher_of(folder)
    return [answer_of(publisher, question) for question in inputs]


def reader(name: str, architecture: str, values: dict[str, Any], **more: Any) -> Case:
    write_reader = partial(write, f"{architecture}ForQuestionAnswering", values | SHORT, of_letters)
    return Case(
        **{
            "name": f"answers {name}",
            "write": write_reader,
            "inputs": questions(),
            "call": answers,
            "reference": spans,
            "features": OWN,
            **more,
        }
    )


PASSAGE = "def main(x): return x"


def answer_row(model: Any) -> list[tuple[str, str]]:
    own = model.answer("x", PASSAGE)
    return [(f"{own.score:6.1%}", f"{own.start}-{own.end}  {own.text}")]


ANSWERS = reader(
    "bert",
    "Bert",
    BERT,
    variants=(QUICK, low_bit("int8"), low_bit("int4")),
    commands={
        "of a question": Command(
            words=("answer", "x", "--context", "-", "--threads", "1"),
            stdin=PASSAGE.encode(),
            written=lambda model: table(answer_row(model)),
        ),
        "as JSON": Command(
            words=("answer", "x", "--context", "-", "--threads", "1", "--json"),
            stdin=PASSAGE.encode(),
            written=lambda model: as_json(question="x", **asdict(model.answer("x", PASSAGE))),
        ),
    },
    refusals={
        "no question": lambda model: model.answer(" ", "y"),
        "no context": lambda model: model.answer("x", ""),
        "ids": lambda model: model.answer("x", [1, 2]),
        "no tokens": lambda model: model.answer("x", "y", max_answer_tokens=0),
        "stride below 0": lambda model: model.answer("x", "y", stride=-1),
        "a number": lambda model: model.answer("x", "y", allow_none=1),
        "a long question": lambda model: model.answer("x " * 60, "y"),
        "a long stride": lambda model: model.answer("x", "y", stride=64),
        "states": lambda model: model.states("x"),
    },
)

# --- blanks ---------------------------------------------------------------------------------------


def write_filler(architecture: str, values: dict[str, Any], folder: Path, *, mask: str) -> None:
    special = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", mask]
    write(architecture, values, partial(of_texts, special, 97), folder, **NAMES, mask_token=mask)


def blanks(model: Any, texts: Sequence[str]) -> list[Any]:
    return [
        [[(own.token, own.text, float(own.score)) for own in blank] for blank in filled.blanks]
        for filled in map(model.fill, texts)
    ]


def by_filling(folder: Path, texts: Sequence[str]) -> list[Any]:
    publisher = publisher_of(folder)
    return [blanks_of(publisher, text) for text in texts]


def filler(architecture: str, values: dict[str, Any], mask: str, **more: Any) -> Case:
    forms = {"one": "w7 {} w9 w11", "first": "{} w20 w30", "several": "w8 {} {} w12 w40 {}"}
    return Case(
        name=f"blanks {values['model_type']}",
        write=partial(write_filler, f"{architecture}ForMaskedLM", values, mask=mask),
        inputs={name: form.replace("{}", mask) for name, form in forms.items()},
        call=blanks,
        reference=by_filling,
        features=OWN,
        **more,
    )


def blank_rows(model: Any) -> list[tuple[str, str]]:
    (blank,) = model.fill("w7 [MASK] w9", top=3).blanks
    return [(f"{own.score:6.1%}", own.text) for own in blank]


BLANKS = filler(
    "Bert",
    BERT,
    "[MASK]",
    variants=(QUICK,),
    commands={
        "of a text": Command(
            words=("fill", "w7 [MASK] w9", "--top", "3", "--threads", "1"),
            written=lambda model: table(blank_rows(model)),
        ),
        "as JSON": Command(
            words=("fill", "w7 [MASK] w9", "--threads", "1", "--json"),
            written=lambda model: as_json(**asdict(model.fill("w7 [MASK] w9"))),
        ),
    },
    refusals={
        "no blank": lambda model: model.fill("w7 w8"),
        "none of the likeliest": lambda model: model.fill("w7 [MASK]", top=0),
        "ids": lambda model: model.fill([7, 4]),
    },
)

PLAIN = {"type_vocab_size": 1, "pad_token_id": 0}

CASES = (TOKENS, ANSWERS, BLANKS)

MORE = (
    *(tagger(kind) for kind in ("byte_level", "metaspace", "sentencepiece")),
    reader("roberta", "Roberta", BERT | PLAIN | {"model_type": "roberta"}),
    reader("electra", "Electra", BERT | {"model_type": "electra"}),
    reader("distilbert", "DistilBert", DISTILBERT),
    filler("Roberta", ROBERTA, "<mask>"),
    filler("DistilBert", DISTILBERT, "[MASK]"),
)
"""Cases whose answers alone are compared."""
