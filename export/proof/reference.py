"""What a certificate keeps of what PyTorch computes.

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
"""Logits kept of each position."""


def keep(output: Tensor, kind: str, next_ids: Tensor | None) -> Logits | Vectors:
    """What is kept of the output of one probe.

    Args:
        output: what the model gives for it (`ortolan.export.exportable.Forward`).
        kind: of output (`runtime.bundle.kinds.OUTPUTS`).
        next_ids: the token that follows each position, `(S,)`; `None` where none follows.
    """
    if kind == "logits":
        return _logits(output, next_ids)
    if OUTPUTS[kind].are_logits:
        # of labels, all of them: they are few, and scores follow from all
        logits = widened(output[None].numpy())
        return summarize(logits, logits.shape[-1])
    if OUTPUTS[kind].by_token:
        return Vectors(values=output[kept_positions(len(output), kind)].numpy())
    return Vectors(values=output[None].numpy())


def named_scores(reference: Logits | Vectors, gives: Output) -> tuple[dict[str, float], ...]:
    """The scores of each probe by label, the highest first, as PyTorch computes them.

    Of many labels the first `MAX_SCORES`.
    """
    function = OUTPUTS[gives.kind].scores
    if function is None:
        return ()
    labels = distinct(gives.labels)
    found = []
    for numbers_L in reference.of_labels(len(labels)):
        scores_L = _score(torch.from_numpy(numbers_L).double(), function)
        order = scores_L.argsort(descending=True, stable=True)[:MAX_SCORES].tolist()
        found.append({labels[place]: float(scores_L[place]) for place in order})
    return tuple(found)


def _score(numbers_L: Tensor, function: ScoreFunction) -> Tensor:
    if function == "none":
        return numbers_L
    is_alone = len(numbers_L) == 1
    return numbers_L.sigmoid() if is_alone or function == "sigmoid" else numbers_L.softmax(-1)


def join(kept: Sequence[Logits | Vectors]) -> Logits | Vectors:
    """What is kept of several probes, in order."""
    vectors = [each.values for each in kept if isinstance(each, Vectors)]
    if vectors:
        return Vectors(values=np.concatenate(vectors))
    logits = [each for each in kept if isinstance(each, Logits)]
    following = [each.next_logits for each in logits if each.next_logits is not None]
    return Logits(
        top_ids=np.concatenate([each.top_ids for each in logits]),
        top_logits=np.concatenate([each.top_logits for each in logits]),
        log_sum_exp=np.concatenate([each.log_sum_exp for each in logits]),
        next_logits=np.concatenate(following) if following else None,
    )


def _logits(logits_SV: Tensor, next_ids: Tensor | None) -> Logits:
    """The highest logits `(S, K)`, those of the next tokens and log-sum-exp `(S,)`."""
    order = _highest(logits_SV)
    # A row at a time: float64 for one row of the vocabulary, not for all of them.
    sums = torch.stack([row.double().logsumexp(-1) for row in logits_SV])
    following = None if next_ids is None else logits_SV.gather(1, next_ids[:, None])[:, 0].numpy()
    return Logits(
        top_ids=order.to(torch.int32).numpy(),
        top_logits=logits_SV.gather(1, order).numpy(),
        log_sum_exp=sums.float().numpy(),
        next_logits=following,
    )


def _highest(logits_SV: Tensor) -> Tensor:
    """Where the highest logits of each row are, `(S, K)`; of equal ones the first comes first."""
    values, places = logits_SV.topk(min(TOP_K + 1, logits_SV.shape[1]))
    tied = (values[:, TOP_K - 1 : TOP_K] == values[:, TOP_K:]).any(-1)
    places = places[:, :TOP_K].sort(dim=-1).values
    order = logits_SV.gather(1, places).sort(dim=-1, descending=True, stable=True).indices
    highest = places.gather(1, order)
    for row in tied.nonzero()[:, 0].tolist():
        # Equal ones on both sides of the cut, of which topk takes any. Row by row: the order of a
        # whole vocabulary is twice as large as its logits.
        highest[row] = logits_SV[row].sort(descending=True, stable=True).indices[:TOP_K]
    return highest
