"""`ortolan verify BUNDLE`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from ortolan import runtime
from ortolan.cli import options
from ortolan.cli.extras import extra
from ortolan.cli.opening import bundle_of
from ortolan.cli.output import print_json, print_table, witness_row
from ortolan.cli.progress import progress


@click.command()
@options.bundle
@click.option(
    "--adapter",
    type=options.path,
    help="Folder of an adapter: prove that the bundle computes it.",
)
@click.option(
    "--key",
    type=options.path,
    help="Public key in PEM: check the signature of BUNDLE first.",
)
@options.loading
@options.as_json
def verify_command(
    bundle: str,
    adapter: Path | None,
    key: Path | None,
    settings: dict[str, Any],
    as_json: bool,
) -> int:
    """Prove that this machine computes BUNDLE as it was exported, and report its quality.

    Hashes every file, checks every weight alone, then the whole model: a decoder in one call, in
    chunks, token by token and in a batch; an encoder with single inputs and in padded batches. A
    decoder must also return bit-identical results alone and in a batch.

    Exit status 0: PASS, or AMBIGUOUS if only nearly tied tokens or labels differ. 1: FAIL. Quality,
    the distance from the trained model, does not affect the verdict.

    Before that, a subprocess with limited memory and time loads the bundle and runs one step. If it
    succeeds, it is not repeated for the same files and version of onnxruntime.
    """
    import msgspec

    with progress() as steps:
        path = bundle_of(bundle, steps)
        if key is not None:
            with extra("sign", command="verify --key"):
                from ortolan.signing import check
            check(path, key)
        report = runtime.verify(
            path,
            adapter=adapter,
            **settings,
            progress=partial(steps, "verify"),
        )
    manifest = runtime.open_bundle(path).manifest
    if as_json:
        recorded = {
            "quality": (manifest.quality if adapter is None else None) or report.quality,
            "witness": manifest.witness,
        }
        print_json(msgspec.to_builtins(report) | msgspec.to_builtins(recorded))
        return int(report.verdict == "FAIL")
    phases = ", ".join(f"{phase.positions} {name}" for name, phase in report.phases.items())
    print_table(
        [
            ("signature", None if key is None else f"verified with {key}"),
            ("device", report.device_summary),
            ("batch", report.surroundings.summary if report.surroundings else None),
            ("exact", report.exact.summary if report.exact else None),
            ("quality", report.quality.summary),
            witness_row(manifest.witness),
            ("media", report.media.device_summary if report.media else None),
            ("texts", report.texts.device_summary if report.texts else None),
            ("compared", f"{report.output} of the {report.kind}: {phases}"),
            ("near ties", f"{report.near_ties}" if report.near_ties else None),
            ("run", f"{report.device}, onnxruntime {report.onnxruntime}, {report.seconds:.1f} s"),
        ]
    )
    return int(report.verdict == "FAIL")
