"""Replays the certificate of a bundle: does this device compute the exported model?

First each weight alone (`weights`) and the tokenizer and labels (`surroundings`), then the whole
model (`probe_runs`), then sequences alone and among others (`exactness`).
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from msgspec import structs

from ortolan.runtime.arguments import checked_path
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle, open_parts
from ortolan.runtime.bundle.packed import find_packed
from ortolan.runtime.engine.adapters import Adapters, open_adapters
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.providers import choose_device, obstacle, onnxruntime_version
from ortolan.runtime.engine.threads import chosen_threads
from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.inputs.tokenizer import open_tokenizer
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.certificate_files import (
    ARRAYS_NAME,
    JSON_NAME,
    decode_certificate,
    read_certificate,
)
from ortolan.runtime.verification.comparison import Comparison
from ortolan.runtime.verification.exactness import check_exact
from ortolan.runtime.verification.first_load import first_load
from ortolan.runtime.verification.probe_runs import compute, total_positions
from ortolan.runtime.verification.report import Report
from ortolan.runtime.verification.surroundings import SurroundingsReport, check_surroundings
from ortolan.runtime.verification.verified import remember, stamps
from ortolan.runtime.verification.weights import check_weights

_VERDICTS = ("PASS", "AMBIGUOUS", "FAIL")
"""From the best to the worst."""

_ADAPTER = "adapter"
"""Name of the adapter that is verified."""


def verify(
    path: str | Path,
    *,
    adapter: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    exact: bool = True,
    isolate: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Replay the certificate of a bundle on this machine, after hashing every file.

    A bundle that passes needs no subprocess in `ortolan.load` with this onnxruntime.

    Args:
        path: folder of a bundle of any kind.
        adapter: folder of an adapter for it. The bundle then computes with the adapter, and the
            adapter's certificate is replayed instead of the bundle's own.
        device: as for `ortolan.load`.
        threads: likewise.
        exact: also check that sequences are bit-identical alone and among others.
        isolate: load the bundle in a subprocess first. With `False` a pass is not remembered.
        progress: called with the numbers of positions done and in total.

    Raises:
        AdapterError: the adapter is damaged, or made for another bundle.
        BundleError: the bundle is damaged.
        DeviceError: the device cannot be used.
        FirstLoadError: the subprocess crashed or exceeded its limits.
        CertificateError: the certificate cannot be replayed.
        InputError: an argument has the wrong type.
        MemoryPlanError: the longest probe does not fit into memory.
    """
    started, before = time.monotonic(), stamps(checked_path("path", path))
    bundle = open_bundle(path, full_check=True)
    own = read_certificate(bundle)
    adapters = open_adapters({} if adapter is None else {_ADAPTER: adapter}, bundle)
    certificate = own if adapters is None else _certificate_of(adapters, bundle)
    chosen = _device(bundle, device)
    packed = find_packed(bundle, onnxruntime=onnxruntime_version(), full_check=True)
    if isolate:
        first_load(bundle, device=device, packed=packed)
    # Before the model is loaded, so that memory holds only one weight at a time.
    cores = chosen_threads(threads, bundle.manifest)
    weights = check_weights(bundle, own.weights, threads=cores, device=chosen)
    _check_memory(bundle, certificate)
    engine = Engine(bundle, device=device, threads=threads, packed=packed, adapters=adapters)
    engine.adapter = 0 if adapters is None else 1
    report = replay(engine, certificate, progress=progress)
    around = _check_surroundings(bundle, own)
    identical = check_exact(engine, certificate) if exact else None
    report = structs.replace(report, weights=weights, surroundings=around, exact=identical)
    same = partial(verify, device=device, threads=threads, exact=exact, progress=progress)
    # opening them checks that they are the right ones
    parts = {name: same(part.path, isolate=isolate) for name, part in open_parts(bundle).items()}
    report = _with_parts(report, parts, seconds=time.monotonic() - started)
    if isolate and adapter is None and report.verdict == "PASS":
        remember(bundle, before, onnxruntime=report.onnxruntime)
    return report


def _device(bundle: Bundle, device: str) -> str:
    """The device in use; same errors as `choose_device`."""
    works = partial(obstacle, precision=bundle.manifest.precision)
    chosen, _ = choose_device(device, bundle.manifest.devices, works)
    return chosen


def _check_memory(bundle: Bundle, certificate: Certificate) -> None:
    """Raise MemoryPlanError if the states of the longest probe cannot fit."""
    RequestMemory(bundle.manifest).check(
        tokens=max(probe.length for probe in certificate.probes),
        rows=1,
        source_tokens=max(probe.source or 0 for probe in certificate.probes),
    )


def _with_parts(report: Report, parts: Mapping[str, Report], *, seconds: float) -> Report:
    """The report of a bundle with those of the bundles in it; the worst verdict counts."""
    wrong = [part.wrong for part in (report.weights, report.surroundings) if part is not None]
    own = "FAIL" if any(wrong) else report.verdict
    verdict = max((own, *(part.verdict for part in parts.values())), key=_VERDICTS.index)
    return structs.replace(report, verdict=verdict, seconds=seconds, **parts)


def replay(
    engine: Engine,
    certificate: Certificate,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Compute the probes of a certificate and compare them with its reference."""
    started = time.monotonic()
    comparison = Comparison(certificate)
    total, done = total_positions(engine, certificate), 0
    for rows in compute(engine, certificate):
        comparison.add(rows)
        done += len(rows.outputs)
        if progress is not None:
            progress(done, total)
    return comparison.report(
        device=engine.device,
        onnxruntime=onnxruntime_version(),
        seconds=time.monotonic() - started,
    )


def _certificate_of(adapters: Adapters, bundle: Bundle) -> Certificate:
    """The certificate of the only adapter."""
    (adapter,) = adapters.opened
    return decode_certificate(
        adapter.read(JSON_NAME), lambda: adapter.read(ARRAYS_NAME), bundle.manifest
    )


def _check_surroundings(bundle: Bundle, certificate: Certificate) -> SurroundingsReport | None:
    if certificate.surroundings is None:
        return None
    try:
        tokenizer = open_tokenizer(bundle)
    except TokenizerError:
        tokenizer = None
    return check_surroundings(
        bundle, tokenizer, certificate.surroundings, certificate.reference.of_labels
    )
