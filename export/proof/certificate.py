"""What PyTorch computes for the probes, with one weight in memory at a time.

The reference is the uncached forward pass in float32, of each probe alone. A decoder's bundle has
to give the same logits in one go, in chunks, and token by token with its cache, an encoder's the
same output alone and in a padded batch (`ortolan.runtime.verification`).
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan.export.errors import ExportError, OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import calls
from ortolan.export.options import Cache
from ortolan.export.progress import Progress, silent
from ortolan.export.proof.probes import ProbeInput, inputs_of
from ortolan.export.proof.reference import join, keep, named_scores
from ortolan.export.streamed import Result, run
from ortolan.runtime.bundle.kinds import OUTPUTS
from ortolan.runtime.bundle.quality import COSINE_SCALE, KL_SCALE
from ortolan.runtime.limits import MAX_COSINE_DISTANCE, MAX_MEAN_KL
from ortolan.runtime.verification.certificate import Certificate, Logits, Probe, Vectors
from ortolan.runtime.verification.report import Report, Thresholds
from ortolan.runtime.verification.surroundings import Surroundings, meanings_sha256, read_probes

THRESHOLDS = {
    "fp32": Thresholds(mean_kl=1e-6, mean_cosine=1e-8, max_abs_delta=1e-4, near_tie=1e-3),
    # Ten bits of mantissa in weights, cache and activations.
    "fp16": Thresholds(mean_kl=1e-4, mean_cosine=1e-4, max_abs_delta=2e-2, near_tie=5e-2),
    # Seven bits. PyTorch's own bfloat16 is at 1.4e-4 nats on models/pythonic (docs/adr/0009).
    "bf16": Thresholds(mean_kl=2e-3, mean_cosine=2e-3, max_abs_delta=1.6e-1, near_tie=4e-1),
    # Quantized weights give other numbers; beyond these bounds it is a poor copy.
    "int8": Thresholds(mean_kl=KL_SCALE[-1], mean_cosine=COSINE_SCALE[-1]),
    "int4": Thresholds(mean_kl=KL_SCALE[-1], mean_cosine=COSINE_SCALE[-1]),
}
"""By precision. `max_abs_delta` is relative to the largest output if that is above 1."""

LEEWAY = 1.5
"""How much further from the reference another device may be than that of the export."""

SMALLEST_BOUND = 1e-12
"""Instead of a bound of 0, which rounding alone exceeds."""


def thresholds(
    precision: str,
    *,
    output: str = "logits",
    max_kl: float | None = None,
    allow_poor: bool = False,
    cache: Cache = "float",
) -> Thresholds:
    """The bounds of a bundle.

    Args:
        precision: of the weights.
        output: what is compared (`runtime.bundle.kinds.OUTPUTS`).
        max_kl: the user's own bound on the divergence of logits.
        allow_poor: no bound where weights are rounded, unless there is one of the user's own.
        cache: of keys and values; codes of 8 bits are as far from floats as such weights are.

    Raises:
        OptionError: a bound on logits where there are none.
    """
    is_rounded = cache == "int8" and THRESHOLDS[precision].max_abs_delta is not None
    bounds = THRESHOLDS["int8" if is_rounded else precision]
    if allow_poor and bounds.max_abs_delta is None:
        bounds = Thresholds(mean_kl=MAX_MEAN_KL, mean_cosine=MAX_COSINE_DISTANCE)
    if OUTPUTS[output].are_logits:
        if max_kl is not None:
            bound = min(max(max_kl, SMALLEST_BOUND), MAX_MEAN_KL)
            bounds = msgspec.structs.replace(bounds, mean_kl=bound)
        return msgspec.structs.replace(bounds, mean_cosine=None)
    if max_kl is not None:
        raise OptionError(
            f"max_kl: expected a model that gives logits, got one that gives {output}. "
            "Leave it out."
        )
    return msgspec.structs.replace(bounds, mean_kl=None, near_tie=None)


def certify(
    model: Exportable,
    probes: Sequence[ProbeInput],
    *,
    thresholds: Thresholds,
    text: str = "random ids",
    progress: Progress = silent,
) -> Certificate:
    """Compute the reference of a model of any kind.

    Args:
        model: its module and its weights, which are read as they are used.
        probes: what to compute (`make_probes`).
        text: what the probes are of, in words (`text_of`).
        thresholds: what the bundle has to keep to.
        progress: told of what was read.

    Raises:
        ExportError: PyTorch itself computes outputs that are not finite.
    """
    reference = join(_run(model, probes, progress))
    if not all(bool(np.isfinite(values).all()) for values in _numbers(reference)):
        raise ExportError(
            f"reference: expected finite {model.output} from PyTorch, got others. "
            "The checkpoint is damaged, or its training diverged."
        )
    images = [probe.image for probe in probes if probe.image is not None]
    return Certificate(
        probes=tuple(
            Probe(
                name=probe.name,
                length=model.context_length if probe.token_ids is None else len(probe.token_ids),
                source=None if probe.source is None else len(probe.source),
            )
            for probe in probes
        ),
        thresholds=thresholds,
        measured=None,
        reference=reference,
        token_ids=_joined([probe.token_ids for probe in probes]),
        source_ids=_joined([probe.source for probe in probes]),
        images=np.stack(images) if images else None,
        kind=model.kind,
        output=model.output,
        text=text,
        surroundings=_surroundings(model, reference),
    )


def _surroundings(model: Exportable, reference: Logits | Vectors) -> Surroundings:
    """What a bundle has to have beside the model."""
    return Surroundings(
        meanings=meanings_sha256(
            context_length=model.context_length,
            vocab_size=model.vocab_size,
            tokens=model.tokens,
            source=model.takes,
            output=model.gives,
        ),
        files={
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in sorted(model.companions.items())
        },
        readings=() if model.tokenizer is None else read_probes(model.tokenizer),
        scores=() if model.gives is None else named_scores(reference, model.gives),
    )


def passed(certificate: Certificate, measured: Report) -> Certificate:
    """The certificate with what was measured on export.

    Where only the mean counts, the bound comes down to what was measured and some leeway: a
    device with wrong kernels must not pass because of a generous bound.
    """
    bounds, least = certificate.thresholds, THRESHOLDS["fp16"]
    if bounds.max_abs_delta is None:
        bounds = Thresholds(
            mean_kl=_reached(bounds.mean_kl, measured.mean_kl, least.mean_kl),
            mean_cosine=_reached(bounds.mean_cosine, measured.mean_cosine, least.mean_cosine),
        )
    measured = msgspec.structs.replace(measured, thresholds=bounds)
    return replace(certificate, measured=measured, thresholds=bounds)


def describe_failure(measured: Report, certificate: Certificate, advice: Sequence[str]) -> str:
    """Why a bundle was refused, with its figures and ways out."""
    bounds, where = certificate.thresholds, measured.first_divergence
    if measured.weights is not None and measured.weights.wrong:
        return (
            f"weights: expected the weights that were exported, got {measured.weights.summary}. "
            "The bundle was not kept."
        )
    place = f" First at {where.probe}, position {where.position}, {where.phase}." if where else ""
    found = f"{measured.non_finite} positions not finite.{place} The bundle was not kept."
    if bounds.max_abs_delta is None:
        if measured.non_finite:
            return f"quality: expected finite {measured.output}, got {found}"
        name, most = "KL", bounds.mean_kl
        if measured.mean_kl is None:
            name, most = OUTPUTS[measured.output].distance, bounds.mean_cosine
        poor = " Or keep it with --allow-poor." if measured.quality.word == "poor" else ""
        return (
            f"quality: expected a mean {name} of at most {most or 0.0:.3g} from the trained model, "
            f"got {measured.quality.summary}. The bundle was not kept. Try "
            f"{' or '.join(advice)}.{poor}"
        )
    if measured.mean_kl is None or measured.top1_agreement is None:
        mean, got = OUTPUTS[measured.output].distance, measured.mean_cosine or 0.0
        most, top, agreement = bounds.mean_cosine, "", ""
    else:
        mean, got, most = "KL divergence", measured.mean_kl, bounds.mean_kl
        what = "tokens" if OUTPUTS[measured.output].scores is None else "labels"
        top = f" and the same most probable {what}"
        agreement = f", {measured.top1_agreement:.2%} of the most probable {what} equal"
    delta = bounds.max_abs_delta * max(1.0, measured.max_abs_logit)
    return (
        f"parity: expected {measured.output} within {delta:.3g} of PyTorch's, a mean {mean} of at "
        f"most {most or 0.0:.3g}{top}, got {measured.max_abs_delta:.3g}, {got:.3g}{agreement} and "
        f"{found}"
    )


def _reached(bound: float | None, measured: float | None, least: float | None) -> float | None:
    """A bound lowered to what was measured, and some leeway."""
    if bound is None or measured is None or least is None:
        return None
    return min(bound, max(measured, least) * LEEWAY)


def _run(
    model: Exportable, probes: Sequence[ProbeInput], progress: Progress
) -> list[Logits | Vectors]:
    """What is kept of each probe."""
    inputs = inputs_of(model, probes)
    # The first token of a probe follows its last, and nothing follows where all of it is seen.
    follows = model.sides.has_decoder
    kept: dict[int, Logits | Vectors] = {}
    read: set[str] = set()
    total = sum(parameter.ndim > 1 for parameter in model.module.parameters())
    for event in run(model.module, model.weights, calls(model, inputs)):
        if isinstance(event, Result):
            following = inputs.ids[event.index].roll(-1) if follows else None
            kept[event.index] = keep(event.value, model.output, following)
        else:
            read.add(event.name)
            progress("reference", len(read), total)
    progress("reference", total, total)
    return [kept[place] for place in range(len(probes))]


def _numbers(reference: Logits | Vectors) -> Iterator[NDArray[np.float32]]:
    match reference:
        case Vectors(values=values):
            yield values
        case Logits(top_logits=top, log_sum_exp=sums, next_logits=following):
            yield from (top, sums)
            if following is not None:
                yield following


def _joined(ids: Sequence[NDArray[np.int64] | None]) -> NDArray[np.int32]:
    """All ids in one array, in order."""
    there = [each for each in ids if each is not None]
    return np.concatenate(there or [np.empty(0, np.int64)]).astype(np.int32)
