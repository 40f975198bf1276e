"""What PyTorch computes for the probes, with one layer's weights in memory at a time.

The reference is the uncached forward pass in float32; the bundle has to give the same logits
in one go, in chunks, and token by token behind its cache (`ortolan.runtime.certificate`).

Shape letters: S tokens of a probe, E model width, R positions of all probes, V vocabulary,
N rows of the vocabulary in one chunk, K kept logits.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.export.probes import Probe
from ortolan.modeling import Decoder, TransformerConfig
from ortolan.modeling.checkpoint import empty_decoder
from ortolan.modeling.weights import Weights, read_weight
from ortolan.runtime import certificate as runtime_certificate
from ortolan.runtime.certificate import Certificate, Thresholds

TOP_K = 32
"""Logits kept of each position."""

CHUNK_ROWS = 4096
"""Rows of the embedding or the head in memory at once."""

THRESHOLDS = {
    "fp32": Thresholds(max_abs_delta=1e-4, mean_kl=1e-6, near_tie=1e-3),
    # Ten bits of mantissa in weights, cache and activations.
    "fp16": Thresholds(max_abs_delta=2e-2, mean_kl=1e-4, near_tie=5e-2),
}
"""By precision. `max_abs_delta` is relative to the largest logit where that is above 1."""

Progress = Callable[[int, int], None]
"""Called with layers done and layers in all."""


def certify(
    config: TransformerConfig,
    weights: Weights,
    tables: dict[str, Tensor],
    probes: Sequence[Probe],
    *,
    precision: str,
    progress: Progress | None = None,
) -> Certificate:
    """Compute the reference of a model.

    Args:
        config: the model.
        weights: its weights, read a layer at a time.
        tables: its fixed tables (`positions.tables`).
        probes: what to compute.
        precision: of the bundle to be; chooses the thresholds.
        progress: told after every layer.

    Raises:
        ExportError: PyTorch itself computes logits that are not finite.
    """
    module = empty_decoder(config)
    for name, table in tables.items():
        module.register_buffer(name, table, persistent=False)
    with torch.inference_mode():
        streams = _embed(module, weights, probes)
        for index in range(len(module.blocks)):
            # The layer's weights are freed when this returns, before the next ones are read.
            streams = _run_block(module, weights, index, streams)
            if progress is not None:
                progress(index + 1, len(module.blocks))
        final = _parameters(module, weights, "final_norm.")
        x_RE = torch.func.functional_call(module.final_norm, final, (torch.cat(streams),))
        top_ids, top_logits, log_sum_exp = _head(module, weights, x_RE)
    if not bool(top_logits.isfinite().all() and log_sum_exp.isfinite().all()):
        raise ExportError(
            "reference: expected finite logits from PyTorch, got others. "
            "The checkpoint is damaged, or its training diverged."
        )
    return Certificate(
        probes=tuple(
            runtime_certificate.Probe(name=probe.name, length=len(probe.token_ids))
            for probe in probes
        ),
        thresholds=THRESHOLDS[precision],
        measured=None,
        token_ids=np.concatenate([probe.token_ids for probe in probes]).astype(np.int32),
        top_ids=top_ids.to(torch.int32).numpy(),
        top_logits=top_logits.numpy(),
        log_sum_exp=log_sum_exp.numpy(),
    )


def _run_block(
    module: Decoder, weights: Weights, index: int, streams: Sequence[Tensor]
) -> list[Tensor]:
    """One layer over every stream `(S, E)`."""
    layer = _parameters(module, weights, f"blocks.{index}.")
    block = module.blocks[index]
    return [
        torch.func.functional_call(block, layer, (x_SE[None], module.rotary))[0] for x_SE in streams
    ]


def _parameters(module: Decoder, weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The parameters below `prefix`, in float32, by their names below it."""
    return {
        name.removeprefix(prefix): read_weight(weights, name)
        for name, _ in module.named_parameters()
        if name.startswith(prefix)
    }


def _embed(module: Decoder, weights: Weights, probes: Sequence[Probe]) -> list[Tensor]:
    """What enters the first block, `(S, E)` for each probe."""
    ids = torch.cat([torch.from_numpy(probe.token_ids) for probe in probes])
    used, places = torch.unique(ids, return_inverse=True)
    parameters = {"embedding.weight": _gather_rows(weights, "embedding.weight", used)}
    if module.position_embedding is not None:
        name = "position_embedding.weight"
        longest = max(len(probe.token_ids) for probe in probes)
        parameters[name] = weights.rows(name, 0, longest).float()
    streams = []
    for places_S in places.split([len(probe.token_ids) for probe in probes]):
        embed = _Embed(module)
        state = {f"decoder.{name}": value for name, value in parameters.items()}
        streams.append(torch.func.functional_call(embed, state, (places_S[None],))[0])
    return streams


class _Embed(torch.nn.Module):
    """`Decoder.embed` as a module, so that it can be called with few rows of its table."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, ids: Tensor) -> Tensor:
        return self.decoder.embed(ids, torch.arange(ids.shape[1])[None])


def _gather_rows(weights: Weights, name: str, indices: Tensor) -> Tensor:
    """Some rows of a large table, float32; `indices` are sorted."""
    rows, width = weights.shape(name)
    gathered = torch.empty(len(indices), width)
    for start in range(0, rows, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, rows)
        inside = (indices >= start) & (indices < stop)
        if bool(inside.any()):
            gathered[inside] = weights.rows(name, start, stop)[indices[inside] - start].float()
    return gathered


def _head(module: Decoder, weights: Weights, x_RE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and values of the highest logits `(R, K)`, and log-sum-exp `(R,)`, chunk by chunk."""
    name = "embedding.weight" if module.head is None else "head.weight"
    vocab = weights.shape(name)[0]
    kept = min(TOP_K, vocab)
    top_ids = torch.empty(len(x_RE), 0, dtype=torch.int64)
    top_logits = torch.empty(len(x_RE), 0)
    log_sum_exp = torch.full((len(x_RE),), float("-inf"), dtype=torch.float64)
    for start in range(0, vocab, CHUNK_ROWS):
        rows_NE = weights.rows(name, start, min(start + CHUNK_ROWS, vocab)).float()
        logits_RN = F.linear(x_RE, rows_NE)
        log_sum_exp = torch.logaddexp(log_sum_exp, logits_RN.double().logsumexp(-1))
        ids_RN = torch.arange(start, start + len(rows_NE)).expand_as(logits_RN)
        logits = torch.cat((top_logits, logits_RN), 1)
        # Stable, so that of equal logits the lower id comes first, as in the runtime.
        order = logits.sort(dim=-1, descending=True, stable=True).indices[:, :kept]
        top_ids = torch.cat((top_ids, ids_RN), 1).gather(1, order)
        top_logits = logits.gather(1, order)
    return top_ids, top_logits, log_sum_exp.float()
