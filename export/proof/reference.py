"""Reduces the outputs of PyTorch to what a certificate stores.

Shape letters: S tokens of a probe, R rows of all probes, V vocabulary, K kept logits.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ortolan.runtime.bundle.kinds import OUTPUTS, ScoreFunction
from ortolan.runtime.bundle.labels import distinct
from ortolan.runtime.bundle.manifest import Output
from ortolan.runtime.verification.certificate import Logits, Vectors, kept_positions
from ortolan.runtime.verification.comparison import summarize, widened
from ortolan.runtime.verification.surroundings import MAX_SCORES

TOP_K = 32
"""Logits stored per position."""


def keep(output: Tensor, kind: str, next_ids: Tensor | None) -> Logits | Vectors:
    """Reduce the output of one probe.

    Args:
        output: of the model (`ortolan.export.exportable.Forward`).
        kind: of output (`runtime.bundle.kinds.OUTPUTS`).
        next_ids: the token after each position, `(S,)`; None for an encoder.
    """
    if OUTPUTS[kind].are_logits and OUTPUTS[kind].scores is None:
        return _logits(output, next_ids)
    if OUTPUTS[kind].are_logits:
        # All labels: they are few, and scores depend on all of them.
        logits = widened(output.reshape(-1, output.shape[-1]).numpy())
        return summarize(logits, logits.shape[-1])
    if OUTPUTS[kind].by_token:
        return Vectors(values=output[kept_positions(len(output), kind)].numpy())
    return Vectors(values=output[None].numpy())


def named_scores(
    reference: Logits | Vectors, gives: Output, *, rows: int
) -> tuple[dict[str, float], ...]:
    """Scores of the first rows by label, at most `MAX_SCORES`, the highest first."""
    function = OUTPUTS[gives.kind].scores
    if function is None:
        return ()
    labels = distinct(gives.labels)
    scores = []
    for numbers_L in reference.of_labels(len(labels))[:rows]:
        scores_L = _score(torch.from_numpy(numbers_L).double(), function)
        order = scores_L.argsort(descending=True, stable=True)[:MAX_SCORES].tolist()
        scores.append({labels[place]: float(scores_L[place]) for place in order})
    return tuple(scores)


def _score(numbers_L: Tensor, function: ScoreFunction) -> Tensor:
    if function == "none":
        return numbers_L
    is_alone = len(numbers_L) == 1
    return numbers_L.sigmoid() if is_alone or function == "sigmoid" else numbers_L.softmax(-1)


def join(parts: Sequence[Logits | Vectors]) -> Logits | Vectors:
    """Join the reduced outputs of all probes, in order."""
    vectors = [part.values for part in parts if isinstance(part, Vectors)]
    if vectors:
        return Vectors(values=np.concatenate(vectors))
    logits = [part for part in parts if isinstance(part, Logits)]
    following = [part.next_logits for part in logits if part.next_logits is not None]
    return Logits(
        top_ids=np.concatenate([part.top_ids for part in logits]),
        top_logits=np.concatenate([part.top_logits for part in logits]),
        log_sum_exp=np.concatenate([part.log_sum_exp for part in logits]),
        next_logits=np.concatenate(following) if following else None,
    )


def _logits(logits_SV: Tensor, next_ids: Tensor | None) -> Logits:
    """The top logits `(S, K)`, those of the next tokens, and log-sum-exp `(S,)`."""
    order = _highest(logits_SV)
    # Row by row, so that only one row is in float64.
    sums = torch.stack([row.double().logsumexp(-1) for row in logits_SV])
    following = None if next_ids is None else logits_SV.gather(1, next_ids[:, None])[:, 0].numpy()
    return Logits(
        top_ids=order.to(torch.int32).numpy(),
        top_logits=logits_SV.gather(1, order).numpy(),
        log_sum_exp=sums.float().numpy(),
        next_logits=following,
    )


def _highest(logits_SV: Tensor) -> Tensor:
    """Ids of the top logits of each row, `(S, K)`; ties in the order of ids."""
    values, places = logits_SV.topk(min(TOP_K + 1, logits_SV.shape[1]))
    tied = (values[:, TOP_K - 1 : TOP_K] == values[:, TOP_K:]).any(-1)
    places = places[:, :TOP_K].sort(dim=-1).values
    order = logits_SV.gather(1, places).sort(dim=-1, descending=True, stable=True).indices
    highest = places.gather(1, order)
    for row in tied.nonzero()[:, 0].tolist():
        # A tie across the cut, where topk chooses arbitrarily. Row by row, since sorting a whole
        # vocabulary needs twice the memory of its logits.
        highest[row] = logits_SV[row].sort(descending=True, stable=True).indices[:TOP_K]
    return highest
