"""How well a trained model still predicts after each way of quantizing it.

    python benchmarks/quality.py models/pythonic
    python benchmarks/quality.py models/pythonic --peers ortolan,onnxruntime-genai --out build

Reads the beginnings of files that the checkpoint's recipe held out of its training, a window at
a time as `bits_per_byte` of ortolan.modeling does, and compares the logits of every setting with
those of PyTorch in float32. Prints a table and writes benchmarks/results/quality-NAME.json and .md.

A setting is a peer at a precision: all peers as peers.py measures them, and Ortolan with every
method and size of groups.
"""

import argparse
import dataclasses
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import report
from catalog import PEERS, PRECISIONS, TRANSFORMERS, Peer, ortolan
from divergence import Predictions, Quality
from ortolan.modeling.training.data import Texts, read_data
from ortolan.modeling.training.recipe import read_recipe
from ortolan.modeling.training.tokenizer import encode
from prepare import RESULTS, ROOT, Checkpoint, all_versions, program, say, trained_checkpoint
from rounds import Program, Worker
from script import count, exit_status, names

METHODS = ("rtn", "hqq", "gptq")
GROUP_SIZES = (32, 64, 128, 256)
WINDOW = 1024
CHARACTERS = 8192  # of one file, at most: the largest would be most of the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A peer at one precision."""

    peer: Peer
    precision: str


REFERENCE = Setting(peer=TRANSFORMERS, precision="fp32")

