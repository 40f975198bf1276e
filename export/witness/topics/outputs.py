"""Numbers of an encoder of texts for token ids and token types.

Shape letters: T tokens, E numbers of one output, R rows that the certificate keeps.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ortolan.export.witness.bundled import FLOAT32, Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.layers import first_layer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.rounding import NEGLIGIBLE
from ortolan.export.witness.sources import kept_probes
from ortolan.export.witness.topic import Topic
from ortolan.export.witness.topics.logits import MOST_TOKENS, kept, of_reference
from ortolan.runtime.inputs.ids import TextIds
from ortolan.runtime.verification.certificate import Logits


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Probes of the certificate."""
    if not bundled.is_text_encoder or bundled.manifest.certificate is None:
        return {}
    certificate = bundled.reference
    reference = certificate.reference
    of_words = reference if certificate.output == "logits" else None
    asked = {}
    for number, probe, positions, rows in kept_probes(certificate):
        if probe.length > MOST_TOKENS:
            continue
        start = certificate.start(number)
        types = certificate.types
        asked[probe.name] = {
            "ids": certificate.ids(number),
            "types": None if types is None else types[start : start + probe.length].tolist(),
            "positions": positions,
            "rows": rows,
            "output": certificate.output,
            "top_ids": of_words.top_ids[rows] if isinstance(of_words, Logits) else None,
        }
    return asked


def ours(bundled: Bundled, question: Mapping[str, Any]) -> Answer:
    """Numbers of the bundle, or of the reference where its weights are rounded."""
    if bundled.first_layers is None and bundled.has_exact_numbers:
        texts = bundled.model.rows
        ids = TextIds(question["ids"], types=question["types"] or ())
        return _kept(texts.outputs([texts.item(ids, 0)])[0], question)
    rows, reference = question["rows"], bundled.reference.reference
    output = bundled.manifest.output
    if output is not None and output.labels:
        return reference.of_labels(output.size)[rows]
    if isinstance(reference, Logits):
        return of_reference(reference, rows)
    return reference.values[rows]


@torch.inference_mode()
def theirs(publisher: Publisher, question: Mapping[str, Any]) -> Answer:
    """The same from a forward pass."""
    return _kept(_numbers(publisher, question)[0].float().numpy(), question)


def _numbers(publisher: Publisher, question: Mapping[str, Any]) -> Any:
    """Numbers of all tokens `(1, T, E)`, or of the text `(1, E)`."""
    ids = torch.tensor([question["ids"]])
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if question["types"] is not None:
        features["token_type_ids"] = torch.tensor([question["types"]])
    output = question["output"]
    if output == "embedding" and publisher.has_sentence_files:
        return publisher.sentence_stack(features)["sentence_embedding"]
    return NUMBERS[output](publisher.stack(**features))


def _logits(output: Any) -> Any:
    # a model of pre-training has two heads
    return output.prediction_logits if "prediction_logits" in output else output.logits


NUMBERS: Mapping[str, Callable[[Any], Any]] = {
    "states": lambda output: output.last_hidden_state,
    "embedding": lambda output: (
        output.text_embeds if "text_embeds" in output else output.pooler_output
    ),
    "spans": lambda output: torch.stack([output.start_logits, output.end_logits], -1),
    **dict.fromkeys(("logits", "labels", "tags", "scores", "token_labels"), _logits),
}
"""Numbers `(1, T, E)` or `(1, E)` in an output of transformers, by kind of output."""


def _kept(numbers: Any, question: Mapping[str, Any]) -> Answer:
    numbers_TE = np.atleast_2d(numbers)
    if question["top_ids"] is not None:
        return kept(numbers_TE, question)
    return numbers_TE[question["positions"]]


def explain(bundled: Bundled, publisher: Publisher, question: Mapping[str, Any]) -> str | None:
    """The first layer whose output differs."""
    del bundled
    ids, types = question["ids"], question["types"]
    return first_layer(
        publisher,
        lambda: _numbers(publisher, question),
        source=torch.tensor(ids if types is None else [ids, types]),
        tolerance=NEGLIGIBLE,
    )


OUTPUTS = Topic(
    name="outputs",
    questions=questions,
    ours=ours,
    theirs=theirs,
    tolerance=FLOAT32,
    explain=explain,
)
