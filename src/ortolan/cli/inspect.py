"""`ortolan inspect PATH`: a bundle, or a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortolan import runtime
from ortolan.cli import options
from ortolan.cli.checkpoints import print_preview
from ortolan.cli.opening import bundle_in
from ortolan.cli.output import Row, print_json, print_table, quality_rows, size, witness_row
from ortolan.cli.progress import progress
from ortolan.runtime.bundle.kinds import KINDS

if TYPE_CHECKING:  # the runtime is imported when the command runs
    from ortolan.runtime.bundle.manifest import QuantizedTensor
    from ortolan.runtime.inspect.description import AttentionKind, Description
    from ortolan.runtime.inspect.placement import Placement
    from ortolan.runtime.verification.first_load import Trial


@click.command()
@click.argument("path", type=options.model_path)
@click.option(
    "--context", type=click.IntRange(min=1), help="Context to plan memory for, in tokens."
)
@click.option("--batch", type=click.IntRange(min=1), help="Batch to plan memory for. Default: 1.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "webgpu", "cuda"]),
    help="Plan memory for this device; for cpu and cuda also list the nodes without a kernel.",
)
@click.option(
    "--via",
    type=click.Choice(["family", "transformers"]),
    help="How to read a checkpoint; see `ortolan export --help-all`.",
)
@click.option(
    "--operators",
    type=options.path,
    metavar="FILE",
    help="Write the operators and types that a bundle needs on the CPU to FILE, the configuration "
    "of a reduced build of onnxruntime.",
)
@options.isolate
@options.as_json
def inspect_command(
    path: str,
    context: int | None,
    batch: int | None,
    device: str | None,
    via: str | None,
    operators: Path | None,
    isolate: bool,
    as_json: bool,
) -> None:
    """Describe PATH, a bundle or a checkpoint.

    Bundle: graphs, attention, sizes, estimated memory of a context, and whether it loads in a
    subprocess. What CUDA can compute is looked up in a table.

    Checkpoint: how it would be exported, and for each precision the size of the bundle, the memory
    and time of the export, and the memory and speed of a decoder on this machine.
    """
    import msgspec

    from ortolan.runtime.inspect.description import describe
    from ortolan.runtime.inspect.placement import placement
    from ortolan.runtime.verification.first_load import try_load

    with progress("load") as steps:
        folder = bundle_in(path, steps)
    if folder is None:
        choices = {"context": context, "batch": batch, "device": device, "operators": operators}
        for name, value in choices.items():
            if value is not None:
                raise click.ClickException(f"--{name} is for bundles, and {path} is a checkpoint.")
        print_preview(path, via=via, as_json=as_json)
        return
    if via is not None:
        raise click.ClickException(f"--via is for checkpoints, and {path} is not one.")
    bundle = runtime.open_bundle(folder)
    if operators is not None:
        _write_operators(bundle, operators, as_json=as_json)
        return
    about = describe(bundle, context=context, batch=batch or 1, device=device)
    placed = placement(bundle, device) if device in ("cpu", "cuda") else None
    with progress("load"):
        trial = try_load(bundle) if isolate else None
    if as_json:
        more = {"placement": placed, "first_load": trial}
        print_json({**msgspec.to_builtins(about), **msgspec.to_builtins(more)})
    else:
        _print(about, placed, trial)
    if trial is not None and trial.outcome == "ended":
        raise runtime.FirstLoadError(trial.text)


def _write_operators(bundle: runtime.Bundle, file: Path, *, as_json: bool) -> None:
    from ortolan.runtime.inspect.operators import write_operators

    sets: list[dict[str, Any]] = [
        {"domain": domain, "version": version, "operators": entries}
        for (domain, version), entries in write_operators(bundle, file).items()
    ]
    if as_json:
        print_json({"file": str(file), "operator_sets": sets})
        return
    rows = [(f"  {own['domain']} {own['version']}", ", ".join(own["operators"])) for own in sets]
    print_table([("operators", str(file)), *rows])


def _print(about: Description, placed: Placement | None, trial: Trial | None) -> None:
    maps = about.attention_maps
    context = f"{about.context_length} tokens, vocabulary of {about.vocab_size}"
    loads = {"refused": f"refused: {trial.text}", "ended": "FAILED, see below"} if trial else {}
    prefill = f"{size(about.prefill_only_bytes)} of these, and the same again in memory once packed"
    print_table(
        [
            ("model", f"{about.model_type} {about.kind}, {about.precision}"),
            ("devices", ", ".join(about.devices)),
            ("device", f"not verified: {about.unverified}" if about.unverified else None),
            ("first load", None if trial is None else loads.get(trial.outcome, trial.text)),
            *quality_rows(about.quality),
            witness_row(about.witness),
            ("calibrated", f"on {about.calibrated_on}" if about.calibrated_on else None),
            ("input", about.takes),
            ("output", ": ".join(filter(None, (about.gives, _first_names(about.labels))))),
            ("context", context if about.vocab_size > 1 else None),
            ("maps", f"{len(maps)}: {_first_names(maps)}" if maps else None),
            ("drafts", "by its own head: MtpHead(), --draft mtp" if about.has_head else None),
            ("sampling", "none: invalid" if about.sampling_error else _pairs(about.sampling)),
            ("not applied", about.sampling_error or _pairs(about.not_applied)),
            ("on disk", f"{size(about.total_bytes)}, weights {size(about.weight_bytes)}"),
            ("for prefill", prefill if about.prefill_only_bytes else None),
            *_memory(about),
        ]
    )
    for role, graph in about.graphs.items():
        print(f"\n{role}  {graph.file} ({size(graph.bytes)})")
        print_table([(f"  {name}", str(count)) for name, count in graph.nodes.items()])
        for kind in graph.attention:
            print(f"  attention: {_lowering(kind)}")
    if placed is not None:
        _print_placement(placed)
    if about.quantized:
        print("\nlow-bit weights, largest error first")
        print_table([(f"  {tensor.name}", _low_bit(tensor)) for tensor in about.quantized])
    print("\nfiles")
    print_table([(f"  {name}", size(count)) for name, count in about.files.items()])


def _first_names(names: tuple[str, ...]) -> str:
    more = "" if len(names) <= 8 else f" and {len(names) - 8} more"
    return f"{', '.join(names[:8])}{more}"


def _pairs(values: Mapping[str, object]) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or None


def _memory(about: Description) -> list[Row]:
    """Estimated memory of the weights, and of a context if there is a decoder."""
    plan, has_decoder = about.memory, KINDS[about.kind].has_decoder
    per_token = about.source_bytes_per_token
    source = f", {size(per_token)} per token of the source" if per_token else ""
    times = f"{plan.batch} x " if plan.batch > 1 else ""
    scope = f"{times}{plan.context} tokens: " if has_decoder else ""
    parts = [f"weights {size(plan.weights)} {'mapped' if plan.device == 'cpu' else 'copied'}"]
    if plan.device == "cpu":
        parts.append(f"packed copies {size(plan.packed)}")
    if has_decoder:
        parts += [f"cache {size(plan.cache + plan.source)}", f"logits {size(plan.logits)}"]
    parts.append(f"activations {size(plan.workspace)}")
    cache = f"{size(about.cache_bytes_per_token)} per token{source}" if has_decoder else None
    return [
        ("cache", cache),
        (f"memory of {plan.device}", f"{scope}at most {size(plan.total)}"),
        ("", ", ".join(parts)),
    ]


def _lowering(kind: AttentionKind) -> str:
    if kind.lowering == "plain":
        return f"{kind.count} x in plain operators"
    values = ", ".join(f"{name}={value:g}" for name, value in kind.attributes.items())
    return f"{kind.count} x {kind.operator}, {kind.lowering} ({values})"


_FALLBACKS = {
    "body": "computed by the body in the graph",
    "cpu": "computed on the CPU, with copies in both directions",
    "float32": "computed in float32, with conversions",
    "none": "no kernel on either device",
    "unknown": "not in the table of kernels",
}


def _print_placement(placed: Placement) -> None:
    basis = "" if placed.device == "cpu" else " (from the table of kernels, not tried)"
    counts = f"{placed.placed} nodes with a kernel, {placed.shape_nodes} of shape arithmetic"
    print(f"\non {placed.device}{basis}: {counts}")
    for nodes in placed.misplaced:
        fallback = _FALLBACKS[nodes.fallback]
        print(f"  {nodes.graph}: {nodes.count} x {nodes.operator} in {nodes.dtype}, {fallback}")
    if not placed.misplaced:
        print("  none without a kernel")


def _low_bit(tensor: QuantizedTensor) -> str:
    groups = "one group per row" if tensor.group is None else f"groups of {tensor.group}"
    kind = "" if tensor.symmetric else ", asymmetric"
    return f"{tensor.bits} bits, {groups}{kind}, {tensor.method}, error {tensor.error:.4f}"
