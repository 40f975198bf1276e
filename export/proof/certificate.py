"""Certificates: what PyTorch computes for the probes, and the limits for the bundle.

    certify       probes through PyTorch          reference and the limits of the precision
    with_graphs   graphs as they were written     their hashes
    replay        the same through the bundle     measured differences
    passed        limits on means come down to what was measured, and some leeway

The reference is an uncached float32 forward pass of every probe, with one weight in memory at a
time. The runtime compares it with the bundle (`ortolan.runtime.verification`): a decoder with the
whole probe, in chunks, and token by token with the cache; an encoder with one probe, and in a
padded batch.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan.export.errors import ExportError, OptionError
from ortolan.export.exportable import Companion, Exportable, content_of
from ortolan.export.inputs.tensors import calls, reads_types
from ortolan.export.options import Cache, Device
from ortolan.export.progress import Progress, silent
from ortolan.export.proof.pixels import reference_pixels
from ortolan.export.proof.probes import ProbeInput, inputs_of
from ortolan.export.proof.reference import join, keep, named_scores
from ortolan.export.streamed import Result, run
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.kinds import OUTPUTS
from ortolan.runtime.bundle.manifest import Source
from ortolan.runtime.bundle.quality import COSINE_SCALE, KL_SCALE
from ortolan.runtime.limits import MAX_COSINE_DISTANCE, MAX_MEAN_KL
from ortolan.runtime.verification.certificate import Certificate, Logits, Probe, Vectors
from ortolan.runtime.verification.probes import probe_picture, sampled
from ortolan.runtime.verification.report import Report, Thresholds
from ortolan.runtime.verification.surroundings import (
    Meanings,
    Surroundings,
    read_probes,
    windows_of,
)

THRESHOLDS = {
    "fp32": Thresholds(mean_kl=1e-6, mean_cosine=1e-8, max_abs_delta=1e-4, near_tie=1e-3),
    # Weights, cache and activations have 10 bits of mantissa.
    "fp16": Thresholds(mean_kl=1e-4, mean_cosine=1e-4, max_abs_delta=2e-2, near_tie=5e-2),
    # WebGPU's products also sum in float16: 1.0e-4 nats on models/pythonic.
    "fp16 sums": Thresholds(mean_kl=5e-4, mean_cosine=5e-4, max_abs_delta=2e-2, near_tie=2e-1),
    # 7 bits of mantissa. PyTorch's own bfloat16 has 1.4e-4 nats on models/pythonic (docs/adr/0009).
    "bf16": Thresholds(mean_kl=2e-3, mean_cosine=2e-3, max_abs_delta=1.6e-1, near_tie=4e-1),
    # Quantized weights compute other numbers; beyond these limits the copy is poor.
    "int8": Thresholds(mean_kl=KL_SCALE[-1], mean_cosine=COSINE_SCALE[-1]),
    "int4": Thresholds(mean_kl=KL_SCALE[-1], mean_cosine=COSINE_SCALE[-1]),
}
"""Limits by arithmetic. `max_abs_delta` is relative to the largest output where that exceeds 1."""

LEEWAY = 1.5
"""Factor by which another device may differ more from the reference than this one."""

SMALLEST_LIMIT = 1e-12
"""Replaces a limit of 0, which float rounding alone exceeds."""


def thresholds(
    precision: str,
    *,
    output: str = "logits",
    max_kl: float | None = None,
    allow_poor: bool = False,
    cache: Cache = "float",
    device: Device = "cpu",
) -> Thresholds:
    """The limits for a bundle."""
    is_rounded = cache == "int8" and THRESHOLDS[precision].max_abs_delta is not None
    sums_in_halves = device == "webgpu" and precision == "fp16"
    bounds = THRESHOLDS["int8" if is_rounded else "fp16 sums" if sums_in_halves else precision]
    if allow_poor and bounds.max_abs_delta is None:
        bounds = Thresholds(mean_kl=MAX_MEAN_KL, mean_cosine=MAX_COSINE_DISTANCE)
    if OUTPUTS[output].are_logits:
        if max_kl is not None:
            bound = min(max(max_kl, SMALLEST_LIMIT), MAX_MEAN_KL)
            bounds = msgspec.structs.replace(bounds, mean_kl=bound)
        return msgspec.structs.replace(bounds, mean_cosine=None)
    if max_kl is not None:
        raise OptionError(
            f"max_kl needs a model that returns logits (this one returns {output}). Leave it out."
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
    """Compute the reference of a model of any kind."""
    reference = join(_run(model, probes, progress))
    if not all(bool(np.isfinite(values).all()) for values in _numbers(reference)):
        raise ExportError(
            f"PyTorch computes {model.output_kind} that are not finite. The checkpoint is damaged, "
            "or its training diverged."
        )
    images = [probe.image for probe in probes if probe.image is not None]
    return Certificate(
        probes=tuple(
            Probe(
                name=probe.name,
                length=_length(model, probe),
                source=_source_length(model, probe),
                features=probe.features,
            )
            for probe in probes
        ),
        thresholds=thresholds,
        measured=None,
        reference=reference,
        token_ids=_joined([probe.token_ids for probe in probes]),
        types=_joined([probe.types for probe in probes]) if reads_types(model) else None,
        source_ids=_joined([probe.source for probe in probes]),
        # pictures of several sizes follow from their numbers
        images=np.stack(images) if isinstance(model.source, ImageSource) else None,
        kind=model.kind,
        output=model.output_kind,
        text=text,
        surroundings=_surroundings(model, reference, len(probes)),
    )


def _length(model: Exportable, probe: ProbeInput) -> int:
    """Tokens of a probe, or the vectors of its image or wave."""
    if probe.token_ids is not None:
        return len(probe.token_ids)
    if model.source is None or not model.source.is_alone:
        return model.context_length
    return model.source.count(
        probe.sound if probe.image is None else probe.image.transpose(2, 0, 1)
    )


def _source_length(model: Exportable, probe: ProbeInput) -> int | None:
    """Tokens of a source, or the vectors of a wave before a decoder."""
    if probe.source is not None:
        return len(probe.source)
    if probe.token_ids is None or probe.sound is None or model.source is None:
        return None
    return model.source.count(probe.sound)


def _surroundings(model: Exportable, reference: Logits | Vectors, probes: int) -> Surroundings:
    """Files and values that the bundle must contain besides the model."""
    return Surroundings(
        meanings=Meanings(
            context_length=model.context_length,
            vocab_size=model.vocab_size,
            tokens=model.tokens,
            source=model.source,
            output=model.output,
            features=model.features,
            hidden_states=model.hidden,
            speech=model.speech,
            dictation=model.dictation,
            texts=model.comparison,
            windows=windows_of(model.states("float32")),
        ).sha256,
        files={name: _sha256(path) for name, path in sorted(model.companions.items())},
        readings=() if model.tokenizer is None else read_probes(model.tokenizer),
        scores=() if model.output is None else named_scores(reference, model.output, rows=probes),
        pixels=_pixels(model.source),
    )


def _sha256(file: Companion) -> str:
    return hashlib.sha256(content_of(file)).hexdigest()


def _pixels(source: Source | None) -> tuple[float, ...]:
    """Samples of the probe picture, for images without an alpha channel."""
    if not isinstance(source, ImageSource | PatchSource) or source.channels not in (1, 3):
        return ()
    pixels_CHW = reference_pixels(probe_picture(source), source).astype(np.float32)
    return tuple(round(float(value), 6) for value in sampled(pixels_CHW))


def with_graphs(certificate: Certificate, graphs: Iterable[Path]) -> Certificate:
    """The certificate with the hashes of the graphs: tolerances of low-bit weights hide changes."""
    surroundings = certificate.surroundings
    if surroundings is None:
        return certificate
    files = surroundings.files | {path.name: _sha256(path) for path in graphs}
    return replace(certificate, surroundings=msgspec.structs.replace(surroundings, files=files))


def passed(certificate: Certificate, measured: Report) -> Certificate:
    """The certificate with the measurements of the export.

    Limits on a mean are lowered to the measured value and some leeway, so that a device with wrong
    kernels cannot pass within a generous limit.
    """
    bounds, least = certificate.thresholds, THRESHOLDS["fp16"]
    if bounds.max_abs_delta is None:
        bounds = Thresholds(
            mean_kl=_reached(bounds.mean_kl, measured.largest_mean_kl, least.mean_kl),
            mean_cosine=_reached(bounds.mean_cosine, measured.mean_cosine, least.mean_cosine),
        )
    measured = msgspec.structs.replace(measured, thresholds=bounds)
    return replace(certificate, measured=measured, thresholds=bounds)


def describe_failure(measured: Report, certificate: Certificate, advice: Sequence[str]) -> str:
    """Why a bundle was rejected, with its figures and advice."""
    bounds, where = certificate.thresholds, measured.first_divergence
    if measured.weights is not None and measured.weights.wrong:
        return f"Wrong weights in the bundle: {measured.weights.summary}. The bundle was deleted."
    place = f" First at {where.probe}, position {where.position}, {where.phase}." if where else ""
    if bounds.max_abs_delta is None:
        if measured.non_finite:
            return (
                f"Poor quality: {measured.output} not finite in {measured.non_finite} positions."
                f"{place} The bundle was deleted."
            )
        name, most = "KL", bounds.mean_kl
        if measured.mean_kl is None:
            name, most = OUTPUTS[measured.output].distance, bounds.mean_cosine
        poor = " Or keep it with --allow-poor." if measured.quality.word == "poor" else ""
        return (
            f"Poor quality: the mean {name} from the trained model must be at most "
            f"{most or 0.0:.3g} (got {measured.quality.summary}). The bundle was deleted. Try "
            f"{' or '.join(advice)}.{poor}"
        )
    if measured.mean_kl is None or measured.top1_agreement is None:
        mean, got = OUTPUTS[measured.output].distance, measured.mean_cosine or 0.0
        most, top, agreement = bounds.mean_cosine, "", ""
    else:
        mean, got, most = "KL divergence", measured.mean_kl, bounds.mean_kl
        noun = "tokens" if OUTPUTS[measured.output].scores is None else "labels"
        top = f" and the same most probable {noun}"
        agreement = f", {measured.top1_agreement:.2%} of the most probable {noun} equal"
    delta = bounds.max_abs_delta * max(1.0, measured.max_abs_logit)
    return (
        f"The bundle disagrees with PyTorch: expected {measured.output} within {delta:.3g}, a mean "
        f"{mean} of at most {most or 0.0:.3g}{top}, got {measured.max_abs_delta:.3g}, "
        f"{got:.3g}{agreement} and {measured.non_finite} positions not finite.{place} The bundle "
        "was deleted."
    )


def _reached(bound: float | None, measured: float | None, least: float | None) -> float | None:
    """A limit lowered to the measured value and some leeway."""
    if bound is None or measured is None or least is None:
        return None
    return min(bound, max(measured, least) * LEEWAY)


def _run(
    model: Exportable, probes: Sequence[ProbeInput], progress: Progress
) -> list[Logits | Vectors]:
    """The part of the output of each probe that the certificate stores."""
    inputs = inputs_of(model, probes)
    # The first token counts as the one after the last. An encoder predicts no next token.
    follows = model.sides.has_decoder
    references: dict[int, Logits | Vectors] = {}
    read: set[str] = set()
    total = sum(parameter.ndim > 1 for parameter in model.module.parameters())
    for event in run(model.module, model.weights, calls(model, inputs)):
        if isinstance(event, Result):
            following = inputs.ids[event.index].roll(-1) if follows else None
            value = event.value
            if model.original is not None:
                value = model.original(*inputs.pairs[event.index], value)
            references[event.index] = keep(value, model.output_kind, following)
        else:
            read.add(event.name)
            progress("reference", len(read), total)
    progress("reference", total, total)
    return [references[place] for place in range(len(probes))]


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
    arrays = [array for array in ids if array is not None]
    return np.concatenate(arrays or [np.empty(0, np.int64)]).astype(np.int32)
