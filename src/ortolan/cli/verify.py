"""`ortolan verify BUNDLE`."""

from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.output import print_json, print_table
from ortolan.cli.progress import progress


@click.command()
@options.bundle
@options.device
@options.threads
@options.isolate
@options.as_json
def command(bundle: Path, device: str, threads: int | None, isolate: bool, as_json: bool) -> int:
    """Prove that this machine computes BUNDLE as it was exported, and say how good that is.

    Every file is hashed. Each weight is computed with by itself, and the model from end to end: a
    decoder in one call, in chunks, token by token, and two texts together; an encoder with one
    input at a time and in padded batches. A decoder also has to give each text the same, to the
    bit, alone and among others. The exit status is 0 for PASS, and for AMBIGUOUS, where only nearly
    tied tokens or labels changed places; 1 for FAIL. Quality is how far the exported model is from
    the trained one, and no part of the verdict.

    Before all that, a process of its own loads the bundle and runs a step, in limited memory and
    time. What passes is remembered for these files and this onnxruntime, and needs no such process
    any more.
    """
    import msgspec

    from ortolan.runtime import open_bundle, verify

    with progress("verify") as steps:
        report = verify(
            bundle,
            device=device,
            threads=threads,
            isolate=isolate,
            progress=lambda done, total: steps("verify", done, total),
        )
    if as_json:
        quality = open_bundle(bundle).manifest.quality or report.quality
        print_json({**msgspec.to_builtins(report), "quality": msgspec.to_builtins(quality)})
        return int(report.verdict == "FAIL")
    phases = ", ".join(f"{phase.positions} {name}" for name, phase in report.phases.items())
    print_table(
        [
            ("device", report.device_summary),
            *([("beside", report.surroundings.summary)] if report.surroundings else []),
            *([("exact", report.exact.summary)] if report.exact else []),
            ("quality", report.quality.summary),
            ("compared", f"{report.output} of the {report.kind}: {phases}"),
            *([("near ties", f"{report.near_ties}")] if report.near_ties else []),
            ("run", f"{report.device}, onnxruntime {report.onnxruntime}, {report.seconds:.1f} s"),
        ]
    )
    return int(report.verdict == "FAIL")
