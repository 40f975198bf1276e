"""Prefix-cache hits of several servers behind a gateway, with and without routing by prefix.

    pip install smg
    python benchmarks/gateway.py BUNDLE --router smg [--processes 2] [--prompts 8]

For each policy of the gateway, starts new servers and sends prompts with shared beginnings in
random order. Prints the share of prompt tokens that came from a cache, and the memory of all
servers: pages that processes share count each time in resident sizes (RSS), and once in
proportional sizes (PSS). Choose --cache-mb so that no server can keep all beginnings.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from script import count, exit_status, names

POLICIES = ("random", "round_robin", "cache_aware")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one policy.

    Attributes:
        cached: share of prompt tokens from a cache.
        seconds: median time of a request.
        rss: resident memory of all servers, in MiB.
        pss: the same with shared pages counted once.
    """

    cached: float
    seconds: float
    rss: float
    pss: float


@contextmanager
def started(command: Sequence[str], url: str) -> Iterator[int]:
    """Run a server until the end of the block; yield its process id when it has the model."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                if process.poll() is not None:
                    raise RuntimeError(f"{command[0]} ended: run {' '.join(command)}")
                with suppress(OSError):
                    if '"model"' in read(f"{url}/v1/models"):
                        break
                time.sleep(0.2)
            yield process.pid
        finally:
            process.terminate()
            process.wait()


def read(url: str, body: Any = None) -> str:
    """The response to a GET, or to a POST of JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        text: str = response.read().decode()
    return text


def metric(url: str, name: str) -> float:
    """The value of a metric of a server with one model."""
    (value,) = re.findall(rf"^ortolan_{name}\{{.*\}} (.*)$", read(f"{url}/metrics"), re.MULTILINE)
    return float(value)


def memory(pid: int, kind: str) -> float:
    """`Rss` or `Pss` of a process in MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (size,) = re.findall(rf"^{kind}: +(\d+) kB$", text, re.MULTILINE)
    return int(size) / 1024


def make_prompts(shared: int, rounds: int) -> list[str]:
    """Prompts with shared beginnings, in random order."""
    beginnings = [
        f"# Rules of shop {shop}\n"
        + "".join(f"# {rule}: shop {shop} never sells item {shop * rule}.\n" for rule in range(40))
        for shop in range(100, 100 + shared)
    ]
    prompts = [f"{text}# May I buy {number}?\n" for text in beginnings for number in range(rounds)]
    random.Random(0).shuffle(prompts)
    return prompts


def outcome(policy: str, args: argparse.Namespace) -> Outcome:
    """Ask all questions through a gateway with a policy."""
    ports = range(args.port, args.port + args.processes)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    gateway = f"http://127.0.0.1:{args.port + args.processes}"
    serve = [sys.executable, "-m", "ortolan", "serve", f"model={args.bundle}", "--threads", "1"]
    with ExitStack() as stack:
        pids = [
            stack.enter_context(
                started([*serve, "--port", str(port), "--cache-mb", str(args.cache_mb)], url)
            )
            for port, url in zip(ports, urls, strict=True)
        ]
        router = [args.router, "launch", "--worker-urls", *urls, "--policy", policy]
        router += ["--disable-tokenizer-autoload", "--host", "127.0.0.1"]
        router += ["--port", gateway.rpartition(":")[2]]
        router += ["--prometheus-port", str(args.port + args.processes + 1)]
        stack.enter_context(started(router, gateway))
        seconds = []
        for prompt in make_prompts(args.prompts, args.rounds):
            start = time.monotonic()
            body = {"model": "model", "prompt": prompt, "max_tokens": 4}
            read(f"{gateway}/v1/completions", body)
            seconds.append(time.monotonic() - start)
        cached = sum(metric(url, "cached_tokens_total") for url in urls)
        return Outcome(
            cached=cached / sum(metric(url, "prompt_tokens_total") for url in urls),
            seconds=statistics.median(seconds),
            rss=sum(memory(pid, "Rss") for pid in pids),
            pss=sum(memory(pid, "Pss") for pid in pids),
        )


def compare(args: argparse.Namespace) -> None:
    """Print a row per policy."""
    print("| policy | cached prompt tokens | median request, s | RSS, MiB | PSS, MiB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for policy in args.policies:
        done = outcome(policy, args)
        print(
            f"| {policy} | {done.cached:.0%} | {done.seconds:.2f} "
            f"| {done.rss:.0f} | {done.pss:.0f} |",
            flush=True,
        )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--router", default="smg", help="the program of the gateway")
    parser.add_argument("--policies", type=names, default=POLICIES)
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--prompts", type=count, default=8, help="shared beginnings")
    parser.add_argument("--cache-mb", type=count, default=18)
    parser.add_argument("--port", type=count, default=28300, help="the first of several ports")
    parser.add_argument("-r", "--rounds", type=count, default=6, help="prompts of each")
    return exit_status(compare, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
