"""A chat at the command line: its conversation, how it asks, and how an answer is printed."""

import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortolan.cli.chat.prompt_progress import PromptProgress
from ortolan.cli.chat.word_wrap import WordWrap
from ortolan.cli.streams import visible

if TYPE_CHECKING:
    from ortolan.runtime import Conversation, Decoder, Reply, Sampling

CUT = "the answer was cut here: by -n, or at the end of the context (/reset begins again)"


@dataclass(kw_only=True)
class ChatSession:
    """The state of a chat, which commands read and change.

    Attributes:
        model: answers.
        conversation: of the model.
        sampling: how the next answers are sampled.
        options: other options of each request, by name.
        is_terminal: whether questions are typed.
        reply: the last answer; `None` before the first.
    """

    model: "Decoder"
    conversation: "Conversation"
    sampling: "Sampling"
    options: dict[str, Any]
    is_terminal: bool
    reply: "Reply | None" = None

    def ask(self, question: str) -> None:
        """Print an answer as it is generated. Ctrl-C at a terminal ends it and keeps the text.

        Raises:
            OrtolanError: as for `Conversation.stream`; the messages are as they were.
        """
        paper = _paper()
        wraps = sys.stdout.isatty()

        def show(text: str) -> None:
            print(paper.feed(visible(text)) if wraps else text, end="", flush=True)

        thinks = False
        with _interrupts(enabled=self.is_terminal) as cancel:
            stream = self.conversation.stream(
                question, sampling=self.sampling, cancel=cancel, **self.options
            )
            with PromptProgress(lambda: stream.prompt_progress) as waiting:
                for piece in stream:
                    waiting.end()
                    if bool(piece.reasoning) != thinks:
                        thinks = not thinks
                        show("(thinking) " if thinks else "\n")
                    show(piece.reasoning or piece.content)
            self.reply = stream.reply
        reason = self.reply.completion.finish_reason
        print(paper.flush() + (" [stopped]" if reason == "cancelled" else ""), flush=True)
        if self.is_terminal and reason == "length":
            tell(CUT)


def tell(text: str) -> None:
    """Print a message that is not part of an answer."""
    if sys.stderr.isatty():
        paper = _paper()
        text = paper.feed(visible(text)) + paper.flush()
    print(text, file=sys.stderr)


def _paper() -> WordWrap:
    return WordWrap(lambda: shutil.get_terminal_size().columns)


@contextmanager
def _interrupts(*, enabled: bool) -> Iterator[threading.Event]:
    """An event that Ctrl-C sets. An exception could strike while the answer is being kept."""
    event = threading.Event()
    if not enabled:
        yield event
        return
    before = signal.signal(signal.SIGINT, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
