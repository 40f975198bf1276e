"""How well a trained model still predicts at low bit widths.

    python benchmarks/quality.py models/pythonic
    python benchmarks/quality.py models/pythonic --only 'ortolan gptq*,llama.cpp' --out build
    python benchmarks/quality.py CHECKPOINT --text FILE... --name smollm2
    python benchmarks/quality.py CHECKPOINT --text FILE... --bundles BUNDLE... --out build

Reads the beginnings of files that the checkpoint's recipe held out, as `bits_per_byte` of
ortolan.modeling does, or windows spread evenly over the files of --text, and compares the logits of
every setting with float32 in PyTorch. Prints a table and writes quality-NAME.json and .md, and
pictures of quality against size and against the time of the export. Keeps rows that were measured
earlier over the same text. Times compare only within a run.

settings.py lists the settings, and texts.py reads the texts.
"""

import argparse
import dataclasses
import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import report
import texts
from catalog import TRANSFORMERS
from divergence import Predictions, Quality
from prepare import Checkpoint, all_versions, program, say, trained_checkpoint
from result_charts import draw_result
from rounds import Program, Worker
from script import add_folders, count, exit_status, names
from settings import SETTINGS, Setting, chosen, standing
from texts import Text, Window

WEIGHTS = ("*.bin", "*.onnx.data", "*.gguf", "*.safetensors")
ROWS = 16  # compared at once, to stay in the processor's cache


def reference(checkpoint: Checkpoint, pieces: Sequence[Window], args: argparse.Namespace) -> Path:
    """Folder with the float32 logits of PyTorch, one file per window.

    They are computed once per checkpoint and text, and kept below the work folder.
    """
    files = sorted(checkpoint.path.glob("*.safetensors"))
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    identity = repr((stamps, [piece.ids for piece in pieces]))
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    folder: Path = args.work.resolve() / checkpoint.name / f"reference-{key}"
    if folder.exists():
        return folder
    say(f"computing the reference, {len(pieces)} windows")
    running = program(TRANSFORMERS, checkpoint, args.work, precision="fp32", threads=args.threads)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    with Worker(running) as worker:
        for number, piece in enumerate(pieces):
            worker.logits(piece.ids, unfinished / f"{number}.npy")
    return unfinished.rename(folder)


def measure(
    started: Program, pieces: Sequence[Window], folder: Path, *, text_bytes: int
) -> Quality:
    """Compare one setting with the reference.

    Args:
        started: program of the setting.
        pieces: windows to predict.
        folder: logits of the reference, from `reference`.
        text_bytes: UTF-8 bytes of all targets.
    """
    parts: list[Predictions] = []
    with Worker(started) as worker, tempfile.TemporaryDirectory() as scratch:
        for number, piece in enumerate(pieces):
            logits = worker.logits(piece.ids, Path(scratch) / "logits.npy")
            expected = np.load(folder / f"{number}.npy", mmap_mode="r")
            first = len(piece.ids) - len(piece.targets)
            for at in range(0, len(piece.targets), ROWS):
                rows = slice(first + at, first + at + ROWS)
                targets = piece.targets[at : at + ROWS]
                parts.append(Predictions.of(expected[rows], logits[rows], targets))
    return Quality.of(parts, text_bytes=text_bytes)


def file_bytes(model: Path) -> int:
    """Bytes of the weight files of a model, without tokenizers, graphs and notes.

    Raises:
        ValueError: the folder has no weight files.
    """
    files = [file for pattern in WEIGHTS for file in model.glob(pattern)]
    files = [file for file in files if "tokenizer" not in file.name]
    if not files:
        raise ValueError(f"{model}: contains none of {', '.join(WEIGHTS)}.")
    return sum(file.stat().st_size for file in files)


