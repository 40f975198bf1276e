"""Progress of a long command or prompt on stderr: a bar on a terminal, lines or JSON elsewhere."""

import json
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import click

from ortolan.cli.output import size

LINE_S = 8.0  # seconds between two lines

# Seconds before the first line: with Python's start, about five after the command
FIRST_LINE_S = 3.0

DRAW_S = 0.5  # seconds between two drawings of a bar, and before the first one

# The same for a prompt; a line for a shorter one would only flicker
PROMPT_FIRST_S, PROMPT_DRAW_S = 0.3, 0.2

BAR_COLUMNS = 24

# Step that tells the expected seconds of the whole command; see `ortolan.export.progress`
ESTIMATE = "estimate"

# Share of the estimate that counts like time that has passed, so that one short step changes little
TRUST = 0.1

MOST_RISE = 1.25  # factor by which the time left may rise from one figure to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The work of a command at one moment, as `--json` reports it; `None` is unknown."""

    command: str
    step: str
    what: str | None  # part of the step in work, such as a weight
    fraction: float | None  # done of the step
    remaining_s: float | None  # of the command if that was estimated, else of the step
    elapsed_s: float
    expected_s: float | None  # of the whole command, estimated when it began
    memory_bytes: int | None  # resident, of this process


def progress(step: str = "starting") -> "Reporter":
    """A reporter of the running command that suits stderr."""
    context = click.get_current_context()
    command, as_json = context.info_name or "", context.params.get("as_json")
    if not as_json and sys.stderr.isatty():
        return Reporter(
            command, lambda s: draw(bar(s)), step=step, first=DRAW_S, seconds=DRAW_S, clear=draw
        )
    form = event if as_json else line
    return Reporter(
        command,
        lambda state: print(form(state), file=sys.stderr, flush=True),
        step=step,
        first=FIRST_LINE_S,
        seconds=LINE_S,
        announce=(lambda state: print(event(state), file=sys.stderr, flush=True))
        if as_json
        else None,
    )


@contextmanager
def prompt_progress(progress: Callable[[], tuple[int, int]]) -> Iterator[Callable[[], None]]:
    """Draw the tokens read of a prompt on a terminal until the yielded function is called."""
    if not sys.stderr.isatty():
        yield lambda: None
        return

    def show(state: State) -> None:
        done, total = progress()
        draw(f"reading the prompt: {done:,} of {total:,} tokens, {state.elapsed_s:.0f} s")

    with Reporter("prompt", show, first=PROMPT_FIRST_S, seconds=PROMPT_DRAW_S, clear=draw) as drawn:
        yield drawn.close


