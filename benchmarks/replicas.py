"""Tokens a second of `ortolan.ray` with one and two replicas, of one processor each.

    python benchmarks/replicas.py BUNDLE [--clients 8] [--rounds 4]

The deployments alternate in one cluster. Every client sends its requests one after the other, with
a beginning of its own that the prefix cache holds after the first one. Prints the share of prompt
tokens from a cache, too, and whether all texts are those of `Decoder.serve`.
"""

import argparse
import statistics
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray import serve

import ortolan
from gateway import make_prompts
from ortolan.ray import deployment
from ortolan.server import Settings
from script import count, exit_status

NEW_TOKENS = 64
PORT = 28400


def complete(prompt: str) -> dict[str, Any]:
    """The completion of a prompt by the deployment."""
    body = msgspec.json.encode(
        {"prompt": prompt, "max_tokens": NEW_TOKENS, "ignore_eos": True, "seed": 0}
    )
    url = f"http://127.0.0.1:{PORT}/v1/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = msgspec.json.decode(response.read())
    return answer


def compare(args: argparse.Namespace) -> None:
    """Print a row per number of replicas."""
    prompts = sorted(make_prompts(args.clients, 3))
    by_client = [prompts[at : at + 3] for at in range(0, len(prompts), 3)]
    with ortolan.load(args.bundle, ortolan.Decoder, threads=1).serve(slots=4) as service:
        tickets = [
            service.submit(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True) for prompt in prompts
        ]
        expected = [ticket.completion().text for ticket in tickets]
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    settings = Settings(bundles={"model": args.bundle.absolute()}, serve={"slots": 4})
    speeds: dict[int, list[float]] = {1: [], 2: []}
    cached: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(args.rounds):
        for replicas in speeds:
            serve.run(deployment(settings, replicas=replicas), logging_config={"log_level": 30})
            start = time.monotonic()
            with ThreadPoolExecutor(args.clients) as pool:
                done = pool.map(lambda own: [complete(prompt) for prompt in own], by_client)
                answers = [answer for own in done for answer in own]
            seconds = time.monotonic() - start
            if [answer["choices"][0]["text"] for answer in answers] != expected:
                raise RuntimeError(f"{replicas} replicas: the texts differ")
            usages = [answer["usage"] for answer in answers]
            speeds[replicas].append(NEW_TOKENS * len(answers) / seconds)
            hits = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
            cached[replicas].append(hits / sum(usage["prompt_tokens"] for usage in usages))
            serve.delete("default")
    print("| replicas | tokens/s | range | cached prompt tokens |")
    print("| ---: | ---: | ---: | ---: |")
    for replicas, values in speeds.items():
        hit = statistics.median(cached[replicas])
        print(
            f"| {replicas} | {statistics.median(values):.0f} "
            f"| {min(values):.0f}-{max(values):.0f} | {hit:.0%} |"
        )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--clients", type=count, default=8)
    parser.add_argument("-r", "--rounds", type=count, default=3)
    return exit_status(compare, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
