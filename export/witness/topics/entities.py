"""Labels of tokens, and the entities that they make up."""

from collections.abc import Mapping
from typing import Any, get_args

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic, with_either_tokenizer
from ortolan.export.witness.topics.embeddings import MOST_TOKENS
from ortolan.runtime.encoding.token_classification import Aggregation

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Texts; of rounded weights, whose labels may be others, the places of their tokens alone."""
    if bundled.output != "token_labels":
        return {}
    is_exact = bundled.has_exact_numbers
    readings = bundled.readings(most=MOST_TOKENS)
    return {name: (reading, is_exact) for name, reading in readings.items()}


def ours(bundled: Bundled, question: Any) -> Answer:
    """Places of tokens, and entities by aggregation."""
    reading, is_exact = question
    answer: dict[str, Any] = {}
    for aggregation in AGGREGATIONS if is_exact else ():
        (result,) = bundled.model.classify_tokens(
            [reading.value], aggregation=aggregation, truncate=True
        )
        answer[aggregation] = [
            (entity.label, entity.start, entity.end, entity.score) for entity in result.entities
        ]
    (result,) = bundled.model.classify_tokens([reading.value], truncate=True)
    return answer | {"tokens": [(token.start, token.end) for token in result.tokens]}


def theirs(publisher: Publisher, question: Any) -> Answer:
    """The same from pipelines, which cut texts at the tokenizer's limit."""
    reading, is_exact = question
    publisher.truncation(reading)
    answer: dict[str, Any] = {}
    for aggregation in AGGREGATIONS if is_exact else ():
        label = publisher.pipeline("token-classification", aggregation_strategy=aggregation)
        name = "entity" if aggregation == "none" else "entity_group"
        answer[aggregation] = [
            (entity[name], entity["start"], entity["end"], float(entity["score"]))
            for entity in label(reading.value)
        ]
    label = publisher.pipeline("token-classification", ignore_labels=[])
    return answer | {"tokens": [(token["start"], token["end"]) for token in label(reading.value)]}


ENTITIES = Topic(
    name="entities", questions=questions, ours=ours, theirs=with_either_tokenizer(theirs)
)