class Outlook:
    """The time that a command has left, from the estimates of its steps and how they went."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._total, self._began, self._shown = 0.0, 0.0, math.inf

    def expect(self, step: str, end_s: float, total_s: float, now: float) -> None:
        """Expect a step to end after some seconds; an empty one begins a new estimate."""
        if not step:
            self._seconds, self._total, self._began = {}, total_s, now
        else:
            self._seconds[step] = end_s - sum(self._seconds.values())

    def left_s(
        self, step: str, fraction: float | None, in_step_s: float, now: float
    ) -> float | None:
        """Seconds left, with a step in work; None for a step without an estimate."""
        if step not in self._seconds:
            return None
        names = list(self._seconds)
        own = self._seconds[step]
        if fraction is None:
            fraction = min(0.9, in_step_s / own) if own else 0.0
        done = sum(self._seconds[name] for name in names[: names.index(step)]) + fraction * own
        trusted = TRUST * self._total
        slowness = (now - self._began + trusted) / (done + trusted)
        self._shown = min(slowness * (self._total - done), MOST_RISE * self._shown)
        return self._shown


class Reporter:
    """Shows the current step every few seconds, from a thread, and clears it at the end.

    A step may report nothing for minutes; the thread shows it regardless. Shows nothing for a
    command that ends within `first` seconds.
    """

    def __init__(
        self,
        command: str,
        show: Callable[[State], None],
        *,
        step: str = "starting",
        first: float,
        seconds: float,
        clear: Callable[[], None] = lambda: None,
        announce: Callable[[State], None] | None = None,
    ) -> None:
        self._command, self._show, self._clear = command, show, clear
        self._announce = announce or (lambda state: self.note(line(state)))
        self._first, self._seconds = first, seconds
        self._lock = threading.Lock()
        self._step, self._what, self._done, self._total = step, "", 0, 0
        self._expected_s: float | None = None
        self._outlook = Outlook()
        self._began = time.monotonic()
        # Steps may take turns: a weight is calibrated, then written.
        self._begins: dict[str, float] = {}
        self._is_shown = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ortolan-progress", daemon=True)
        self._thread.start()

    def __call__(self, step: str, done: int, total: int, what: str = "") -> None:
        """Record that `done` of `total` units of a step are done, and `what` is in work."""
        with self._lock:
            now = time.monotonic()
            if step == ESTIMATE:
                self._expected_s = now - self._began + total
                self._outlook.expect(what if done else "", done, total, now)
            self._begins.setdefault(step, time.monotonic())
            self._step, self._what, self._done, self._total = step, what, done, total
        if step == ESTIMATE and what and not done:
            self._announce(self.state())

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self._clear()
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Stop the thread. Further calls have no effect."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            if self._is_shown:
                self._clear()

    def state(self) -> State:
        """The work of the command now."""
        from ortolan.runtime.machine.memory import used_memory

        with self._lock:
            step, what, done, total = self._step, self._what, self._done, self._total
            began = self._begins.get(step, self._began)
        now = time.monotonic()
        is_known = 0 < done < total and step != ESTIMATE
        fraction = done / total if is_known else None
        left = self._outlook.left_s(step, fraction, now - began, now)
        if left is None and is_known:
            left = (now - began) * (total - done) / done
        return State(
            command=self._command,
            step=step,
            what=what or None,
            fraction=fraction,
            remaining_s=left,
            elapsed_s=now - self._began,
            expected_s=self._expected_s,
            memory_bytes=used_memory(),
        )

    def _run(self) -> None:
        wait_s = self._first
        while not self._ended.wait(wait_s):
            self._is_shown = True
            self._show(self.state())
            wait_s = self._seconds


def line(state: State) -> str:
    """Describe the state in one line.

    export: calibrate, 25%, about 90 s left, 30 s of about 3 min, 1.2 GB, blocks.0.feed_forward.up
    """
    if state.step == ESTIMATE:
        return f"{state.command}: {state.what}"
    parts = [f"{state.command}: {state.step}"]
    if state.fraction is not None:
        parts.append(f"{state.fraction:.0%}")
    if state.remaining_s is not None:
        of_step = "" if state.expected_s else " of this step"
        parts.append(f"about {duration(state.remaining_s)} left{of_step}")
    parts.append(_elapsed(state, so_far=" so far"))
    return ", ".join(filter(None, (*parts, _memory(state), state.what)))


def bar(state: State) -> str:
    """`calibrate   ######------------------  25%  30 s, 90 s left, 1.2 GB  blocks.0.up`."""
    drawn = left = None
    if state.fraction is not None:
        full = int(state.fraction * BAR_COLUMNS)
        drawn = f"{'#' * full}{'-' * (BAR_COLUMNS - full)} {state.fraction:4.0%}"
    if state.remaining_s is not None:
        left = f"{duration(state.remaining_s)} left"
    figures = ", ".join(filter(None, (_elapsed(state), left, _memory(state))))
    return "  ".join(filter(None, (f"{state.step:<11}", drawn, figures, state.what)))


def event(state: State) -> str:
    """A JSON object."""
    fields = asdict(state)
    digits = {"fraction": 4, "remaining_s": 1, "elapsed_s": 1, "expected_s": 1}
    for name, count in digits.items():
        fields[name] = None if fields[name] is None else round(fields[name], count)
    return json.dumps({"event": "progress", **fields})


def _elapsed(state: State, so_far: str = "") -> str:
    """`30 s of about 3 min`, until the estimate has passed."""
    elapsed = duration(state.elapsed_s)
    if state.expected_s is None or state.elapsed_s > state.expected_s:
        return elapsed + so_far
    return f"{elapsed} of about {duration(state.expected_s)}"


def _memory(state: State) -> str | None:
    return size(state.memory_bytes) if state.memory_bytes else None


def draw(text: str = "") -> None:
    """Replace the line of the terminal, which may have echoed a key after it."""
    # a full line would move to the next row
    columns = shutil.get_terminal_size().columns - 1
    sys.stderr.write("\r" + text[:columns].ljust(columns) + "\r")
    sys.stderr.flush()


def duration(seconds: float) -> str:
    """Seconds for a person: `90 s`, `5 min`."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
