"""A conversation: its messages so far, and a file that keeps them."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import msgspec

from ortolan import files
from ortolan.runtime.arguments import checked_path
from ortolan.runtime.chat.messages import Message, checked_messages
from ortolan.runtime.errors import ChatError, InputError, StateFileError, shown
from ortolan.runtime.generation.drafts import Draft

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat_options import ChatOptions
    from ortolan.runtime.chat.reply import Reply, ReplyStream

__all__ = ["Answers", "Conversation"]

VERSION = 1

MAX_FILE_BYTES = 64 << 20
"""64 MiB: the text of the longest contexts takes 10."""


class Answers(Protocol):
    """What answers a conversation: a decoder, or a service."""

    def chat_stream(
        self,
        messages: list[Message],
        *,
        draft: Draft | None = None,
        **options: "Unpack[ChatOptions]",
    ) -> "ReplyStream":
        """Answer some messages, the last of which is a question."""

    def forget(self) -> None:
        """Give back the memory of what was computed for earlier messages."""


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

    With a `Decoder`, the states of the last prompt stay in memory until `reset`, `close` or the end
    of the conversation, for at most the context. A turn goes on from where its prompt parts from
    the last one, by token ids, so `messages` may be changed in any way; the last answer is computed
    once more, as a part of the prompt. Each answer is the same, to the bit, as without that, and as
    from a list of `generate` and from `serve` (docs/adr/0031). Where parts of prompts matter, as
    in int8 prompts and recurrent states, it goes on from a multiple of 128 tokens. The answers of a
    mixture of experts are those of a conversation alone: beside others they may differ.

    Args:
        model: answers.
        identity: of its bundle.
        system: the first message; `None` for that of the template.
        tools: what the model may call, as for `Decoder.chat`.
        variables: of the template, such as `enable_thinking`.

    Attributes:
        messages: so far, oldest first; change them as you like.
    """

    def __init__(
        self,
        model: Answers,
        identity: str,
        *,
        system: str | None = None,
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.messages: list[Message] = []
        self._model = model
        self._identity = identity
        self._standing: ChatOptions = {"tools": tools, "variables": variables}
        self._system = system
        self.reset()

    def reset(self) -> None:
        """Begin again, with the system message alone; what was computed is forgotten."""
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        self.messages = [*system]
        self.close()

    def close(self) -> None:
        """Give back the memory of what was computed; the messages stay.

        Closing twice is no error. A question after it computes the whole conversation once more.
        """
        self._model.forget()

    def ask(
        self, content: str, *, draft: Draft | None = None, **options: "Unpack[ChatOptions]"
    ) -> "Reply":
        """Say something, and take the answer as a whole.

        Args:
            content: the question.
            draft: as for `Decoder.generate`.
            **options: as for `Decoder.chat`. `tools` and `variables` take the place of those of the
                conversation for what follows, too.

        Raises:
            OrtolanError: as for `Decoder.chat`; the messages are as they were.
        """
        return self.stream(content, draft=draft, **options).finish()

    def stream(
        self, content: str, *, draft: Draft | None = None, **options: "Unpack[ChatOptions]"
    ) -> "ReplyStream":
        """Say something, and take the answer piece by piece.

        The messages grow when the stream has ended, or was closed.

        Args:
            content: the question.
            draft: as for `ask`.
            **options: as for `ask`.

        Raises:
            OrtolanError: as for `Decoder.chat_stream`; the messages are as they were.
        """
        return self._stream([{"role": "user", "content": content}], draft, options)

    def answer_tools(
        self,
        results: Mapping[str, Any],
        *,
        draft: Draft | None = None,
        **options: "Unpack[ChatOptions]",
    ) -> "Reply":
        """Hand in what the called tools gave, and take the answer as a whole.

            reply = conversation.ask("How warm is it in Paris?", tools=tools)
            while reply.tool_calls:
                results = {call.id: run(call) for call in reply.tool_calls}
                reply = conversation.answer_tools(results)

        Args:
            results: by the ids of the calls, one for each call of the last reply. A text is handed
                in as it is, anything else as JSON.
            draft: as for `ask`.
            **options: as for `ask`.

        Raises:
            InputError: the results are not those of the calls, or are no data.
            OrtolanError: as for `ask`; the messages are as they were.
        """
        return self.stream_tools(results, draft=draft, **options).finish()

    def stream_tools(
        self,
        results: Mapping[str, Any],
        *,
        draft: Draft | None = None,
        **options: "Unpack[ChatOptions]",
    ) -> "ReplyStream":
        """Hand in what the called tools gave, and take the answer piece by piece.

        Args:
            results: as for `answer_tools`.
            draft: as for `ask`.
            **options: as for `ask`.

        Raises:
            InputError: as for `answer_tools`.
            OrtolanError: as for `stream`; the messages are as they were.
        """
        last = self.messages[-1] if self.messages else {}
        return self._stream(_tool_messages(last.get("tool_calls") or (), results), draft, options)

    def _stream(
        self, new: list[Message], draft: Draft | None, options: "ChatOptions"
    ) -> "ReplyStream":
        asked: ChatOptions = {**self._standing, **options}
        stream = self._model.chat_stream([*self.messages, *new], draft=draft, **asked)

        def keep(reply: "Reply") -> None:
            if reply.content or reply.tool_calls or reply.completion.finish_reason != "cancelled":
                self.messages += [*new, reply.message]
                self._standing = {
                    "tools": asked.get("tools"),
                    "variables": asked.get("variables"),
                }

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


def _tool_messages(calls: Sequence[Any], results: Any) -> list[Message]:
    """A message for each call of a reply, in their order."""
    expected = [call.get("id", "") for call in calls]
    if not isinstance(results, Mapping) or sorted(map(str, results)) != sorted(expected):
        got = ", ".join(map(str, results)) if isinstance(results, Mapping) else shown(results)
        raise InputError(
            "answer_tools: expected a result for each call of the last reply "
            f"({', '.join(expected) or 'there is none'}), got {got or 'none'}."
        )
    return [
        {
            "role": "tool",
            "tool_call_id": each,
            "name": call["function"]["name"],
            "content": _as_text(results[each]),
        }
        for each, call in zip(expected, calls, strict=True)
    ]


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"answer_tools: expected a text or what JSON can hold, got {shown(result)}."
        ) from error
