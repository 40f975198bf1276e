"""A conversation: its messages so far, and a file that keeps them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Unpack

import msgspec

from ortolan import files
from ortolan.runtime.arguments import checked_path
from ortolan.runtime.chat.messages import Message, checked_messages
from ortolan.runtime.chat.reply import Reply, ReplyStream
from ortolan.runtime.errors import ChatError, StateFileError
from ortolan.runtime.generation.options import Options

__all__ = ["Conversation"]

VERSION = 1

MAX_FILE_BYTES = 64 << 20
"""64 MiB: the text of the longest contexts takes 10."""


class _Answers(Protocol):
    """What answers: a `Decoder`."""

    def chat_stream(
        self, messages: list[Message], *, variables: Any = None, **options: Unpack[Options]
    ) -> ReplyStream: ...


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    ortolan_conversation: int
    bundle: str
    messages: list[dict[str, Any]]


class Conversation:
    """Messages that grow by questions and their answers. Belongs to one thread at a time.

        conversation = model.conversation(system="Be brief.")
        print(conversation.ask("What is the capital of France?").content)
        conversation.save("france.json")

    A question whose answer failed is forgotten, and so is one whose answer was closed before it
    began; what an answer had when it was closed stays.

    Args:
        model: answers.
        identity: of its bundle.
        system: the first message; `None` for that of the template.
        variables: of the template, such as `enable_thinking`.

    Attributes:
        messages: so far, oldest first; change them as you like.
    """

    def __init__(
        self,
        model: _Answers,
        identity: str,
        *,
        system: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.messages: list[Message] = []
        self._model = model
        self._identity = identity
        self._variables = variables
        self._system = system
        self.reset()

    def reset(self) -> None:
        """Begin again, with the system message alone."""
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        self.messages = [*system]

    def ask(self, content: str, **options: Unpack[Options]) -> Reply:
        """Say something, and take the answer as a whole.

        Raises:
            OrtolanError: as for `Decoder.chat`; the messages are as they were.
        """
        stream = self.stream(content, **options)
        for _ in stream:
            pass
        return stream.reply

    def stream(self, content: str, **options: Unpack[Options]) -> ReplyStream:
        """Say something, and take the answer piece by piece.

        The messages grow when the stream has ended, or was closed.

        Raises:
            OrtolanError: as for `Decoder.chat_stream`; the messages are as they were.
        """
        question = {"role": "user", "content": content}
        messages = [*self.messages, question]
        stream = self._model.chat_stream(messages, variables=self._variables, **options)

        def keep(reply: Reply) -> None:
            if reply.content or reply.tool_calls or reply.completion.finish_reason != "cancelled":
                self.messages += [question, reply.message]

        stream.at_end = keep
        return stream

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the messages to a file, as JSON. It is whole, or as it was before.

        Raises:
            InputError: it is no path.
            StateFileError: the place cannot be written to.
        """
        place = checked_path("save", path)
        text = json.dumps(
            {
                "ortolan_conversation": VERSION,
                "bundle": self._identity,
                "messages": self.messages,
            },
            ensure_ascii=False,
            indent=1,
        )
        try:
            with files.replaced(place) as file:
                file.write(f"{text}\n".encode())
        except (OSError, ValueError) as error:  # ValueError: a path without a name, such as "/"
            raise StateFileError(
                f"{path}: the conversation cannot be saved there: {error}. Choose another file."
            ) from error

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take the messages of a file in place of these.

        Raises:
            InputError: it is no path; the messages are as they were.
            StateFileError: it is not there, damaged, of another bundle, or of another version; the
                messages are as they were.
        """
        file = _decoded(checked_path("load", path))
        if file.ortolan_conversation != VERSION:
            raise StateFileError(
                f"{path}: expected version {VERSION}, got {file.ortolan_conversation}. "
                "Save it again with this version."
            )
        if file.bundle != self._identity:
            raise StateFileError(
                f"{path}: expected a conversation with this bundle, got one with another. "
                "Load it with the bundle that it was saved with."
            )
        try:
            if file.messages:
                checked_messages(file.messages)
        except ChatError as error:
            raise StateFileError(f"{path}: {error} The file was changed: restore it.") from error
        self.messages = [*file.messages]


def _decoded(path: Path) -> _File:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise StateFileError(
            f"{path}: expected a readable file, got {error.strerror}. Check the path."
        ) from error
    if len(data) > MAX_FILE_BYTES:
        raise StateFileError(f"{path}: expected at most {MAX_FILE_BYTES} bytes, got more.")
    try:
        return msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateFileError(
            f"{path}: expected a saved conversation, got {error}. It is damaged, or another file."
        ) from error
