"""What PyTorch computes for the probes, with one layer's weights in memory at a time.

The reference is the uncached forward pass in float32; the bundle has to give the same logits
in one go, in chunks, and token by token behind its cache (`ortolan.runtime.certificate`).

Shape letters: S tokens of a probe, E model width, R positions of all probes, V vocabulary,
N rows of the vocabulary in one chunk, K kept logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.export.layers import (
    CHUNK_ROWS,
    embed,
    head_name,
    read_layer,
    run_block,
    run_final_norm,
    skeleton,
)
from ortolan.export.probes import Probe
from ortolan.modeling import Decoder, TransformerConfig
from ortolan.modeling.weights import Weights
from ortolan.runtime import certificate as runtime_certificate
from ortolan.runtime.certificate import Certificate, Report, Thresholds
from ortolan.runtime.process_memory import return_free_memory

TOP_K = 32
"""Logits kept of each position."""

THRESHOLDS = {
    "fp32": Thresholds(max_abs_delta=1e-4, mean_kl=1e-6, near_tie=1e-3),
    # Ten bits of mantissa in weights, cache and activations.
    "fp16": Thresholds(max_abs_delta=2e-2, mean_kl=1e-4, near_tie=5e-2),
    # Rounded weights compute something else; beyond these the model is not the same any more.
    "int8": Thresholds(mean_kl=0.02),
    "int4": Thresholds(mean_kl=0.5),
}
"""By precision. `max_abs_delta` is relative to the largest logit where that is above 1."""

LEEWAY = 1.5
"""How much further from the reference another device may be than the one of the export."""

SMALLEST_BOUND = 1e-12
"""In place of a bound of 0, which rounding alone exceeds."""

Progress = Callable[[int, int], None]
"""Called with layers done and layers in all."""


def thresholds(precision: str, *, max_kl: float | None = None) -> Thresholds:
    """What a bundle of a precision has to keep to, with the user's own bound on the divergence."""
    bounds = THRESHOLDS[precision]
    if max_kl is None:
        return bounds
    return msgspec.structs.replace(bounds, mean_kl=max(max_kl, SMALLEST_BOUND))


def certify(
    config: TransformerConfig,
    weights: Weights,
    tables: dict[str, Tensor],
    probes: Sequence[Probe],
    *,
    thresholds: Thresholds,
    progress: Progress | None = None,
) -> Certificate:
    """Compute the reference of a model.

    Args:
        config: the model.
        weights: its weights, read a layer at a time.
        tables: its fixed tables (`positions.tables`).
        probes: what to compute.
        thresholds: what the bundle has to keep to.
        progress: told after every layer.

    Raises:
        ExportError: PyTorch itself computes logits that are not finite.
    """
    module = skeleton(config, tables)
    with torch.inference_mode():
        streams = embed(module, weights, [torch.from_numpy(probe.token_ids) for probe in probes])
        for index in range(len(module.blocks)):
            # A layer's weights are freed before the next ones are read.
            layer = read_layer(module, weights, f"blocks.{index}.")
            streams = run_block(module, index, layer, streams)
            del layer
            return_free_memory()
            if progress is not None:
                progress(index + 1, len(module.blocks))
        x_RE = run_final_norm(module, weights, torch.cat(streams))
        head = _head(module, weights, x_RE, _next_ids(probes))
    if not all(bool(values.isfinite().all()) for values in head[1:]):
        raise ExportError(
            "reference: expected finite logits from PyTorch, got others. "
            "The checkpoint is damaged, or its training diverged."
        )
    return Certificate(
        probes=tuple(
            runtime_certificate.Probe(name=probe.name, length=len(probe.token_ids))
            for probe in probes
        ),
        thresholds=thresholds,
        measured=None,
        token_ids=np.concatenate([probe.token_ids for probe in probes]).astype(np.int32),
        top_ids=head.top_ids.to(torch.int32).numpy(),
        top_logits=head.top_logits.numpy(),
        log_sum_exp=head.log_sum_exp.numpy(),
        next_logits=head.next_logits.numpy(),
    )


def passed(certificate: Certificate, measured: Report) -> Certificate:
    """The certificate with what was measured on export.

    Where only the divergence counts, the bound comes down to what was measured and some leeway:
    a device whose kernels are wrong shall not hide behind a generous bound.
    """
    bounds = certificate.thresholds
    if bounds.max_abs_delta is None:
        reached = max(measured.mean_kl, THRESHOLDS["fp16"].mean_kl) * LEEWAY
        bounds = Thresholds(mean_kl=min(bounds.mean_kl, reached))
    return replace(certificate, measured=measured, thresholds=bounds)


class _Head(NamedTuple):
    """Logits of R positions, as a certificate keeps them."""

    top_ids: Tensor
    top_logits: Tensor
    log_sum_exp: Tensor
    next_logits: Tensor


def _next_ids(probes: Sequence[Probe]) -> Tensor:
    """The token that follows each position, `(R,)`; the first token of its probe at the end."""
    return torch.cat([torch.from_numpy(np.roll(probe.token_ids, -1)) for probe in probes])


def _head(module: Decoder, weights: Weights, x_RE: Tensor, next_ids: Tensor) -> _Head:
    """The highest logits `(R, K)`, those of the next tokens and log-sum-exp `(R,)`, in chunks."""
    name = head_name(module)
    vocab = weights.shape(name)[0]
    kept = min(TOP_K, vocab)
    top_ids = torch.empty(len(x_RE), 0, dtype=torch.int64)
    top_logits = torch.empty(len(x_RE), 0)
    next_logits = torch.empty(len(x_RE))
    log_sum_exp = torch.full((len(x_RE),), float("-inf"), dtype=torch.float64)
    for start in range(0, vocab, CHUNK_ROWS):
        rows_NE = weights.rows(name, start, min(start + CHUNK_ROWS, vocab)).float()
        logits_RN = F.linear(x_RE, rows_NE)
        log_sum_exp = torch.logaddexp(log_sum_exp, logits_RN.double().logsumexp(-1))
        inside = (next_ids >= start) & (next_ids < start + len(rows_NE))
        next_logits[inside] = logits_RN[inside, next_ids[inside] - start]
        ids_RN = torch.arange(start, start + len(rows_NE)).expand_as(logits_RN)
        logits = torch.cat((top_logits, logits_RN), 1)
        # Stable, so that of equal logits the lower id comes first, as in the runtime.
        order = logits.sort(dim=-1, descending=True, stable=True).indices[:, :kept]
        top_ids = torch.cat((top_ids, ids_RN), 1).gather(1, order)
        top_logits = logits.gather(1, order)
    return _Head(top_ids, top_logits, log_sum_exp.float(), next_logits)
