"""`ortolan inspect BUNDLE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortolan.cli.output import print_json, print_table, size

if TYPE_CHECKING:  # the runtime is imported when the command runs
    from ortolan.runtime.description import Description
    from ortolan.runtime.manifest import QuantizedTensor


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--context", type=click.IntRange(min=1), help="Tokens to plan memory for.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(bundle: Path, context: int | None, as_json: bool) -> None:
    """Say what BUNDLE holds: graphs, attention, sizes, and the memory that a context needs."""
    import msgspec

    from ortolan.runtime import open_bundle
    from ortolan.runtime.description import describe

    about = describe(open_bundle(bundle), context=context)
    if as_json:
        print_json(msgspec.to_builtins(about))
        return
    print_table(
        [
            ("model", f"{about.model_type} {about.kind}, {about.precision}"),
            ("devices", ", ".join(about.devices)),
            ("context", f"{about.context_length} tokens, vocabulary of {about.vocab_size}"),
            ("on disk", f"{size(about.total_bytes)}, weights {size(about.weight_bytes)}"),
            *_prefill(about),
            ("cache", f"{size(about.cache_bytes_per_token)} per token"),
            ("memory", f"at most {size(about.memory_bytes)} with {about.context} tokens"),
        ]
    )
    for role, graph in about.graphs.items():
        print(f"\n{role}  {graph.file} ({size(graph.bytes)})")
        print_table([(f"  {name}", str(count)) for name, count in graph.nodes.items()])
        for kind in graph.attention:
            values = ", ".join(f"{name}={value:g}" for name, value in kind.attributes.items())
            print(f"  attention: {kind.count} x {kind.operator}, {kind.lowering} ({values})")
    if about.quantized:
        print("\nweights in few bits, the largest error first")
        print_table([(f"  {tensor.name}", _format(tensor)) for tensor in about.quantized])
    print("\nfiles")
    print_table([(f"  {name}", size(count)) for name, count in about.files.items()])


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
