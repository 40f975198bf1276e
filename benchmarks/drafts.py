"""Measure drafts by prompt lookup: a code edit, records as JSON, and prose.

    python benchmarks/drafts.py BUNDLE
    python benchmarks/drafts.py BUNDLE --rounds 5 --threads 2

BUNDLE is a chat model such as SmolLM2-135M-Instruct. Three ways alternate: without drafts, with
drafts that never propose a token (the same kernels as with those that do), and by prompt lookup.
Prints the median decoding speed relative to no drafts, and whether the tokens are the same. On a
busy machine, measure CPU time with --cpu-time --threads 1.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import ortolan
from script import add_timing, count, exit_status

CODE = '''\
def load_settings(path, defaults):
    """Read settings from a file, over defaults."""
    settings = dict(defaults)
    with open(path) as stream:
        for number, line in enumerate(stream, start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            if "=" not in line:
                raise ValueError(f"line {number}: expected name=value, got {line!r}")
            name, value = line.split("=", 1)
            settings[name.strip()] = value.strip()
    return settings


def save_settings(path, settings):
    """Write settings to a file, sorted by name."""
    with open(path, "w") as stream:
        for name in sorted(settings):
            stream.write(f"{name} = {settings[name]}\\n")
'''

RECORDS = [
    ("Ada Lovelace", "London", 1815), ("Alan Turing", "London", 1912),
    ("Grace Hopper", "New York", 1906), ("Emmy Noether", "Erlangen", 1882),
    ("Kurt Goedel", "Brno", 1906), ("Sofia Kovalevskaya", "Moscow", 1850),
]  # fmt: skip

TASKS = {
    "code edit": "Rename the variable `settings` to `options` in this code. "
    f"Repeat the whole code with the new name and nothing else.\n\n```python\n{CODE}```",
    "JSON": "Write these people as a JSON list of objects with the keys name, city and born.\n\n"
    + "\n".join(f"- {name}, born in {city} in {year}" for name, city, year in RECORDS),
    "prose": "Tell a story about a lighthouse keeper who finds a letter in a bottle.",
}


class Never:
    """Proposes nothing, to measure the cost of the kernels for drafts."""

    def begin(self, prompt: Sequence[int]) -> "Never":
        """Ignore the prompt."""
        return self

    def extend(self, tokens: Sequence[int]) -> None:
        """Ignore the tokens."""

    def propose(self, most: int) -> list[int]:
        """Propose nothing."""
        return []


WAYS = {"without": None, "never": Never(), "lookup": ortolan.PromptLookup()}


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure drafts by prompt lookup.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("-n", "--tokens", type=count, default=256, help="limit per answer")
    add_timing(parser, rounds=5)
    parser.add_argument("--cpu-time", action="store_true", help="measure CPU time")
    return exit_status(run, parser.parse_args())


def run(args: argparse.Namespace) -> None:
    """Print one row per task."""
    model = ortolan.load(args.bundle, ortolan.Decoder, threads=args.threads)
    print("| task | tokens | without, tokens/s | no proposals | lookup | accepted | same tokens |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for task, question in TASKS.items():
        print(measured(model, task, question, args), flush=True)


def measured(model: ortolan.Decoder, task: str, question: str, args: argparse.Namespace) -> str:
    """Answer one question in every way, alternating, and return a row of the table."""
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    answers: dict[str, ortolan.Completion] = {}
    for _ in range(1 + args.rounds):  # the first round warms up
        for way, draft in WAYS.items():
            messages, clock = [{"role": "user", "content": question}], [time.process_time()]
            for tokens in (1, args.tokens):
                reply = model.chat(messages, draft=draft, max_new_tokens=tokens)
                clock.append(time.process_time())
            answers[way] = done = reply.completion
            to_first, to_last = clock[1] - clock[0], clock[2] - clock[1]
            by_processor = (len(done.tokens) - 1) / (to_last - to_first)
            by_clock = done.timings.tokens_per_second
            speeds[way].append(by_processor if args.cpu_time else by_clock)
    speed = {way: statistics.median(values[1:]) for way, values in speeds.items()}
    lookup, never = answers["lookup"], answers["never"]
    timings = lookup.timings
    same = "as without proposals" if lookup.tokens == never.tokens else "DIFFERENT"
    if lookup.tokens == answers["without"].tokens:
        same += ", as without drafts"
    return (
        f"| {task} | {len(lookup.tokens)} | {speed['without']:.1f} "
        f"| {speed['never'] / speed['without']:.2f}x | {speed['lookup'] / speed['without']:.2f}x "
        f"| {timings.accepted_tokens} of {timings.drafted_tokens} | {same} |"
    )


if __name__ == "__main__":
    sys.exit(main())
