"""What the measuring scripts share: kinds of arguments, and how a failure ends."""

import argparse
import subprocess
from collections.abc import Callable

from prepare import say


def count(text: str) -> int:
    """Parse a number of tokens or rounds."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def names(text: str) -> tuple[str, ...]:
    """Parse the names of peers."""
    return tuple(text.split(","))


def exit_status(work: Callable[[argparse.Namespace], None], args: argparse.Namespace) -> int:
    """Do what the command line asks; 2, and one line that says why, if that cannot be done."""
    try:
        work(args)
    except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        say(f"error: {error}")
        return 2
    return 0
