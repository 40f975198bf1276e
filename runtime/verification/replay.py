"""Replays the certificate of a bundle: does this device compute what was exported?

First every weight by itself (`weights`) and what surrounds the model (`surroundings`), then the
model from end to end (`runs`), then texts alone and among others (`exact`).
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ortolan.runtime.arguments import checked_path
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.packed import find_packed
from ortolan.runtime.engine.device import choose_device
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.ort_session import available_providers, onnxruntime_version
from ortolan.runtime.engine.threads import chosen_threads
from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.inputs.tokenizer import Tokenizer, open_tokenizer
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.runtime.verification.comparison import Comparison
from ortolan.runtime.verification.exactness import check_exact
from ortolan.runtime.verification.first_load import first_load
from ortolan.runtime.verification.probe_runs import compute, total_positions
from ortolan.runtime.verification.report import Report
from ortolan.runtime.verification.surroundings import SurroundingsReport, check_surroundings
from ortolan.runtime.verification.verified import remember, stamps
from ortolan.runtime.verification.weights import check_weights

__all__ = ["replay", "verify"]


def verify(
    path: str | Path,
    *,
    device: str = "auto",
    threads: int | None = None,
    exact: bool = True,
    isolate: bool = True,
    trust: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Replay the certificate of a bundle on this machine. Every file is hashed first.

    What passes is remembered where the user's state folder can be written, for this onnxruntime:
    `ortolan.load(isolate=True)` starts no process for the same files.

    Args:
        path: folder of the bundle, of any kind.
        device: as in `ortolan.load`.
        threads: as in `ortolan.load`.
        exact: whether to try, too, if texts are the same alone and among others here.
        isolate: as in `ortolan.load`; `False` remembers nothing, either.
        trust: as in `ortolan.load`.
        progress: called with the positions done and the positions in total.

    Raises:
        BundleError: the bundle is damaged.
        DeviceError: the device cannot be used.
        FirstLoadError: `isolate`, and loading it ended that process or exceeded its limits.
        CertificateError: the certificate cannot be replayed.
        InputError: it is no path.
        MemoryPlanError: there is not the memory for its longest probe.
    """
    started, before = time.monotonic(), stamps(checked_path("path", path))
    bundle = open_bundle(path, full_check=True, trust=trust)
    certificate = read_certificate(bundle)
    choose_device(device, bundle.manifest.devices, available_providers())
    packed = find_packed(bundle, onnxruntime=onnxruntime_version(), full_check=True)
    if isolate:
        first_load(bundle, device=device, packed=packed)
    # Before the model is loaded: each weight is in memory by itself.
    used = chosen_threads(threads, bundle.manifest)
    weights = check_weights(bundle, certificate.weights, threads=used)
    _check_memory(bundle, certificate)
    surroundings = _check_surroundings(bundle, certificate)
    engine = Engine(bundle, device=device, threads=threads, packed=packed)
    report = replay(engine, certificate, progress=progress)
    is_wrong = any(each.wrong for each in (weights, surroundings) if each is not None)
    report = msgspec.structs.replace(
        report,
        weights=weights,
        surroundings=surroundings,
        exact=check_exact(engine, certificate) if exact else None,
        verdict="FAIL" if is_wrong else report.verdict,
        seconds=time.monotonic() - started,
    )
    if isolate and report.verdict == "PASS":
        remember(bundle, before, onnxruntime=report.onnxruntime)
    return report


def replay(
    engine: Engine,
    certificate: Certificate,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Compute the probes of a certificate of the same model, and compare with its reference."""
    started = time.monotonic()
    comparison = Comparison(certificate)
    total, done = total_positions(certificate), 0
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


def _check_memory(bundle: Bundle, certificate: Certificate) -> None:
    """Refuse probes whose states cannot fit."""
    RequestMemory(bundle.manifest).check(
        tokens=max(probe.length for probe in certificate.probes),
        rows=1,
        source_tokens=max(probe.source or 0 for probe in certificate.probes),
    )


def _check_surroundings(bundle: Bundle, certificate: Certificate) -> SurroundingsReport | None:
    """What surrounds the model; None where the certificate does not say."""
    if certificate.surroundings is None:
        return None
    return check_surroundings(
        bundle, _tokenizer(bundle), certificate.surroundings, certificate.reference.of_labels
    )


def _tokenizer(bundle: Bundle) -> Tokenizer | None:
    """The tokenizer of a bundle; None as well where it cannot be read."""
    try:
        return open_tokenizer(bundle)
    except TokenizerError:
        return None
