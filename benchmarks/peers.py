"""Ortolan and its peers on this machine: same checkpoint, same prompt, same number of threads.

    python benchmarks/peers.py --shape tiny --starts 8
    python benchmarks/peers.py --shape 1b --precision int4 -p 128 512
    python benchmarks/peers.py --checkpoint path/to/model -p 512 -n 128 -r 7
    python benchmarks/peers.py --shape 135m --peers ortolan,llama.cpp

Run it with the interpreter in which Ortolan is installed. Each peer gets an environment of its
own below .venv-peers/ and converts the checkpoint with its own tool; then all stay loaded and
take turns. Prints tables and writes them to benchmarks/results/, with all runs as JSON and the
speeds as a picture.

Who the peers are stands in catalog.py, how they are installed in prepare.py, how a measurement
is made in rounds.py, what is made of it in report.py. How well quantized weights still predict
is for quality.py.
"""

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chart
import report
import rounds
from catalog import PEERS, PRECISIONS, Peer
from make_checkpoint import SHAPES
from prepare import (
    RESULTS,
    ROOT,
    Checkpoint,
    all_versions,
    program,
    random_checkpoint,
    say,
    trained_checkpoint,
)
from script import count, exit_status, names

FIRST_ORDINARY_ID = 3  # below stand special tokens, which some peers treat apart
BUSY = 0.5  # load average above which times say little


def make_prompt(checkpoint: Path, *, tokens: int, new_tokens: int) -> list[int]:
    """Return ids that are the same for the same checkpoint and length.

    Raises:
        ValueError: prompt and answer together exceed the context of the model.
    """
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    context = config["max_position_embeddings"]
    if tokens + new_tokens > context:
        raise ValueError(
            f"{checkpoint}: expected at most {context} tokens in all, "
            f"got {tokens} + {new_tokens}. Lower -p or -n."
        )
    return random.Random(0).choices(range(FIRST_ORDINARY_ID, config["vocab_size"]), k=tokens)


def chosen(wanted: Sequence[str] | None, precision: str) -> tuple[Peer, ...]:
    """Return the peers to measure at a precision: all that have it, or those that are named.

    Raises:
        ValueError: a name is none of a peer that has this precision.
    """
    able = {peer.name: peer for peer in PEERS if precision in peer.convert}
    for name in wanted or ():
        if name not in able:
            raise ValueError(f"--peers: expected some of {', '.join(able)}, got {name}.")
    return tuple(able[name] for name in wanted or able)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure Ortolan and its peers side by side.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, help="folder with a Hugging Face checkpoint")
    source.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument(
        "--peers", type=names, help="NAME,NAME: these alone, the first compared with the others"
    )
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument(
        *("-p", "--prompt-tokens"), type=count, nargs="+", default=[128], help="one or more lengths"
    )
    parser.add_argument("-n", "--new-tokens", type=count, default=128)
    parser.add_argument("-r", "--rounds", type=count, default=7, help="of each start")
    parser.add_argument("--starts", type=count, default=1, help="how often to start all anew")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    if args.new_tokens < 2:
        parser.error("-n: expected at least 2, got 1. The first token belongs to the prefill.")
    return args


def find_checkpoint(args: argparse.Namespace) -> Checkpoint:
    """Return the requested checkpoint, made if it is a named shape."""
    if args.checkpoint is not None:
        return trained_checkpoint(args.checkpoint)
    return random_checkpoint(args.shape, args.work)


def side_by_side(args: argparse.Namespace) -> None:
    """Prepare every peer, measure them in turn, print and write the result."""
    peers = chosen(args.peers, args.precision)
    checkpoint = find_checkpoint(args)
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
        say(f"load average {machine['load_average']:.1f}: this machine does other work as well")
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
        "versions": versions,
        "machine": machine,
    }
    results = report.summarize(runs, loaded, new_tokens=args.new_tokens)
    publish(setting, runs, results, out=args.out)


def publish(
    setting: Mapping[str, Any], runs: Sequence[rounds.Run], results: report.Results, *, out: Path
) -> None:
    """Print the tables, and write them, the runs and the picture."""
    text = report.markdown(results, setting)
    print(text)
    lengths = "-".join(map(str, setting["prompt_tokens"]))
    sizes = f"p{lengths}-n{setting['new_tokens']}-t{setting['threads']}"
    path = out / f"{setting['checkpoint']}-{setting['precision']}-{sizes}.json"
    report.write(path, {**setting, **report.document(results, runs)})
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    title = f"{setting['checkpoint']}, {setting['precision']}, {setting['threads']} threads"
    first = results.footprints[0].peer
    chart.draw(results.speeds, path.with_suffix(".png"), title=title, highlighted=first)
    say(f"wrote {path} and, beside it, .md and .png")


if __name__ == "__main__":
    sys.exit(exit_status(side_by_side, parse()))
