"""Measure what can be exported: each model type, tiny and random, against transformers.

    python scripts/families_table.py                    # every type, by each way
    python scripts/families_table.py --way family       # by one way
    python scripts/families_table.py --only qwen2       # one type; repeatable
    python scripts/families_table.py --render           # only write docs/families.md

A type takes a few seconds. Its result replaces the type's row in `export/coverage.json`, from which
docs/families.md is written. Exit status 1 if a type is not supported.
"""

import argparse
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import torch  # noqa: E402
import transformers  # noqa: E402
from tests.cases.comparison import compare, save_tiny  # noqa: E402
from tests.tiny import CONFIGS, FAMILY_CONFIGS  # noqa: E402
from tests.tiny.transformers_types import TYPES as CAUSAL_TYPES  # noqa: E402
from tests.tiny.transformers_types import tiny_config  # noqa: E402
from transformers import AutoConfig  # noqa: E402

import ortolan  # noqa: E402
from ortolan.export.coverage import BOUND, DATA, Coverage, Row, decode, encode  # noqa: E402
from ortolan.export.options import Via  # noqa: E402
from ortolan.modeling.families import FAMILIES  # noqa: E402

DATA_FILE, DOCUMENT = ROOT / "export" / DATA, ROOT / "docs" / "families.md"

SPREAD = 0.2
"""Standard deviation of random weights, large enough for attention to differ between tokens."""

SPREADS = {"t5": 0.1}
"""For types with unscaled scores, whose attention would otherwise choose a single token."""

TYPES: dict[Via, tuple[str, ...]] = {
    "family": tuple(FAMILY_CONFIGS),
    "transformers": CAUSAL_TYPES,
}
"""Model types by how they are exported."""

CONTEXT = 96
"""Context length of bundles through transformers; some configs have none."""


def tiny_values(model_type: str, way: Via) -> dict[str, Any]:
    """The config of a tiny model; for a causal language model, the same for both ways."""
    values = CONFIGS.get(model_type, {"architectures": []})
    if way == "family" or "architectures" not in values:
        return values
    return tiny_config(model_type).to_dict() | {"model_type": model_type, "architectures": [None]}


def measure(model_type: str, way: Via) -> Row:
    """Export a tiny model, and compare its bundle with transformers."""
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
            comparison = compare(folder / "source", folder / "bundle", max_context=context)
        except Exception as failure:  # any error is a reason why the type is not supported
            traceback.print_exc()
            note = f"{type(failure).__name__}: {' '.join(str(failure).split())}"
        else:
            kind, tokens_equal = comparison.kind, comparison.tokens_equal
            note = _part(model) if way == "transformers" else ""
            error = float(f"{comparison.error:.1e}")
    return Row(
        model_type=model_type,
        way=way,
        kind=kind,
        error=error,
        tokens_equal=tokens_equal,
        note=note,
    )


def _part(model: Any) -> str:
    """A note if the model is only the decoder of an encoder-decoder."""
    is_part = getattr(type(model.config), "is_encoder_decoder", False)
    if model.config.model_type in FAMILIES or not is_part:
        return ""
    return f"the decoder alone ({type(model).__name__}); the encoder-decoder is not supported"


def merge(*rows: Row) -> None:
    """Replace older rows, and write the document."""
    old = decode(DATA_FILE.read_bytes()).rows if DATA_FILE.exists() else ()
    latest = {
        (row.model_type, row.way): row
        for row in (*old, *rows)
        if row.way == "transformers" or row.model_type in FAMILIES
    }
    coverage = Coverage(transformers=transformers.__version__, rows=tuple(latest.values()))
    DATA_FILE.write_bytes(encode(coverage))
    DOCUMENT.write_text(markdown(coverage))


HEAD = """# Model types

`scripts/families_table.py` writes this table, and `ortolan families` prints it. For each type the
script exports a tiny model with random weights in fp32 and compares the bundle with transformers
{version}, whole texts as well as cached steps and batches. The error is the largest difference over
the largest value. A type is supported up to {bound:.0e}, if greedy generation gives the same
tokens.

* **family**: built from Ortolan's own layers. A type with a figure in this column takes this way,
  and the other with `--via transformers`.
* **transformers**: traced from the code of transformers, for every other type;
  exports no attention maps.

A type has a family if

* it is an encoder, an encoder-decoder, or reads images or sounds;
* its attention cannot be traced (`no` in the column of transformers);
* Ortolan trains it, an image or speech model contains it, or GGUF files of it are common;
* its own graph has fewer nodes: mixtures of experts, state spaces, DeepSeek V2, Youtu, Hunyuan
  and nanochat;
* it is one of the most used: Llama, Mistral, Qwen, Gemma, Phi 3, GPT-2, Granite, LFM 2, GLM 4.5,
  DeepSeek V3 and gpt-oss.

{counts}

| model type | kind | family | transformers | |
|---|---|---|---|---|
"""


def markdown(coverage: Coverage) -> str:
    """The document."""
    lines = []
    for model_type in sorted({row.model_type for row in coverage.rows}):
        rows = {row.way: row for row in coverage.of(model_type)}
        cells = [_cell(rows.get(way)) for way in ("family", "transformers")]
        kind = next((r.kind for r in rows.values() if r.kind), "")
        notes = "; ".join(row.note for row in rows.values() if row.note).replace("|", "\\|")
        lines.append(f"| `{model_type}` | {kind} | {' | '.join(cells)} | {notes} |".rstrip())
    counts = coverage.counts()
    summary = (
        f"{counts['family']} types have a family; {counts['transformers']} go through transformers."
    )
    head = HEAD.format(version=coverage.transformers, bound=BOUND, counts=summary)
    return head + "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.error is None:
        return "no"
    return f"{row.error:.1e}" if row.supported else f"no ({row.error:.1e})"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    types = sorted({model_type for names in TYPES.values() for model_type in names})
    parser.add_argument("--only", action="append", choices=types, metavar="TYPE")
    parser.add_argument("--way", choices=TYPES, action="append")
    parser.add_argument("--render", action="store_true", help="only write docs/families.md")
    args = parser.parse_args()
    if args.render:
        merge()
        return 0
    torch.set_num_threads(1)
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    unsupported = 0
    for way in args.way or TYPES:
        for model_type in TYPES[way]:
            if args.only and model_type not in args.only:
                continue
            row = measure(model_type, way)
            merge(row)
            print(row.model_type, row.way, row.error, row.tokens_equal, row.note, flush=True)
            unsupported += not row.supported
    return 1 if unsupported else 0


if __name__ == "__main__":
    sys.exit(main())
