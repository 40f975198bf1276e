"""What a certificate keeps of what PyTorch computes, from the stream that leaves the last layer.

Shape letters: S tokens of a probe, E model width, R rows of all probes, V vocabulary, N rows of the
vocabulary in one chunk, K kept logits.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.export.source.layers import CHUNK_ROWS, Layers, LogitsProduct
from ortolan.modeling.weights import read_weight
from ortolan.runtime.certificate import Logits, Vectors, summarize
from ortolan.runtime.certificate.fields import kept_positions
from ortolan.runtime.certificate.figures import widened

TOP_K = 32
"""Logits kept of each position."""


def reference_of(
    layers: Layers, streams: Sequence[Tensor], output: str, next_ids: Tensor | None
) -> Logits | Vectors:
    """What is kept of the output of some probes.

    Args:
        layers: the last stack of the model.
        streams: what its head reads of each probe, `(S, E)`.
        output: what the head gives (`runtime.bundle.kinds.OUTPUTS`).
        next_ids: the token that follows each position, `(R,)`; `None` where none follows.
    """
    product = layers.logits_product()
    match output:
        case "logits" if product is not None:
            x_RE = layers.run_transform(torch.cat(list(streams)))
            return _logits(layers, product, x_RE, next_ids)
        case "labels":
            logits = widened(_pooled(layers, streams))
            top_ids, top_logits, sums = summarize(logits, min(TOP_K, logits.shape[-1]))
            return Logits(
                top_ids=top_ids, top_logits=top_logits, log_sum_exp=sums, next_logits=None
            )
        case "embedding":
            return Vectors(values=_pooled(layers, streams))
        case _:
            kept = [x_SE[kept_positions(len(x_SE), "states")] for x_SE in streams]
            return Vectors(values=torch.cat(kept).numpy())


def _pooled(layers: Layers, streams: Sequence[Tensor]) -> np.ndarray:
    return torch.stack([layers.run_pooled_head(x_SE) for x_SE in streams]).numpy()


def _logits(
    layers: Layers, product: LogitsProduct, x_RE: Tensor, next_ids: Tensor | None
) -> Logits:
    """The highest logits `(R, K)`, those of the next tokens and log-sum-exp `(R,)`, in chunks."""
    weights = layers.weights
    vocab = weights.shape(product.weight)[0]
    bias_V = torch.zeros(vocab) if product.bias is None else read_weight(weights, product.bias)
    following = torch.zeros(len(x_RE), dtype=torch.int64) if next_ids is None else next_ids
    x_RE = x_RE * product.scale if product.scale != 1.0 else x_RE
    top_ids = torch.empty(len(x_RE), 0, dtype=torch.int64)
    top_logits = torch.empty(len(x_RE), 0)
    next_logits = torch.empty(len(x_RE))
    log_sum_exp = torch.full((len(x_RE),), float("-inf"), dtype=torch.float64)
    for start in range(0, vocab, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, vocab)
        rows_NE = weights.rows(product.weight, start, stop).float()
        logits_RN = F.linear(x_RE, rows_NE, bias_V[start:stop])
        log_sum_exp = torch.logaddexp(log_sum_exp, logits_RN.double().logsumexp(-1))
        inside = (following >= start) & (following < stop)
        next_logits[inside] = logits_RN[inside, following[inside] - start]
        ids_RN = torch.arange(start, stop).expand_as(logits_RN)
        logits = torch.cat((top_logits, logits_RN), 1)
        order = _highest(logits)
        top_ids = torch.cat((top_ids, ids_RN), 1).gather(1, order)
        top_logits = logits.gather(1, order)
    return Logits(
        top_ids=top_ids.to(torch.int32).numpy(),
        top_logits=top_logits.numpy(),
        log_sum_exp=log_sum_exp.float().numpy(),
        next_logits=None if next_ids is None else next_logits.numpy(),
    )


def _highest(logits_RN: Tensor) -> Tensor:
    """Where the highest logits of each row are, `(R, K)`; of equal ones the first comes first."""
    values, places = logits_RN.topk(min(TOP_K + 1, logits_RN.shape[1]))
    if bool((values[:, TOP_K - 1 : TOP_K] == values[:, TOP_K:]).any()):
        # equal ones on both sides of the cut, of which topk takes any
        return logits_RN.sort(dim=-1, descending=True, stable=True).indices[:, :TOP_K]
    places = places[:, :TOP_K].sort(dim=-1).values
    order = logits_RN.gather(1, places).sort(dim=-1, descending=True, stable=True).indices
    return places.gather(1, order)
