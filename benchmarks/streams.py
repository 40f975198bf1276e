"""Many sequences at once: Ortolan's service compared with its peers.

    python benchmarks/streams.py --shape 1b
    python benchmarks/streams.py --shape 135m --streams 1 4 8 -p 128 -n 128 -r 5
    python benchmarks/streams.py --shape 135m --peers ortolan-exact,ortolan-fast

Submits several prompts of one length at once, with the same number of new tokens each: to Ortolan's
service in both modes, to several sequences in one context of llama.cpp, and to OpenVINO GenAI's
continuous batching, all with 4-bit weights. Every request runs twice, for all tokens and for the
first one only; the difference is the time of the decode steps. All stay loaded and alternate.
Prints tokens per second over all sequences, and the scaling relative to the fewest sequences;
writes the table to benchmarks/results/.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import report
import rounds
from catalog import LLAMA_CPP, OPENVINO, ORTOLAN, Peer
from make_checkpoint import SHAPES
from peers import BUSY, find_checkpoint, make_prompt
from prepare import Checkpoint, all_versions, program, say
from script import add_folders, add_timing, count, exit_status, names

PRECISION = "int4"

PEERS: Mapping[str, tuple[Peer, str, tuple[str, ...]]] = {
    "ortolan-exact": (ORTOLAN, "workers.ortolan_streams", ("mode=exact",)),
    "ortolan-fast": (ORTOLAN, "workers.ortolan_streams", ("mode=fast",)),
    "llama.cpp": (LLAMA_CPP, "workers.llama_streams", ()),
    "openvino-genai": (OPENVINO, "workers.openvino_streams", ()),
}
"""By name: peer, worker module, and worker options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One peer with one number of sequences.

    Attributes:
        prompt_per_s: prompt tokens per second over all prompts, median over rounds.
        step_per_s: new tokens per second over all sequences, after the prefill.
        scaling: `step_per_s` relative to the fewest sequences.
        times: speedup of the first peer's steps.
    """

    peer: str
    streams: int
    prompt_per_s: float
    step_per_s: float
    scaling: float
    times: str


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Compare many sequences at once.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, help="Hugging Face checkpoint folder")
    source.add_argument("--shape", choices=SHAPES, help="random weights of this shape")
    parser.add_argument("--peers", type=names, help="NAME,NAME: these only")
    parser.add_argument("--streams", type=count, nargs="+", default=[1, 4, 8])
    parser.add_argument("-p", "--prompt-tokens", type=count, default=128)
    parser.add_argument("-n", "--new-tokens", type=count, default=128)
    add_timing(parser, rounds=5)
    add_folders(parser)
    args = parser.parse_args(arguments)
    if args.new_tokens < 2:
        parser.error("-n must be at least 2: the first token belongs to the prefill.")
    for name in args.peers or ():
        if name not in PEERS:
            parser.error(f"--peers: unknown {name}; choose from {', '.join(PEERS)}.")
    return args


def make_programs(args: argparse.Namespace, checkpoint: Checkpoint) -> list[rounds.Program]:
    """Convert each model once, and return the programs that run it."""
    converted: dict[str, rounds.Program] = {}
    programs = []
    for name in args.peers or PEERS:
        peer, worker, options = PEERS[name]
        if peer.name not in converted:
            converted[peer.name] = program(
                peer, checkpoint, args.work, precision=PRECISION, threads=args.threads
            )
        options = (f"slots={max(args.streams)}", *options)
        programs.append(replace(converted[peer.name], name=name, module=worker, options=options))
    return programs


def make_prompts(args: argparse.Namespace, checkpoint: Path) -> list[list[int]]:
    """A different prompt for each sequence."""
    prompt = make_prompt(checkpoint, tokens=args.prompt_tokens, new_tokens=args.new_tokens)
    return [prompt[number:] + prompt[:number] for number in range(max(args.streams))]


def make_requests(
    prompts: Sequence[list[int]], streams: Sequence[int], new_tokens: int
) -> list[dict[str, Any]]:
    """For each number of sequences, a request for the first tokens and one for all."""
    return [
        {"streams": prompts[:texts], "new_tokens": tokens}
        for texts in streams
        for tokens in (1, new_tokens)
    ]


def summarize(turns: Sequence[rounds.Turn], *, new_tokens: int, prompt_tokens: int) -> list[Row]:
    """Rows of the table, by number of sequences."""
    peers = list(dict.fromkeys(turn.peer for turn in turns))
    texts = sorted({len(turn.request["streams"]) for turn in turns})
    numbers = sorted({turn.round for turn in turns})
    seconds = {
        (turn.peer, len(turn.request["streams"]), turn.request["new_tokens"], turn.round): (
            turn.answer["seconds"]
        )
        for turn in turns
    }
    steps = {
        (peer, many, number): many
        * (new_tokens - 1)
        / (seconds[peer, many, new_tokens, number] - seconds[peer, many, 1, number])
        for peer in peers
        for many in texts
        for number in numbers
    }
    rows = []
    for many in texts:
        for peer in peers:
            scaling = (steps[peer, many, n] / steps[peer, texts[0], n] for n in numbers)
            ratios = (steps[peers[0], many, n] / steps[peer, many, n] for n in numbers)
            rows.append(
                Row(
                    peer=peer,
                    streams=many,
                    prompt_per_s=median(
                        many * prompt_tokens / seconds[peer, many, 1, n] for n in numbers
                    ),
                    step_per_s=median(steps[peer, many, n] for n in numbers),
                    scaling=median(scaling),
                    times="" if peer == peers[0] else str(report.Ratio.of(ratios)),
                )
            )
    return rows


def markdown(rows: Sequence[Row], setting: Mapping[str, Any]) -> str:
    """The table as text."""
    machine, first = setting["machine"], rows[0].peer
    sizes = f"{setting['prompt_tokens']} + {setting['new_tokens']} tokens"
    return "\n\n".join(
        [
            f"# Many texts at once: {setting['checkpoint']}, {PRECISION}, {sizes} per sequence, "
            f"{setting['threads']} threads",
            f"{machine['processor']}, {machine['cores']} cores, {setting['rounds']} rounds. Tokens "
            "per second are over all sequences; `scaling` is relative to the fewest sequences, "
            f"`times` is the speedup of {first} in steps.",
            report.table(
                ["texts", "", "prompts/s", "steps/s", "scaling", f"{first}, times"],
                [
                    [
                        *(f"{row.streams}", row.peer, f"{row.prompt_per_s:.0f}"),
                        *(f"{row.step_per_s:.1f}", f"{row.scaling:.2f}", row.times),
                    ]
                    for row in rows
                ],
            ),
            report.with_versions(setting["versions"]),
        ]
    )


def side_by_side(args: argparse.Namespace) -> None:
    """Prepare all peers, run them alternately, print and write the result."""
    checkpoint = find_checkpoint(args)
    prompts = make_prompts(args, checkpoint.path)
    programs = make_programs(args, checkpoint)
    peers = {PEERS[p.name][0].name: PEERS[p.name][0] for p in programs}
    machine = report.machine()
    if machine["load_average"] > BUSY:
        say(f"load average {machine['load_average']:.1f}: this machine is busy")
    setting = {
        "checkpoint": checkpoint.name,
        "streams": args.streams,
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
        "threads": args.threads,
        "rounds": args.rounds,
        "versions": all_versions(peers.values()),
        "machine": machine,
    }
    requests = make_requests(prompts, args.streams, args.new_tokens)
    turns, _ = rounds.take_turns(programs, requests, rounds=args.rounds)
    rows = summarize(turns, new_tokens=args.new_tokens, prompt_tokens=args.prompt_tokens)
    text = markdown(rows, setting)
    print(text)
    path = args.out / f"streams-{checkpoint.name}-t{args.threads}.json"
    report.write(path, {**setting, "rows": [asdict(row) for row in rows]}, text)
    say(f"wrote {path} and .md")


if __name__ == "__main__":
    sys.exit(exit_status(side_by_side, parse()))
