"""Logits of a decoder after every token of a text, and of a source if it reads one.

Shape letters: S tokens, R rows that the certificate keeps, K kept logits, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ortolan.export.witness.bundled import FLOAT32, Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.layers import first_layer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.rounding import NEGLIGIBLE
from ortolan.export.witness.sources import kept_probes, probe_source, publisher_inputs
from ortolan.export.witness.topic import Topic
from ortolan.runtime.verification.certificate import Logits

MOST_TOKENS = 256
"""Longer probes, those of windows and whole contexts, would take too long in PyTorch."""

LARGE_BYTES, MOST_OF_LARGE = 1 << 30, 64
"""Bytes of weights from which probes have fewer tokens, as with a billion parameters one of 160
takes several seconds on two cores."""


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Probes of the certificate, with the tokens whose logits it keeps."""
    if not bundled.manifest.model_kind.has_decoder or bundled.manifest.is_head:
        return {}
    certificate = bundled.reference
    reference = certificate.reference
    if not isinstance(reference, Logits):
        return {}
    most = MOST_TOKENS if bundled.weight_bytes < LARGE_BYTES else MOST_OF_LARGE
    asked = {}
    for number, probe, positions, rows in kept_probes(certificate):
        if probe.features or probe.length > most:
            continue  # vectors of images have a topic of their own
        ids = certificate.ids(number)
        positions = [place for place in positions if place < _unpadded(bundled, ids)]
        rows = slice(rows.start, rows.start + len(positions))
        name = f"{probe.length} token{'s' * (probe.length > 1)}"
        asked[name] = {
            "ids": ids,
            "positions": positions,
            "top_ids": reference.top_ids[rows],
            "rows": rows,
            "source": probe_source(bundled, number),
            # a bundle has others where it rounds its weights, or is deeper than the publisher's
            "has_own": bundled.first_layers is None and bundled.has_exact_numbers,
        }
    return asked


def _unpadded(bundled: Bundled, ids: Sequence[int]) -> int:
    """Tokens before the first padding, apart from the start; see `known.PADDING`."""
    pad = bundled.manifest.tokens.pad
    return next((place for place, own in enumerate(ids) if place and own == pad), len(ids))


def ours(bundled: Bundled, question: Mapping[str, Any]) -> Answer:
    """The kept logits of the reference, and of the bundle if it has the same."""
    reference = bundled.reference.reference
    assert isinstance(reference, Logits)
    answer = {"reference": of_reference(reference, question["rows"])}
    if question["has_own"]:
        source = () if question["source"] is None else (question["source"],)
        answer["logits"] = kept(bundled.model.logits(*source, question["ids"]), question)
    return answer


@torch.inference_mode()
def theirs(publisher: Publisher, question: Mapping[str, Any]) -> Answer:
    """The same from an uncached forward pass."""
    logits = kept(_logits(publisher, question)[0].float().numpy(), question)
    own = {"logits": logits} if question["has_own"] else {}
    return {**own, "reference": logits}


def _logits(publisher: Publisher, question: Mapping[str, Any]) -> torch.Tensor:
    """Logits of the publisher's model, `(1, S, V)`."""
    ids = torch.tensor([question["ids"]])
    inputs = {"input_ids": ids}
    if question["source"] is not None:
        source = publisher_inputs(publisher, question["source"], is_probe=True)
        inputs = {**source, "decoder_input_ids": ids}
    logits: torch.Tensor = publisher.stack(**inputs, use_cache=False).logits
    return logits


def of_reference(reference: Logits, rows: slice) -> Answer:
    """The kept logits of some rows, and after them the logarithm of the sum of all."""
    return np.append(reference.top_logits[rows], reference.log_sum_exp[rows, None], axis=-1)


def kept(logits_SV: Any, question: Mapping[str, Any]) -> Answer:
    """The same of the logits of every token."""
    logits_RV = logits_SV[question["positions"]].astype(np.float64)
    top_RK = np.take_along_axis(logits_RV, question["top_ids"].astype(np.int64), axis=-1)
    highest_R1 = logits_RV.max(axis=-1, keepdims=True)
    sums_R1 = np.log(np.exp(logits_RV - highest_R1).sum(axis=-1, keepdims=True)) + highest_R1
    return np.append(top_RK, sums_R1, axis=-1)


def explain(bundled: Bundled, publisher: Publisher, question: Mapping[str, Any]) -> str | None:
    """The first layer whose output differs, for texts."""
    del bundled
    source = question["source"]
    if not isinstance(source, list | None):
        return None
    return first_layer(
        publisher,
        lambda: _logits(publisher, question),
        source=None if source is None else torch.tensor(source),
        ids=torch.tensor(question["ids"]),
        tolerance=NEGLIGIBLE,
    )


LOGITS = Topic(
    name="logits",
    questions=questions,
    ours=ours,
    theirs=theirs,
    tolerance=FLOAT32,
    explain=explain,
)