SETTINGS = (
    *(
        Setting(peer=peer, precision=precision)
        for precision in PRECISIONS
        for peer in PEERS
        if precision in peer.convert and not peer.last_logits_only
    ),
    Setting(peer=ortolan("ortolan", "int8"), precision="int8"),
    *(
        Setting(
            peer=ortolan(
                *(f"ortolan-{method}-{size}", "int4"),
                *("--method", method, "--group-size", str(size)),
            ),
            precision="int4",
        )
        for method in METHODS
        for size in GROUP_SIZES
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Documents that the model was not trained on, each with the token before it.

    Attributes:
        documents: ids of each.
        size_bytes: what all of them are in UTF-8.
    """

    documents: tuple[tuple[int, ...], ...]
    size_bytes: int

    @property
    def predictions(self) -> int:
        """How many tokens there are to predict: all but the first of each document."""
        return sum(len(ids) - 1 for ids in self.documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of a document.

    Attributes:
        ids: what the model sees.
        targets: what follows each of the last `len(targets)` ids.
    """

    ids: tuple[int, ...]
    targets: tuple[int, ...]


def held_out(checkpoint: Checkpoint, *, tokens: int) -> Text:
    """Return the beginnings of documents, in random order, until there are `tokens` to predict."""
    recipe = read_recipe(checkpoint.path / "recipe.toml")
    tokenizer = Tokenizer.from_file(str(checkpoint.path / "tokenizer.json"))
    special = recipe.required(recipe.tokenizer, "tokenizer").end_of_text
    texts = list(read_data(recipe, checkpoint.path, Texts).held_out)
    random.Random(0).shuffle(texts)
    documents: list[tuple[int, ...]] = []
    predictions = size_bytes = 0
    for text in (whole[:CHARACTERS] for whole in texts):
        if predictions >= tokens:
            break
        (ids,) = encode(tokenizer, (text,), special)
        documents.append(tuple(ids))
        predictions += len(ids) - 1
        size_bytes += len(text.encode())
    return Text(documents=tuple(documents), size_bytes=size_bytes)


def windows(text: Text, size: int) -> Iterator[Window]:
    """Yield windows that overlap by half, so that every token but a first is a target once."""
    stride = max(size // 2, 1)
    for ids in text.documents:
        for start in range(0, max(len(ids) - 1, 0), stride):
            piece = ids[start : start + size + 1]
            known = 0 if start == 0 else size - stride
            if len(piece) - 1 <= known:
                break
            yield Window(ids=piece[:-1], targets=piece[1 + known :])


def write_reference(started: Program, pieces: Sequence[Window], scratch: Path) -> list[Path]:
    """Write the logits of the reference for each window and return the files."""
    files = [scratch / f"reference-{number}.npy" for number in range(len(pieces))]
    with Worker(started) as worker:
        for piece, file in zip(pieces, files, strict=True):
            worker.logits(piece.ids, file)
    return files


def measure(
    started: Program, pieces: Sequence[Window], reference: Sequence[Path], *, text_bytes: int
) -> tuple[Quality, int]:
    """Compare one setting with the reference.

    Args:
        started: the setting.
        pieces: what to predict.
        reference: files with the logits of the reference, one for each piece.
        text_bytes: what all targets are in UTF-8.

    Returns:
        What was found, and the bytes of the model.
    """
    found = []
    with Worker(started) as worker, tempfile.TemporaryDirectory() as scratch:
        for piece, file in zip(pieces, reference, strict=True):
            logits = worker.logits(piece.ids, Path(scratch) / "logits.npy")
            expected = np.load(file)
            last = len(piece.targets)
            found.append(Predictions.of(expected[-last:], logits[-last:], piece.targets))
        return Quality.of(found, text_bytes=text_bytes), worker.model_bytes


def markdown(document: report.Document) -> str:
    """Return what was measured as text and a table, one row per setting."""
    text = document["held_out"]
    header = ["", "mean KL", "max KL", "top-1 agreement", "bits per byte", "model MiB"]
    rows = [
        [
            f"{entry['peer']} {entry['precision']}",
            f"{entry['mean_kl']:.1e}",
            f"{entry['max_kl']:.1e}",
            f"{entry['top1_agreement']:.4f}",
            f"{entry['bits_per_byte']:.4f}",
            f"{entry['model_bytes'] / 2**20:.1f}",
        ]
        for entry in document["settings"]
    ]
    return "\n\n".join(
        [
            f"# {document['checkpoint']}",
            f"Against PyTorch in float32 on {text['predictions']} held-out tokens, "
            f"{text['bytes']} bytes in {text['documents']} files, "
            f"windows of {document['window']} tokens. KL in nats.",
            report.table(header, rows),
            report.with_versions(document["versions"]),
        ]
    )


def chosen(wanted: Sequence[str] | None) -> list[Setting]:
    """Return the settings of the named peers, or all.

    Raises:
        ValueError: no setting has such a peer.
    """
    known = list(dict.fromkeys(setting.peer.name for setting in SETTINGS))
    for name in wanted or ():
        if name not in known:
            raise ValueError(f"--peers: expected some of {', '.join(known)}, got {name}.")
    return [setting for setting in SETTINGS if setting.peer.name in (wanted or known)]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure what quantization costs in quality.")
    parser.add_argument("checkpoint", type=Path, help="folder with a checkpoint and its recipe")
    parser.add_argument("--peers", type=names, help="NAME,NAME: settings of these alone")
    parser.add_argument("--tokens", type=count, default=20480, help="to predict, or a few more")
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


def compare(args: argparse.Namespace) -> None:
    """Measure every requested setting, print and write the result."""
    settings = chosen(args.peers)
    checkpoint = trained_checkpoint(args.checkpoint)
    text = held_out(checkpoint, tokens=args.tokens)
    config = json.loads((checkpoint.path / "config.json").read_text(encoding="utf-8"))
    window = min(WINDOW, config["max_position_embeddings"])
    pieces = list(windows(text, window))

    def start(setting: Setting) -> Program:
        return program(
            *(setting.peer, checkpoint, args.work),
            precision=setting.precision,
            threads=args.threads,
        )

    # Before the long part: what fails for lack of a peer fails now.
    versions = all_versions(setting.peer for setting in settings)
    machine = report.machine()
    entries = []
    with tempfile.TemporaryDirectory() as scratch:
        reference = write_reference(start(REFERENCE), pieces, Path(scratch))
        for setting in settings:
            quality, model_bytes = measure(
                start(setting), pieces, reference, text_bytes=text.size_bytes
            )
            entry = {"peer": setting.peer.name, "precision": setting.precision}
            entries.append({**entry, **dataclasses.asdict(quality), "model_bytes": model_bytes})
            say(f"{entry['peer']} {entry['precision']}: mean KL {quality.mean_kl:.2e}")
    document = {
        "checkpoint": checkpoint.name,
        "held_out": {
            "documents": len(text.documents),
            "bytes": text.size_bytes,
            "predictions": text.predictions,
        },
        "window": window,
        "versions": versions,
        "machine": machine,
        "settings": entries,
    }
    path = args.out / f"quality-{checkpoint.name}.json"
    report.write(path, document)
    path.with_suffix(".md").write_text(markdown(document), encoding="utf-8")
    print(markdown(document))
    say(f"wrote {path} and, beside it, .md")


if __name__ == "__main__":
    sys.exit(exit_status(compare, parse()))
