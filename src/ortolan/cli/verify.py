"""`ortolan verify BUNDLE`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortolan.cli import options
from ortolan.cli.output import ProgressBars, print_json, print_table

if TYPE_CHECKING:
    from ortolan.runtime.certificate import Report


@click.command()
@options.bundle
@options.device
@options.threads
@options.as_json
def command(bundle: Path, device: str, threads: int | None, as_json: bool) -> int:
    """Prove that BUNDLE computes on this machine what PyTorch computed when it was exported.

    Every file is hashed, and the certificate is replayed: a decoder in one call, in chunks, and
    token by token; an encoder with one input at a time and in padded batches. The exit status is 0
    for PASS, and for AMBIGUOUS, where only nearly tied tokens or labels changed places; 1 for FAIL.
    """
    import msgspec

    from ortolan.runtime import verify

    with ProgressBars() as bars:
        report = verify(
            bundle,
            device=device,
            threads=threads,
            progress=lambda done, total: bars("verify", done, total),
        )
    if as_json:
        print_json(msgspec.to_builtins(report))
        return int(report.verdict == "FAIL")
    where = report.first_divergence
    print_table(
        [
            ("verdict", report.verdict),
            ("compared", f"{report.output} of the {report.kind}"),
            *_figures(report),
            (
                "first divergence",
                f"{where.probe}, position {where.position}, {where.phase}" if where else "none",
            ),
            (
                "positions",
                ", ".join(f"{phase.positions} {name}" for name, phase in report.phases.items()),
            ),
            (
                "device",
                f"{report.device}, onnxruntime {report.onnxruntime}, {report.seconds:.1f} s",
            ),
        ]
    )
    return int(report.verdict == "FAIL")


def _figures(report: "Report") -> list[tuple[str, str]]:
    """How far the outputs are from the reference."""
    sign = "Δlogit" if report.mean_kl is not None else "Δ"
    rows = [(f"max |{sign}|", f"{report.max_abs_delta:.2e} of {report.max_abs_logit:.1f}")]
    if report.mean_kl is not None:
        rows.append(("KL", f"mean {report.mean_kl:.1e}, max {report.max_kl:.1e} nats"))
    if report.top1_agreement is not None:
        ties = f"{report.near_ties} near ties"
        rows.append(("top-1 agreement", f"{report.top1_agreement:.2%}, {ties}"))
    if report.mean_cosine is not None:
        cosine = f"mean {report.mean_cosine:.1e}, max {report.max_cosine:.1e}"
        rows.append(("cosine distance", cosine))
    return rows