def markdown(document: report.Document) -> str:
    """The measurement as text and a table, one row per setting."""
    text = document["text"]
    header = [
        *("", "MB", "mean KL", "p99 KL", "max KL"),
        *("top-1 agreement", "bits per byte", "seconds to export"),
    ]
    rows = [
        [
            f"{entry['tool']} {entry['label']}",
            f"{entry['file_bytes'] / 1e6:.1f}",
            f"{entry['mean_kl']:.2g}",
            f"{entry['p99_kl']:.2g}",
            f"{entry['max_kl']:.2g}",
            f"{entry['top1_agreement']:.4f}",
            f"{entry['bits_per_byte']:.4f}",
            f"{entry['export_s']:.0f}" if "export_s" in entry else "",
        ]
        for entry in document["settings"]
    ]
    return "\n\n".join(
        [
            f"# Quality of {document['checkpoint']}",
            f"Compared with float32 in PyTorch on {text['predictions']} tokens, {text['bytes']} "
            f"bytes: {text['source']}, in windows of {text['window']} tokens. KL in nats. MB are "
            "millions of bytes of weight files, without tokenizers.",
            *([document["note"]] if document.get("note") else []),
            report.table(header, rows),
            report.with_versions(document["versions"]),
        ]
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure the quality of quantized models.")
    parser.add_argument("checkpoint", type=Path, help="checkpoint folder")
    parser.add_argument("--name", help="name of the result; the folder's name by default")
    parser.add_argument("--note", help="text above the table")
    parser.add_argument("--only", type=names, default=(), help="TOOL,PATTERN: settings to measure")
    parser.add_argument("--bundles", type=Path, nargs="+", help="bundles to measure instead")
    parser.add_argument("--reuse", action="store_true", help="keep Ortolan's earlier exports")
    parser.add_argument("--text", type=Path, nargs="+", help="text files instead of the recipe's")
    parser.add_argument("--windows", type=count, default=24, help="number of windows of --text")
    parser.add_argument("--window", type=count, default=256, help="tokens per window")
    parser.add_argument("--tokens", type=count, default=20480, help="tokens of the recipe's files")
    parser.add_argument("--threads", type=count, default=2)
    add_folders(parser)
    return parser.parse_args(arguments)


def text_of(args: argparse.Namespace) -> Text:
    """The text that the command line names."""
    if args.text is None:
        return texts.held_out(args.checkpoint, tokens=args.tokens)
    return texts.spread(args.checkpoint, args.text, windows=args.windows, window=args.window)


def started(setting: Setting, checkpoint: Checkpoint, args: argparse.Namespace) -> Program:
    """Convert the model of a setting if needed, and return its program."""
    source = checkpoint
    if setting.bundle is not None:
        source = replace(checkpoint, path=setting.bundle.resolve())
    peer = replace(setting.peer, reuse=setting.peer.reuse or args.reuse)
    return program(peer, source, args.work, precision=setting.precision, threads=args.threads)


def merged(earlier: report.Document, new: report.Document) -> report.Document:
    """Add the rows of an earlier run over the same text, ordered by tool and size."""
    if earlier.get("text") != new["text"]:
        return new
    settings = (*earlier["settings"], *new["settings"])
    rows = {(row["tool"], row["label"]): row for row in settings}
    tools = list(dict.fromkeys(tool for tool, _ in rows))
    ordered = sorted(rows.values(), key=lambda row: (tools.index(row["tool"]), row["file_bytes"]))
    versions = {**earlier["versions"], **new["versions"]}
    note = new.get("note") or earlier.get("note")
    return {**new, "note": note, "versions": versions, "settings": ordered}


def publish(document: report.Document, path: Path) -> None:
    """Write the rows together with those of earlier runs over the same text."""
    if path.exists():
        document = merged(json.loads(path.read_text(encoding="utf-8")), document)
    report.write(path, document, markdown(document))
    draw_result(document, path.with_suffix(".png"))


def compare(args: argparse.Namespace) -> None:
    """Measure every requested setting; print and write the result after each."""
    settings = [standing(folder) for folder in args.bundles or ()] or chosen(args.only, SETTINGS)
    checkpoint = trained_checkpoint(args.checkpoint)
    checkpoint = replace(checkpoint, name=args.name or checkpoint.name)
    text = text_of(args)
    pieces = list(texts.cut(text))
    # Before the long part, so that a missing peer fails now.
    versions = all_versions(setting.peer for setting in settings)
    expected = reference(checkpoint, pieces, args)
    path = args.out / f"quality-{checkpoint.name}.json"
    document = {
        "checkpoint": checkpoint.name,
        "text": {
            "source": text.source,
            "bytes": text.size_bytes,
            "predictions": text.predictions,
            "window": text.window,
        },
        "machine": report.machine(),
        "note": args.note,
    }
    for setting in settings:
        began = time.monotonic()
        running = started(setting, checkpoint, args)
        converted_s = time.monotonic() - began
        quality = measure(running, pieces, expected, text_bytes=text.size_bytes)
        row = {
            **{"tool": setting.tool, "label": setting.label, "precision": setting.precision},
            **dataclasses.asdict(quality),
            "file_bytes": file_bytes(running.model),
            **({} if setting.bundle or args.reuse else {"export_s": round(converted_s, 1)}),
        }
        say(f"{setting.name}: {row['file_bytes'] / 1e6:.1f} MB, mean KL {quality.mean_kl:.2e}")
        used = {setting.tool: versions[setting.peer.name]}
        publish({**document, "versions": used, "settings": [row]}, path)
    print(path.with_suffix(".md").read_text(encoding="utf-8"))
    say(f"wrote {path}, .md and .png")


if __name__ == "__main__":
    sys.exit(exit_status(compare, parse()))
