"""Checkpoints: the commands `families` and `train`, and the output of `ortolan inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortolan.cli import options
from ortolan.cli.extras import extra
from ortolan.cli.output import aligned, print_json, print_table, size
from ortolan.cli.progress import progress

if TYPE_CHECKING:  # PyTorch is imported when a command runs
    from collections.abc import Mapping

    from ortolan.export.preview.cost import Cost
    from ortolan.export.preview.preview import Preview


@click.command()
@click.argument("recipe", type=options.path)
@click.argument("out", type=options.path, required=False)
def train_command(recipe: Path, out: Path | None) -> None:
    """Train the model of RECIPE and write its checkpoint to OUT, or next to the recipe.

    RECIPE is a TOML file. It names a function, in a Python file next to it, that reads the data.
    """
    with extra("train", command="train"):
        import matplotlib  # noqa: F401 - needed only when training ends; fail now instead

        from ortolan.modeling.training.trainer import train
    print(f"checkpoint  {train(recipe, out)}")


_COUNTED = {"family": "by their family", "transformers": "through transformers"}


@click.command()
@click.argument("model_types", nargs=-1, metavar="[MODEL_TYPE]...")
@options.as_json
def families_command(model_types: tuple[str, ...], as_json: bool) -> None:
    """List the model types that can be exported, and the error measured in tests.

    MODEL_TYPE is the model_type of a config.json, such as llama. The error is the largest
    difference from transformers, with fp32 weights, relative to the largest output of transformers.
    """
    import msgspec

    from ortolan.export.coverage import read_coverage

    coverage = read_coverage()
    rows = [row for row in coverage.rows if not model_types or row.model_type in model_types]
    missing = [name for name in model_types if not coverage.of(name)]
    if missing:
        raise click.ClickException(
            f"unknown model types: {', '.join(missing)}. `ortolan families` lists those that were "
            "tested."
        )
    if as_json:
        print_json(
            {"transformers": coverage.transformers, "rows": [msgspec.to_builtins(r) for r in rows]}
        )
        return
    table = [
        (
            row.model_type,
            row.kind,
            _COUNTED[row.way],
            "-" if row.error is None else f"{row.error:.1e}",
            row.note,
        )
        for row in rows
    ]
    print(*aligned([("model type", "kind", "way", "error", ""), *table]), sep="\n")
    if not model_types:
        counts = [f"{count} {_COUNTED[way]}" for way, count in coverage.counts().items()]
        print(f"\nsupported: {', '.join(counts)}; transformers {coverage.transformers}")


_WAYS = {"family": "by its family", "transformers": "as transformers computes it"}


def print_preview(path: str | Path, *, via: Any, as_json: bool) -> None:
    """Print how a checkpoint would be exported, and the cost."""
    import msgspec

    with extra("export", command="inspect"):
        from ortolan.export.preview.preview import preview

    with progress() as steps:
        about = preview(path, via=via, progress=steps)
    if as_json:
        print_json(msgspec.to_builtins(about))
        return
    error = about.measured and about.measured.error
    measured = "" if error is None else f"; error of this type in tests: {error:.1e}"
    print_table(
        [
            ("checkpoint", f"{about.model_type}, {size(about.weight_bytes)} of weights"),
            ("exported as", f"{about.kind}, {_WAYS[about.way]}{measured}"),
            ("layers", _layers(about.layers, about.width)),
            ("parameters", f"{about.parameters:,}"),
            *[
                (name, f"{_layers(part.layers, part.width)}, {part.parameters:,} parameters")
                for name, part in about.parts.items()
            ],
            ("context", _context(about)),
            ("config", _keys(about)),
            ("left out", ", ".join(about.left_out) or None),
            *[("missing", f"{name}: {loss}") for name, loss in about.missing.items()],
            *[("note", risk) for risk in (*about.notes, *about.risks)],
        ]
    )
    print("\nestimated export; --precision auto takes longer")
    kept = ": keeps the 4-bit and 8-bit codes, and rounds other weights to 8 bits"
    default = f" (default{kept if about.default != 'fp32' else ''})"
    costs = [(name, _cost(cost)) for name, cost in about.precisions.items()]
    print_table([(f"  {name}", cost + default * (name == about.default)) for name, cost in costs])


def _layers(layers: Mapping[str, int], width: int | None) -> str:
    words = ", ".join(f"{count} {name}" for name, count in layers.items())
    return words if width is None else f"{words}, {width} wide"


def _context(about: Preview) -> str | None:
    if about.vocab_size == 1:
        return None
    cache = f", cache {size(about.cache_bytes_per_token)} per token"
    context = f"{about.context_length} tokens, vocabulary of {about.vocab_size}"
    return context + (cache if about.cache_bytes_per_token else "")


def _keys(about: Preview) -> str:
    if not about.unknown_keys:
        return f"understood; {len(about.ignored_keys)} keys that change nothing are ignored"
    flags = " ".join(f"--accept-unknown {key}" for key in about.unknown_keys)
    return (
        f"unknown: {', '.join(about.unknown_keys)}. If they do not affect the model, export with "
        f"{flags}"
    )


def _cost(cost: Cost) -> str:
    method = "" if cost.method is None else f" by {cost.method}"
    runs = "" if cost.run_memory_bytes is None else f", {size(cost.run_memory_bytes)} to generate"
    return (
        f"weights of {size(cost.bundle_bytes)}{method}; memory {size(cost.memory_bytes)} to export"
        f"{runs}"
    )
