"""Measure what can be exported: each model type, tiny and random, against transformers.

    python scripts/families_table.py                    # every type, by each way
    python scripts/families_table.py --way family       # by one way
    python scripts/families_table.py --only qwen2       # some; repeatable
    python scripts/families_table.py --missing          # those without a row of a supported type
    python scripts/families_table.py --render           # only docs/families.md, from the data

A type takes some seconds. What is measured takes the place of that type's row in
`export/coverage.json`, from which docs/families.md is written. Several processes may run at once.
Where git finds conflicts in the two files, --render resolves them: a later row wins.
Exit status 1 if a type is not supported.
"""

import argparse
import fcntl
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import msgspec  # noqa: E402 - the paths come first
import torch  # noqa: E402
import transformers  # noqa: E402
from tests.tiny import FAMILY_CONFIGS  # noqa: E402
from tests.tiny.transformers_types import TYPES as CAUSAL_TYPES  # noqa: E402
from tests.tiny.transformers_types import tiny_config  # noqa: E402
from transformers import AutoConfig  # noqa: E402

import ortolan  # noqa: E402
from family_checks import compare, save_tiny  # noqa: E402
from ortolan.export.coverage import BOUND, DATA, Coverage, Row, encode  # noqa: E402
from ortolan.export.options import Via  # noqa: E402
from ortolan.modeling.families import FAMILIES  # noqa: E402

DATA_FILE, DOCUMENT = ROOT / "export" / DATA, ROOT / "docs" / "families.md"

SPREAD = 0.2
"""The standard deviation of random weights: attention and outputs differ from place to place."""

SPREADS = {"t5": 0.1}
"""Of types whose scores are not divided: with large weights attention chooses a single token."""

TYPES: dict[Via, tuple[str, ...]] = {"family": tuple(FAMILY_CONFIGS), "transformers": CAUSAL_TYPES}
"""Model types by the way in which they are exported."""

CONTEXT = 96
"""Tokens that fit into a bundle made through transformers; some configs name no number."""

NOTE_LENGTH = 160


def tiny_values(model_type: str, way: Via) -> dict[str, Any]:
    """The config of a tiny model; the same for both ways, if it is of a causal language model."""
    values = FAMILY_CONFIGS.get(model_type, {"architectures": []})
    if way == "family" or "architectures" not in values:
        return values
    return tiny_config(model_type).to_dict() | {"model_type": model_type, "architectures": [None]}


def measure(model_type: str, way: Via) -> Row:
    """Export a tiny model of a type, and compare its bundle with transformers."""
    kind, error, tokens_equal, note = "", None, None, ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            spread = SPREADS.get(model_type, SPREAD)
            values = tiny_values(model_type, way)
            model = save_tiny(values, folder / "source", spread=spread)
            if model.config.model_type != model_type:  # saved as the part that is a decoder
                whole: Any = AutoConfig.for_model(**values)
                whole.save_pretrained(folder / "source")
            options = ortolan.ExportOptions(via=way)
            context = CONTEXT if way == "transformers" else None
            ortolan.export(
                folder / "source", folder / "bundle", options=options, max_context=context
            )
            found = compare(model, folder / "bundle")
        except Exception as failure:  # whatever it is, it is why this type is not supported
            traceback.print_exc()
            note = f"{type(failure).__name__}: {' '.join(str(failure).split())}"[:NOTE_LENGTH]
        else:
            kind, tokens_equal = found.kind, found.tokens_equal
            note = _part(model) if way == "transformers" else ""
            error = float(f"{found.error:.1e}")
    return Row(
        model_type=model_type,
        way=way,
        kind=kind,
        error=error,
        tokens_equal=tokens_equal,
        note=note,
    )


def _part(model: Any) -> str:
    """What a model is of its type's whole: of an encoder-decoder, the decoder alone."""
    is_part = getattr(type(model.config), "is_encoder_decoder", False)
    if model.config.model_type in FAMILIES or not is_part:
        return ""
    return f"the decoder alone ({type(model).__name__}); the encoder-decoder is not supported"


@contextmanager
def _locked() -> Iterator[None]:
    """Let one process at a time change the data."""
    with Path(__file__).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def merge(*rows: Row) -> None:
    """Put rows in the place of older ones, and write the document anew."""
    with _locked():
        latest = {(row.model_type, row.way): row for row in (*read_rows(), *rows)}
        coverage = Coverage(transformers=transformers.__version__, rows=tuple(latest.values()))
        DATA_FILE.write_bytes(encode(coverage))
        DOCUMENT.write_text(markdown(coverage))


def read_rows() -> list[Row]:
    """The rows of the data, a line each, between whatever marks git has left."""
    lines = DATA_FILE.read_text().splitlines() if DATA_FILE.exists() else []
    rows = [line.strip().removesuffix(",") for line in lines if line.startswith("  {")]
    return [msgspec.json.decode(row, type=Row) for row in rows]


HEAD = """# Model types

Written by `scripts/families_table.py`, which makes a tiny model with random weights of each type,
exports it with weights in fp32, and compares the bundle with transformers {version}: a prompt of 33
tokens, 40 steps after it, and two texts of unequal lengths in one batch; for an encoder, two inputs
in one batch. The error is the largest difference over the largest number that transformers gives.
A type is supported up to {bound:.0e}, if the texts that are generated greedily are the same too.
`ortolan families` prints this table.

* *family*: built from our own layers; attention is a fused kernel from the start.
* *transformers*: traced as transformers computes it, and fused afterwards.

{counts}

| model type | kind | family | transformers | |
|---|---|---|---|---|
"""


def markdown(coverage: Coverage) -> str:
    """The document of the data."""
    lines = []
    for model_type in sorted({row.model_type for row in coverage.rows}):
        rows = {row.way: row for row in coverage.of(model_type)}
        cells = [_cell(rows.get(way)) for way in ("family", "transformers")]
        kind = next((r.kind for r in rows.values() if r.kind), "")
        notes = "; ".join(row.note for row in rows.values() if row.note).replace("|", "\\|")
        lines.append(f"| `{model_type}` | {kind} | {' | '.join(cells)} | {notes} |".rstrip())
    counts = coverage.counts()
    said = (
        f"{counts['family']} types by their family, {counts['transformers']} through transformers."
    )
    head = HEAD.format(version=coverage.transformers, bound=BOUND, counts=said)
    return head + "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.error is None:
        return "no"
    return f"{row.error:.1e}" if row.supported else f"no ({row.error:.1e})"


def main() -> int:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    types = sorted({model_type for each in TYPES.values() for model_type in each})
    parser.add_argument("--only", action="append", choices=types, metavar="TYPE")
    parser.add_argument("--way", choices=TYPES, action="append")
    parser.add_argument("--missing", action="store_true", help="only what is not supported yet")
    parser.add_argument("--render", action="store_true", help="only write docs/families.md")
    given = parser.parse_args()
    if given.render:
        merge()
        return 0
    torch.set_num_threads(1)
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    unsupported = 0
    done = {(r.model_type, r.way) for r in read_rows() if r.supported}
    for way in given.way or TYPES:
        for model_type in TYPES[way]:
            if given.only and model_type not in given.only:
                continue
            if given.missing and (model_type, way) in done:
                continue
            row = measure(model_type, way)
            merge(row)
            print(row.model_type, row.way, row.error, row.tokens_equal, row.note, flush=True)
            unsupported += not row.supported
    return 1 if unsupported else 0


if __name__ == "__main__":
    sys.exit(main())
