"""Tokens for the blanks of a text."""

from collections.abc import Mapping

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic, with_either_tokenizer
from ortolan.runtime.encoding.filling import MASKS

TOP = 5

FORMS: Mapping[str, str] = {
    "a blank": "Ada lives in {}.",
    "a blank at the start": "{} lives in Paris.",
    "three blanks": "Ada {} in {} and sings before {}",
}


def questions(bundled: Bundled) -> Mapping[str, str]:
    """Texts with blanks, as the vocabulary writes them."""
    tokenizer = bundled.tokenizer
    if bundled.output != "logits" or tokenizer is None or not bundled.has_exact_numbers:
        return {}
    known = {tokenizer.text_of(token) for token in tokenizer.special_ids()}
    masks = [mask for mask in MASKS if mask in known]
    return {name: form.replace("{}", masks[0]) for name, form in FORMS.items() if masks}


def ours(bundled: Bundled, text: str) -> Answer:
    """The likeliest tokens of each blank."""
    return [
        [(candidate.token, candidate.text, candidate.score) for candidate in blank]
        for blank in bundled.model.fill(text, top=TOP).blanks
    ]


def theirs(publisher: Publisher, text: str) -> Answer:
    """The same from a pipeline."""
    results = publisher.pipeline("fill-mask", top_k=TOP)(text)
    blanks = results if isinstance(results[0], list) else [results]
    return [
        [(one["token"], one["token_str"].strip(), float(one["score"])) for one in blank]
        for blank in blanks
    ]


BLANKS = Topic(name="blanks", questions=questions, ours=ours, theirs=with_either_tokenizer(theirs))
