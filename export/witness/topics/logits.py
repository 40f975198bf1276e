"""Logits of a decoder after every token of a text.

Shape letters: S tokens, R rows that the certificate keeps, K kept logits, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ortolan.export.witness.bundled import FLOAT32, Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.layers import first_layer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic
from ortolan.runtime.verification.certificate import Logits, kept_positions

MOST_TOKENS = 256
"""Longer probes, those of windows and whole contexts, would take too long in PyTorch."""


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Probes of the certificate, with the tokens whose logits it keeps."""
    if bundled.manifest.kind != "decoder" or bundled.manifest.is_head:
        return {}
    certificate = bundled.reference
    reference = certificate.reference
    if not isinstance(reference, Logits):
        return {}
    asked, row = {}, 0
    for number, probe in enumerate(certificate.probes):
        positions = kept_positions(probe.length, certificate.output)
        rows = slice(row, row + len(positions))
        row += len(positions)
        if probe.features or probe.length > MOST_TOKENS:
            continue  # vectors of images have a topic of their own
        name = f"{probe.length} token{'s' * (probe.length > 1)}"
        asked[name] = {
            "ids": certificate.ids(number),
            "positions": positions,
            "top_ids": reference.top_ids[rows],
            "rows": rows,
        }
    return asked


def ours(bundled: Bundled, question: Mapping[str, Any]) -> Answer:
    """The kept logits: of the bundle, or of the reference.

    The bundle has others where it rounds its weights, or is deeper than the publisher's model.
    """
    rows = question["rows"]
    if bundled.first_layers is not None or not bundled.has_exact_numbers:
        reference = bundled.reference.reference
        assert isinstance(reference, Logits)
        return {"top": reference.top_logits[rows], "log_sum_exp": reference.log_sum_exp[rows]}
    return kept(bundled.model.logits(question["ids"]), question)


@torch.inference_mode()
def theirs(publisher: Publisher, question: Mapping[str, Any]) -> Answer:
    """The same from an uncached forward pass."""
    output = publisher.stack(input_ids=torch.tensor([question["ids"]]), use_cache=False)
    return kept(output.logits[0].float().numpy(), question)


def kept(logits_SV: Any, question: Mapping[str, Any]) -> Answer:
    """The logits that the certificate keeps, and the logarithm of the sum of all."""
    logits_RV = logits_SV[question["positions"]].astype(np.float64)
    top_RK = np.take_along_axis(logits_RV, question["top_ids"].astype(np.int64), axis=-1)
    highest = logits_RV.max(axis=-1, keepdims=True)
    sums_R = np.log(np.exp(logits_RV - highest).sum(axis=-1)) + highest[:, 0]
    return {"top": top_RK, "log_sum_exp": sums_R}


def explain(bundled: Bundled, publisher: Publisher, question: Mapping[str, Any]) -> str | None:
    """The first layer whose output differs."""
    del bundled
    return first_layer(publisher, question["ids"], tolerance=FLOAT32)


LOGITS = Topic(
    name="logits",
    questions=questions,
    ours=ours,
    theirs=theirs,
    # the reference has float32 numbers whatever the precision
    tolerance=FLOAT32,
    explain=explain,
)
