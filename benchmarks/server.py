"""The server over HTTP compared with the same service in process, and with other servers.

    python benchmarks/server.py build/py-int4 --streams 1 8
    python benchmarks/server.py build/smol-int8 --url llama.cpp=http://127.0.0.1:9001/v1

Every stream completes a prompt of its own and reads it token by token. All stay loaded and
alternate, in reverse order in every other round; a figure is the median of the rounds. `in process`
submits to a service of this process; `http` asks `ortolan serve`, in a process of its own, over a
new connection per request; `--url` adds servers that are running already.

Prints tokens per second over all streams, the time to the first token, the 99th percentile between
two tokens, and the processor time that a token costs the program that computes it, which other load
changes least.
"""

import argparse
import asyncio
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from ortolan.runtime import Decoder, Service, load
from script import exit_status

PAUSE_S = 0.3
"""The threads of onnxruntime keep spinning for a moment."""

Stream = Callable[[str, int], AsyncIterator[Any]]
"""Yields as often as text comes, for a prompt and a number of new tokens."""


@dataclass(frozen=True, slots=True)
class Run:
    """Streams that ran together.

    Attributes:
        tokens_per_s: over all streams.
        first_s: time to the first text, median over the streams.
        gaps_s: times between two pieces of text.
        cpu_s: processor time per token.
    """

    tokens_per_s: float
    first_s: float
    gaps_s: tuple[float, ...]
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Program:
    """A way to complete prompts.

    Attributes:
        stream: starts a stream.
        cpu_s: processor time of its process so far.
    """

    stream: Stream
    cpu_s: Callable[[], float]


def in_process(service: Service) -> Stream:
    """Streams of a service of this process."""

    async def stream(prompt: str, tokens: int) -> AsyncIterator[Any]:
        ticket = service.submit(prompt, max_new_tokens=tokens, ignore_eos=True)
        async for piece in ticket:
            yield piece.content

    return stream


def over_http(url: str, model: str | None) -> Stream:
    """Streams of an OpenAI-compatible server."""
    place = urlsplit(url)

    async def stream(prompt: str, tokens: int) -> AsyncIterator[Any]:
        fields = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
        body = json.dumps(
            {**fields, "model": model or "default", "stream": True, "ignore_eos": True}
        ).encode()
        head = (
            f"POST {place.path}/completions HTTP/1.1\r\nHost: {place.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            writer.write(head.encode() + body)
            status = await reader.readline()
            if b" 200 " not in status:
                raise RuntimeError(f"{url}: {status!r} {await reader.read()!r}")
            async for line in reader:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:]).get("choices")
                    if choices and choices[0]["text"]:
                        yield choices[0]["text"]
        finally:
            writer.close()

    return stream


async def run(program: Program, prompts: Sequence[str], tokens: int) -> Run:
    """Run one stream per prompt, all at once."""
    start, cpu = time.perf_counter(), program.cpu_s()

    async def times(prompt: str) -> list[float]:
        async with aclosing(program.stream(prompt, tokens)) as pieces:  # type: ignore[type-var]
            return [time.perf_counter() async for _ in pieces]

    found = await asyncio.gather(*map(times, prompts))
    seconds, cpu = time.perf_counter() - start, program.cpu_s() - cpu
    gaps = [b - a for one in found for a, b in pairwise(one)]
    first = median(one[0] - start for one in found)
    count = len(prompts) * tokens
    return Run(count / seconds, first, tuple(gaps), cpu / count)


def cpu_of(pid: int) -> float:
    """Processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(bundle: Path, slots: int, threads: int) -> Iterator[tuple[str, int]]:
    """Run `ortolan serve`; return its address and its process id."""
    command = [sys.executable, "-m", "ortolan", "serve", f"model={bundle}", "--port", "0"]
    options = ["--slots", f"{slots}", "--threads", f"{threads}", "--cache-mb", "0"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"listening on (http://\S+)", line):
                    break
            else:
                raise RuntimeError("ortolan serve did not start")
            threading.Thread(target=process.stderr.read, daemon=True).start()  # or the log blocks
            yield f"{found[1].rstrip('/')}/v1", process.pid
        finally:
            process.terminate()


async def rounds(
    programs: dict[str, Program], prompts: Callable[[int], list[str]], tokens: int, count: int
) -> dict[str, list[Run]]:
    """Alternate between the programs; the first round is a warm-up."""
    found: dict[str, list[Run]] = {name: [] for name in programs}
    for number in range(count + 1):
        for name in list(programs) if number % 2 else reversed(programs):
            await asyncio.sleep(PAUSE_S)
            result = await run(programs[name], prompts(number), tokens)
            if number:
                found[name].append(result)
    return found


def table(found: dict[str, list[Run]], base: str, streams: int) -> Iterator[str]:
    """Rows of a table, relative to one of the programs."""
    baseline = found[base]
    for name, runs in found.items():
        ratio = median(a.tokens_per_s / b.tokens_per_s for a, b in zip(runs, baseline, strict=True))
        extra = median(a.first_s - b.first_s for a, b in zip(runs, baseline, strict=True))
        gaps = sorted(gap for one in runs for gap in one.gaps_s)
        yield (
            f"| {streams} | {name} | {median(one.tokens_per_s for one in runs):.1f} | {ratio:.3f} "
            f"| {1e3 * median(one.first_s for one in runs):.1f} | {1e3 * extra:+.1f} "
            f"| {1e3 * gaps[len(gaps) * 99 // 100]:.1f} "
            f"| {1e3 * median(one.cpu_s for one in runs):.3f} |"
        )


def measure(options: argparse.Namespace) -> None:
    """Print a table for each number of streams."""
    slots = max(options.streams)
    with ExitStack() as stack:
        model = load(options.bundle, Decoder, threads=options.threads)
        service = stack.enter_context(model.serve(slots=slots, cache_bytes=0))
        url, pid = stack.enter_context(served(options.bundle, slots, options.threads))
        programs = {
            "in process": Program(in_process(service), time.process_time),
            "http": Program(over_http(url, "model"), lambda: cpu_of(pid)),
        }
        for text in options.url:
            name, _, address = text.partition("=")
            programs[name] = Program(over_http(address, None), lambda: math.nan)
        print("| streams | program | tokens/s | ratio | first ms | more ms | p99 gap ms | CPU ms |")
        print("|---|---|---|---|---|---|---|---|")
        for count in options.streams:

            def prompts(number: int, count: int = count) -> list[str]:
                return [options.prompt.replace("{}", f"a{number}_{n}") for n in range(count)]

            found = asyncio.run(rounds(programs, prompts, options.new, options.rounds))
            print("\n".join(table(found, "in process", count)), flush=True)


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("-p", "--prompt", default="def read_lines(path, {}):\n", help="with {}")
    parser.add_argument("-n", "--new", type=int, default=64, help="new tokens of each stream")
    parser.add_argument("-r", "--rounds", type=int, default=9)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--url", action="append", default=[], metavar="NAME=URL")
    return exit_status(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
