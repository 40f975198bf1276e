"""The state of a chat on the command line: it asks the model and prints the answers."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ortolan import runtime
from ortolan.cli.chat.word_wrap import WordWrap
from ortolan.cli.progress import prompt_progress
from ortolan.cli.streams import visible


@dataclass(kw_only=True)
class ChatSession:
    """The state of a chat; commands read and change it."""

    model: runtime.Decoder
    conversation: runtime.Conversation
    sampling: runtime.Sampling
    options: dict[str, Any]
    is_terminal: bool
    reply: runtime.Reply | None = None

    def ask(self, question: str) -> None:
        """Print an answer as it is generated. Ctrl-C at a terminal stops it and keeps the text."""
        wrap = _word_wrap()
        is_wrapped = sys.stdout.isatty()

        def show(text: str) -> None:
            print(wrap.feed(visible(text)) if is_wrapped else text, end="", flush=True)

        is_reasoning = False
        with _interrupts(enabled=self.is_terminal) as cancel:
            stream = self.conversation.stream(
                question, sampling=self.sampling, cancel=cancel, **self.options
            )
            with prompt_progress(lambda: stream.prompt_progress) as end_progress:
                for piece in stream:
                    end_progress()
                    if bool(piece.reasoning) != is_reasoning:
                        is_reasoning = not is_reasoning
                        show("(thinking) " if is_reasoning else "\n")
                    show(piece.reasoning or piece.content)
            self.reply = stream.reply
        reason = self.reply.completion.finish_reason
        print(wrap.flush() + (" [stopped]" if reason == "cancelled" else ""), flush=True)
        if self.is_terminal and reason == "length":
            tell("The answer reached -n or the end of the context. /reset starts a new one.")


def tell(text: str) -> None:
    """Print a message that is not part of an answer."""
    if sys.stderr.isatty():
        wrap = _word_wrap()
        text = wrap.feed(visible(text)) + wrap.flush()
    print(text, file=sys.stderr)


def _word_wrap() -> WordWrap:
    return WordWrap(lambda: shutil.get_terminal_size().columns)


@contextmanager
def _interrupts(*, enabled: bool) -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; an exception could interrupt the saving of an answer."""
    event = threading.Event()
    if not enabled:
        yield event
        return
    before = signal.signal(signal.SIGINT, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
