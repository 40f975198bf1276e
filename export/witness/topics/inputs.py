"""Token ids and types of texts and pairs for an encoder, and where long ones are cut."""

import inspect
from collections.abc import Mapping

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.texts import Reading
from ortolan.export.witness.topic import Topic, with_either_tokenizer
from ortolan.runtime.bundle.source import IDS, TYPES
from ortolan.runtime.inputs.readers import reader_of

TENSORS = ("input_ids", "token_type_ids")

MOST_TOKENS = 1 << 16
"""Longest context that a text is made for."""


def questions(bundled: Bundled) -> Mapping[str, Reading]:
    """Texts and pairs for an encoder of texts."""
    return bundled.readings(most=MOST_TOKENS) if bundled.is_text_encoder else {}


def ours(bundled: Bundled, reading: Reading) -> Answer:
    """Ids and types, as the graph reads them."""
    reader = reader_of(bundled.manifest, bundled.tokenizer)
    feeds = reader.feeds([reader.read(reading.value, truncate=True)])
    ids = feeds[IDS][0].tolist()
    return {"ids": ids, "types": feeds[TYPES][0].tolist() if TYPES in feeds else [0] * len(ids)}


def theirs(publisher: Publisher, reading: Reading) -> Answer:
    """The same from the publisher's tokenizer."""
    truncation = publisher.truncation(reading)
    if publisher.has_sentence_files:
        encoded = publisher.sentence_stack.preprocess([reading.value])
        rows = {name: encoded[name][0].tolist() for name in TENSORS if name in encoded}
    else:
        rows = publisher.tokenizer(*reading.texts, **truncation)
    ids, types = list(rows["input_ids"]), list(rows.get("token_type_ids", ()))
    return {"ids": ids, "types": types if types and _reads_types(publisher) else [0] * len(ids)}


def _reads_types(publisher: Publisher) -> bool:
    """Whether a model reads types; see `known.TYPES`."""
    is_read = "token_type_ids" in inspect.signature(publisher.outline.forward).parameters
    return is_read and getattr(publisher.config, "type_vocab_size", 2) > 1


INPUTS = Topic(name="inputs", questions=questions, ours=ours, theirs=with_either_tokenizer(theirs))
