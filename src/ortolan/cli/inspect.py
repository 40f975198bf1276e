"""`ortolan inspect PATH`: a bundle, or a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortolan.cli import options
from ortolan.cli.output import print_json, print_table, quality_rows, size
from ortolan.cli.preview import print_preview
from ortolan.runtime.bundle.kinds import KINDS

if TYPE_CHECKING:  # the runtime is imported when the command runs
    from ortolan.runtime.bundle.manifest import QuantizedTensor
    from ortolan.runtime.inspect.description import AttentionKind, Description
    from ortolan.runtime.inspect.placement import Placement
    from ortolan.runtime.verification.first_load import Trial


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--context", type=click.IntRange(min=1), help="Tokens to plan memory for.")
@click.option("--batch", type=click.IntRange(min=1), help="Rows to plan memory for; 1 by default.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Plan memory of this device, and list the nodes it has no kernel for.",
)
@click.option(
    "--via",
    type=click.Choice(["family", "transformers"]),
    help="Of a checkpoint: how to read the model, as for ortolan export.",
)
@options.isolate
@options.as_json
def command(
    path: Path,
    context: int | None,
    batch: int | None,
    device: str | None,
    via: str | None,
    isolate: bool,
    as_json: bool,
) -> None:
    """Describe PATH, a bundle or a checkpoint.

    Of a bundle: graphs, attention, sizes, the memory that a context needs, estimated, and whether
    it can be loaded, tried in a process of its own; what CUDA can compute is looked up in a table.
    Of a checkpoint: how it would be exported, the size of the bundle in each precision, and the
    memory and time that the export takes.
    """
    # A manifest that is a link, or no file, is an error of the bundle.
    if os.path.lexists(path / "manifest.json") or not path.exists():
        if via is not None:
            raise click.ClickException(
                f"inspect: expected a checkpoint with --via, got {path}. Leave it out."
            )
        _describe_bundle(path, context, batch or 1, device, isolate=isolate, as_json=as_json)
        return
    given = {"--context": context, "--batch": batch, "--device": device}
    for option, value in given.items():
        if value is not None:
            raise click.ClickException(
                f"inspect: expected a bundle with {option}, got {path}. Export it first."
            )
    print_preview(path, via=via, as_json=as_json)


def _describe_bundle(
    bundle: Path,
    context: int | None,
    batch: int,
    device: str | None,
    *,
    isolate: bool,
    as_json: bool,
) -> None:
    import msgspec

    from ortolan.runtime import FirstLoadError, open_bundle
    from ortolan.runtime.inspect.description import describe
    from ortolan.runtime.inspect.placement import placement
    from ortolan.runtime.verification.first_load import try_load

    opened = open_bundle(bundle)
    about = describe(opened, context=context, batch=batch, device=device)
    placed = None if device is None else placement(opened, device)
    trial = try_load(opened) if isolate else None
    if as_json:
        more = {"placement": placed, "first_load": trial}
        print_json({**msgspec.to_builtins(about), **msgspec.to_builtins(more)})
    else:
        _print(about, placed, trial)
    if trial is not None and trial.outcome == "ended":
        raise FirstLoadError(trial.text)


def _print(about: Description, placed: Placement | None, trial: Trial | None) -> None:
    """Print tables, for a person."""
    print_table(
        [
            ("model", f"{about.model_type} {about.kind}, {about.precision}"),
            ("devices", ", ".join(about.devices)),
            *([("device", f"not verified: {about.unverified}")] if about.unverified else []),
            *_tried(trial),
            *quality_rows(about.quality),
            *([("calibrated", f"on {about.calibrated_on}")] if about.calibrated_on else []),
            ("takes", about.takes),
            ("gives", f"{about.gives}{_some(about.labels)}"),
            *_tokens(about),
            *_sampling(about),
            ("on disk", f"{size(about.total_bytes)}, weights {size(about.weight_bytes)}"),
            *_prefill(about),
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
        print("\nweights in few bits, the largest error first")
        print_table([(f"  {tensor.name}", _format(tensor)) for tensor in about.quantized])
    print("\nfiles")
    print_table([(f"  {name}", size(count)) for name, count in about.files.items()])


def _tried(trial: Trial | None) -> list[tuple[str, str]]:
    """How the first load went, where it was tried."""
    if trial is None:
        return []
    words = {"refused": f"refused: {trial.text}", "ended": "FAILED, as said below"}
    return [("first load", words.get(trial.outcome, trial.text))]


def _some(names: tuple[str, ...]) -> str:
    """The first of several names."""
    if not names:
        return ""
    more = "" if len(names) <= 8 else f" and {len(names) - 8} more"
    return f": {', '.join(names[:8])}{more}"


def _tokens(about: Description) -> list[tuple[str, str]]:
    """What is said of tokens and maps, where there are any."""
    rows = []
    if about.vocab_size > 1:
        rows.append(("context", f"{about.context_length} tokens, vocabulary of {about.vocab_size}"))
    if about.attention_maps:
        rows.append(("maps", f"{len(about.attention_maps)}{_some(about.attention_maps)}"))
    return rows


def _sampling(about: Description) -> list[tuple[str, str]]:
    """What the model recommends to choose tokens by."""
    rows = {
        "sampling": _listed(about.sampling) if about.sampling_error is None else "none: broken",
        "not applied": about.sampling_error or _listed(about.not_applied),
    }
    return [(name, text) for name, text in rows.items() if text]


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _memory(about: Description) -> list[tuple[str, str]]:
    """What the model takes, and a conversation where it has any."""
    plan = about.memory
    parts = [f"weights {size(plan.weights)} {'mapped' if plan.device == 'cpu' else 'copied'}"]
    if plan.device == "cpu":
        parts.append(f"copies of them {size(plan.packed)}")
    rows = []
    if not KINDS[about.kind].has_decoder:
        what = "at most "
    else:
        of_source = about.source_bytes_per_token
        source = f", {size(of_source)} per token of the source" if of_source else ""
        rows.append(("cache", f"{size(about.cache_bytes_per_token)} per token{source}"))
        times = f"{plan.batch} x " if plan.batch > 1 else ""
        what = f"{times}{plan.context} tokens: at most "
        parts += [f"cache {size(plan.cache + plan.source)}", f"logits {size(plan.logits)}"]
    parts.append(f"activations {size(plan.workspace)}")
    return [
        *rows,
        (f"memory of {plan.device}", f"{what}{size(plan.total)}"),
        ("", ", ".join(parts)),
    ]


def _lowering(kind: AttentionKind) -> str:
    if kind.lowering == "plain":
        return f"{kind.count} x spelled out in plain operators"
    values = ", ".join(f"{name}={value:g}" for name, value in kind.attributes.items())
    return f"{kind.count} x {kind.operator}, {kind.lowering} ({values})"


_FALLBACKS = {
    "body": "computed by the body that the graph carries",
    "cpu": "computed on the CPU, with copies there and back",
    "float32": "computed in float32, between conversions",
    "none": "no kernel on either device",
    "unknown": "not in the table of kernels",
}


def _print_placement(placed: Placement) -> None:
    """What the device has no kernel for, according to the table."""
    known = "" if placed.device == "cpu" else " (from the table of kernels, not tried)"
    counts = f"{placed.placed} nodes with a kernel, {placed.shape_nodes} of shape arithmetic"
    print(f"\non {placed.device}{known}: {counts}")
    for each in placed.misplaced:
        fallback = _FALLBACKS[each.fallback]
        print(f"  {each.graph}: {each.count} x {each.operator} in {each.dtype}, {fallback}")
    if not placed.misplaced:
        print("  none without one")


def _prefill(about: Description) -> list[tuple[str, str]]:
    """What weights of its own cost that serve prefill alone."""
    if about.prefill_only_bytes == 0:
        return []
    cost = size(about.prefill_only_bytes)
    return [("for prefill", f"{cost} of these, and as much memory again once packed")]


def _format(tensor: QuantizedTensor) -> str:
    groups = "a row" if tensor.group is None else f"groups of {tensor.group}"
    kind = "" if tensor.symmetric else ", asymmetric"
    return f"{tensor.bits} bits, {groups}{kind}, {tensor.method}, error {tensor.error:.4f}"
