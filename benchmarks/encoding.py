"""Compare encoders on this machine: same weights, same texts, same number of threads.

    python benchmarks/encoding.py
    python benchmarks/encoding.py --texts 256 --tokens 64 -r 7

A random BERT of 22 million parameters encodes texts: Ortolan in fp32 and int8, onnxruntime on the
export of transformers in fp32 and dynamically quantized int8, and PyTorch. All stay loaded and
alternate. Prints a table and writes it to benchmarks/results/.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

import report
import rounds
from catalog import TRANSFORMERS, Peer, ortolan
from prepare import Checkpoint, all_versions, environment, program, say
from script import add_folders, add_timing, count, exit_status

SHAPE = "bert-22m"
VOCABULARY = 30522
REFERENCE = "transformers"

ONNXRUNTIME = Peer(
    name="onnxruntime",
    requirements=("onnxruntime", "transformers", "torch", "onnx", "onnxscript"),
    convert={
        p: ("{bin}/python", "-m", "workers.to_onnx", "{checkpoint}", "{model}", p)
        for p in ("fp32", "int8")
    },
    worker="workers.onnx_encoder",
    versions=("onnxruntime", "transformers"),
)

INT8 = ("--prefill-precision", "int8")

PEERS = (
    (replace(ortolan("ortolan", "fp32"), worker="workers.ortolan_encoder"), "fp32"),
    (replace(ortolan("ortolan-int8", "int8", *INT8), worker="workers.ortolan_encoder"), "int8"),
    (ONNXRUNTIME, "fp32"),
    (replace(ONNXRUNTIME, name="onnxruntime-int8"), "int8"),
    (replace(TRANSFORMERS, worker="workers.bert_eager"), "fp32"),
)
"""Peers and their precisions; the others are compared with the first."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Compare encoders.")
    parser.add_argument("--texts", type=count, default=256)
    parser.add_argument("--tokens", type=count, default=64)
    add_timing(parser, rounds=7)
    add_folders(parser)
    return parser.parse_args(arguments)


def random_bert(work: Path) -> Checkpoint:
    """The checkpoint, written if it does not exist."""
    path = (work / SHAPE / "checkpoint").resolve()
    if not (path / "config.json").exists():
        say(f"writing a random checkpoint of shape {SHAPE}")
        python = environment(TRANSFORMERS) / "python"
        command = [str(python), "-m", "workers.make_bert", str(path)]
        subprocess.run(command, check=True, cwd=rounds.HERE, stdout=sys.stderr)
    return Checkpoint(name=SHAPE, path=path, random=True)


def cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Mean cosine of vectors `(..., width)`."""
    norms = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    return float(((first * second).sum(-1) / norms).mean())


def rows(turns: Sequence[rounds.Turn], texts: int) -> list[list[str]]:
    """One row of the table per peer."""
    seconds = {(turn.peer, turn.round): turn.answer["seconds"] for turn in turns}
    peers = list(dict.fromkeys(turn.peer for turn in turns))
    numbers = sorted({turn.round for turn in turns})
    vectors = {turn.peer: np.load(turn.answer["path"]) for turn in turns if turn.round == 0}
    table = []
    for peer in peers:
        ratio = report.Ratio.of(seconds[peer, n] / seconds[peers[0], n] for n in numbers)
        speed = median(texts / seconds[peer, n] for n in numbers)
        times = "" if peer == peers[0] else str(ratio)
        table.append(
            [peer, f"{speed:.1f}", times, f"{cosine(vectors[peer], vectors[REFERENCE]):.5f}"]
        )
    return table


def side_by_side(args: argparse.Namespace) -> None:
    """Prepare all peers, run them alternately, print and write the result."""
    checkpoint = random_bert(args.work)
    drawn = random.Random(0)
    texts = [drawn.choices(range(1000, VOCABULARY), k=args.tokens) for _ in range(args.texts)]
    programs = [
        program(peer, checkpoint, args.work, precision=precision, threads=args.threads)
        for peer, precision in PEERS
    ]
    machine = report.machine()
    versions = all_versions([peer for peer, _ in PEERS])
    first = PEERS[0][0].name
    with tempfile.TemporaryDirectory() as folder:
        request = {"texts": texts, "folder": folder}
        turns, loaded = rounds.take_turns(programs, [request], rounds=args.rounds)
        table = rows(turns, args.texts)
    text = "\n\n".join(
        (
            f"# Encoding with {SHAPE}, {args.texts} texts of {args.tokens} tokens, "
            f"{args.threads} threads",
            f"{machine['processor']}, {machine['cores']} cores, {args.rounds} rounds. `times` is "
            f"the speedup of {first}; `cosine` compares with {REFERENCE}.",
            report.table(["", "texts/s", f"{first}, times", "cosine"], table),
            report.with_versions(versions),
        )
    )
    print(text)
    name = f"encoding-{SHAPE}-{args.texts}x{args.tokens}-t{args.threads}.json"
    plain = [{"peer": t.peer, "round": t.round, "seconds": t.answer["seconds"]} for t in turns]
    sizes = {peer: seen.model_bytes for peer, seen in loaded.items()}
    path = args.out / name
    document = {"machine": machine, "versions": versions, "runs": plain, "model_bytes": sizes}
    report.write(path, document, text)
    say(f"wrote {path} and .md")


if __name__ == "__main__":
    sys.exit(exit_status(side_by_side, parse()))
