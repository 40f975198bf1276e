"""Argument types and error handling that the scripts share."""

import argparse
import subprocess
from collections.abc import Callable
from pathlib import Path

from prepare import RESULTS, ROOT, say


def count(text: str) -> int:
    """Parse a number of tokens or rounds."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def names(text: str) -> tuple[str, ...]:
    """Parse the names of peers."""
    return tuple(text.split(","))


def add_timing(parser: argparse.ArgumentParser, *, rounds: int) -> None:
    """Add --threads and --rounds."""
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("-r", "--rounds", type=count, default=rounds)


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Add --work, for models and environments, and --out, for results."""
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers")
    parser.add_argument("--out", type=Path, default=RESULTS)


def exit_status(work: Callable[[argparse.Namespace], None], args: argparse.Namespace) -> int:
    """Run a script; print one line and return 2 if it fails."""
    try:
        work(args)
    except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        say(f"error: {error}")
        return 2
    return 0
