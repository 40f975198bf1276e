"""Compare Ortolan and its peers on this machine: same checkpoint, prompt and number of threads.

    python benchmarks/peers.py --shape tiny --starts 8
    python benchmarks/peers.py --shape 1b --precision int4 -p 128 512
    python benchmarks/peers.py --checkpoint path/to/model -p 512 -n 128 -r 7
    python benchmarks/peers.py --shape 135m --peers ortolan,llama.cpp
    python benchmarks/peers.py --shape tiny --installed --kl

Run it with the interpreter that has Ortolan. Each peer gets its own environment below .venv-peers/
and converts the checkpoint with its own tool; then all stay loaded and alternate. Prints tables and
writes them to benchmarks/results/, with all runs as JSON and a chart of the speeds. With --kl, the
logits of each peer are compared with float32 in transformers.

catalog.py lists the peers, prepare.py installs them, rounds.py measures, and report.py summarizes.
quality.py measures how well quantized weights predict.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import report
import rounds
from catalog import PEERS, PRECISIONS, TRANSFORMERS, Peer
from divergence import Predictions
from make_checkpoint import SHAPES
from prepare import (
    Checkpoint,
    all_versions,
    is_installed,
    program,
    random_checkpoint,
    say,
    trained_checkpoint,
)
from result_charts import draw_result
from script import add_folders, add_timing, count, exit_status, names

FIRST_ORDINARY_ID = 3  # lower ids are special tokens, which some peers treat differently
BUSY = 0.5  # load average above which times are unreliable


def make_prompt(checkpoint: Path, *, tokens: int, new_tokens: int) -> list[int]:
    """Ids that depend only on the checkpoint and the length.

    Raises:
        ValueError: prompt and answer exceed the context of the model.
    """
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    context = config["max_position_embeddings"]
    if tokens + new_tokens > context:
        raise ValueError(
            f"{checkpoint}: the context has {context} tokens, less than {tokens} + {new_tokens}. "
            "Lower -p or -n."
        )
    return random.Random(0).choices(range(FIRST_ORDINARY_ID, config["vocab_size"]), k=tokens)


def chosen(names: Sequence[str] | None, precision: str) -> tuple[Peer, ...]:
    """The named peers, or all that have a precision.

    Raises:
        ValueError: no peer of that name has this precision.
    """
    peers = {peer.name: peer for peer in PEERS if precision in peer.convert}
    for name in names or ():
        if name not in peers:
            raise ValueError(f"--peers: unknown {name}; choose from {', '.join(peers)}.")
    return tuple(peers[name] for name in names or peers)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Compare Ortolan and its peers.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, help="Hugging Face checkpoint folder")
    source.add_argument("--shape", choices=SHAPES, help="random weights of this shape")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument(
        *("--peers",),
        type=names,
        help="NAME,NAME: these only; the first is compared with the others",
    )
    parser.add_argument(
        "--installed", action="store_true", help="leave out peers that are not installed yet"
    )
    parser.add_argument(
        "--kl", action="store_true", help="compare logits with float32 in transformers, too"
    )
    add_timing(parser, rounds=7)
    add_folders(parser)
    parser.add_argument(
        *("-p", "--prompt-tokens"), type=count, nargs="+", default=[128], help="prompt lengths"
    )
    parser.add_argument("-n", "--new-tokens", type=count, default=128)
    parser.add_argument("--starts", type=count, default=1, help="times to start anew")
    args = parser.parse_args(arguments)
    if args.new_tokens < 2:
        parser.error("-n must be at least 2: the first token belongs to the prefill.")
    return args


def find_checkpoint(args: argparse.Namespace) -> Checkpoint:
    """The requested checkpoint; a named shape is created if needed."""
    if args.checkpoint is not None:
        return trained_checkpoint(args.checkpoint)
    return random_checkpoint(args.shape, args.work)


def divergences(
    programs: Sequence[rounds.Program], reference: rounds.Program, prompts: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Mean KL from the reference over all positions of the prompts, by program.

    Args:
        programs: programs that return logits for every token.
        reference: program with the expected logits.
        prompts: token ids.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "logits.npy"
        with rounds.Worker(reference) as worker:
            expected = [worker.logits(prompt, path) for prompt in prompts]
        means = {}
        for peer in programs:
            with rounds.Worker(peer) as worker:
                compared = [
                    Predictions.of(rows[:-1], worker.logits(prompt, path)[:-1], prompt[1:]).kl
                    for prompt, rows in zip(prompts, expected, strict=True)
                ]
            means[peer.name] = float(np.concatenate(compared).mean())
    return means


def side_by_side(args: argparse.Namespace) -> None:
    """Prepare all peers, measure them alternately, print and write the result."""
    checkpoint = find_checkpoint(args)
    reference = None
    if args.kl:  # first, so that it is installed below
        reference = program(
            TRANSFORMERS, checkpoint, args.work, precision="fp32", threads=args.threads
        )
    named = chosen(args.peers, args.precision)
    peers = [peer for peer in named if not args.installed or is_installed(peer)]
    absent = [peer.name for peer in named if peer not in peers]
    requests = [
        {
            "prompt": make_prompt(checkpoint.path, tokens=length, new_tokens=args.new_tokens),
            "new_tokens": args.new_tokens,
        }
        for length in args.prompt_tokens
    ]
    programs = [
        program(peer, checkpoint, args.work, precision=args.precision, threads=args.threads)
        for peer in peers
    ]
    machine = report.machine()
    if machine["load_average"] > BUSY:
        say(f"load average {machine['load_average']:.1f}: this machine is busy")
    versions = all_versions(peers)
    runs, loaded = rounds.measure(programs, requests, rounds=args.rounds, starts=args.starts)
    setting = {
        "checkpoint": checkpoint.name,
        "precision": args.precision,
        "threads": args.threads,
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
        "rounds": args.rounds,
        "starts": args.starts,
        "absent": absent,
        "versions": versions,
        "machine": machine,
    }
    mean_kl = {}
    if reference is not None:
        with_logits = {peer.name for peer in peers if not peer.last_logits_only}
        compared = [running for running in programs if running.name in with_logits]
        mean_kl = divergences(compared, reference, [request["prompt"] for request in requests])
    results = report.summarize(runs, loaded, new_tokens=args.new_tokens, mean_kl=mean_kl)
    publish(setting, runs, results, out=args.out)


def publish(
    setting: Mapping[str, Any], runs: Sequence[rounds.Run], results: report.Results, *, out: Path
) -> None:
    """Print and write the tables, the runs and the chart."""
    text = report.markdown(results, setting)
    print(text)
    lengths = "-".join(map(str, setting["prompt_tokens"]))
    sizes = f"p{lengths}-n{setting['new_tokens']}-t{setting['threads']}"
    path = out / f"{setting['checkpoint']}-{setting['precision']}-{sizes}.json"
    document = {**setting, **report.document(results, runs)}
    report.write(path, document, text)
    draw_result(document, path.with_suffix(".png"))
    say(f"wrote {path}, .md and .png")


if __name__ == "__main__":
    sys.exit(exit_status(side_by_side, parse()))
