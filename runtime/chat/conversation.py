"""A conversation: its messages, and how they are saved."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Unpack

import msgspec

from ortolan import files
from ortolan.runtime.arguments import checked_path
from ortolan.runtime.chat.chat_options import ChatOptions
from ortolan.runtime.chat.messages import Message, check_messages
from ortolan.runtime.chat.reply import Reply, ReplyStream
from ortolan.runtime.errors import ChatError, InputError, StateFileError, shown

MAX_FILE_BYTES = 64 << 20  # maximum size of a saved conversation; the longest contexts need 10 MiB


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    ortolan_conversation: Literal[1]
    bundle: str
    messages: list[dict[str, Any]]


class Conversation:
    """Messages that grow with each question and answer. Not thread-safe.

        conversation = model.conversation(system="Be brief.")
        print(conversation.ask("What is the capital of France?").content)
        conversation.save("france.json")

    A question is forgotten if its answer fails, or is closed before any of it came. An answer that
    is closed later keeps the text that came.

    A `Decoder` keeps the state of the last prompt in memory (at most one context) until `reset`,
    `close` or the end of the conversation. The next prompt is computed from the first token id that
    differs, so `messages` may be edited freely; the last answer is computed again as part of the
    prompt. Answers are bit-identical to those without reuse, to those of `generate` with a list,
    and to those of `serve` (docs/adr/0031); with a mixture of experts, only to those of another
    conversation. Where the split of a prompt into chunks affects results, as with int8 prefill and
    recurrent state, reuse starts at a multiple of 128 tokens.

    Attributes:
        messages: messages so far, oldest first; may be edited.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Message], ChatOptions], ReplyStream],
        identity: str,
        *,
        system: str | None = None,
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
        forget: Callable[[], None] | None = None,
    ) -> None:
        self.messages: list[Message] = []
        self._answer = answer
        self._forget = forget
        self._identity = identity
        self._standing: ChatOptions = {"tools": tools, "variables": variables}
        self._system = system
        self.reset()

    def reset(self) -> None:
        """Start again with the system message only."""
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        self.messages = [*system]
        self.close()

    def close(self) -> None:
        """Free the state in memory; messages stay.

        Closing twice is allowed. The next question computes the whole conversation again.
        """
        if self._forget is not None:
            self._forget()

    def ask(self, content: str, **options: Unpack[ChatOptions]) -> Reply:
        """Ask a question and return the complete answer.

        Args:
            content: the question.
            **options: see `Decoder.chat`. `tools` and `variables` also replace those of the
                conversation.

        Raises:
            OrtolanError: see `Decoder.chat`; the messages are unchanged.
        """
        return self.stream(content, **options).finish()

    def stream(self, content: str, **options: Unpack[ChatOptions]) -> ReplyStream:
        """Ask a question and return the answer piece by piece. Same arguments as `ask`.

        The messages grow when the stream ends or is closed.
        """
        return self._stream([{"role": "user", "content": content}], options)

    def answer_tools(self, results: Mapping[str, Any], **options: Unpack[ChatOptions]) -> Reply:
        """Pass the results of tool calls to the model and return its complete answer.

            reply = conversation.ask("How warm is it in Paris?", tools=tools)
            while reply.tool_calls:
                results = {call.id: run(call) for call in reply.tool_calls}
                reply = conversation.answer_tools(results)

        Args:
            results: one result per call of the last reply, by call id. Results other than text are
                passed as JSON.
            **options: see `ask`.

        Raises:
            InputError: the results do not match the calls, or are not JSON data.
            OrtolanError: see `ask`; the messages are unchanged.
        """
        return self.stream_tools(results, **options).finish()

    def stream_tools(
        self, results: Mapping[str, Any], **options: Unpack[ChatOptions]
    ) -> ReplyStream:
        """Same as `answer_tools`, but return the answer piece by piece."""
        last = self.messages[-1] if self.messages else {}
        return self._stream(_tool_messages(last.get("tool_calls") or (), results), options)

    def _stream(self, new: list[Message], options: ChatOptions) -> ReplyStream:
        merged: ChatOptions = {**self._standing, **options}
        stream = self._answer([*self.messages, *new], merged)

        def keep(reply: Reply) -> None:
            if reply.content or reply.tool_calls or reply.completion.finish_reason != "cancelled":
                self.messages += [*new, reply.message]
                self._standing = {
                    "tools": merged.get("tools"), "variables": merged.get("variables")
                }  # fmt: skip

        stream.at_end = keep
        return stream

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the messages to a JSON file, atomically.

        Raises:
            InputError: `path` is not a path.
            StateFileError: the file cannot be written.
        """
        place = checked_path("save", path)
        content = {"ortolan_conversation": 1, "bundle": self._identity}
        text = json.dumps({**content, "messages": self.messages}, ensure_ascii=False, indent=1)
        try:
            with files.replaced(place) as file:
                file.write(f"{text}\n".encode())
        except (OSError, ValueError) as error:  # ValueError: a path without a name, such as "/"
            raise StateFileError(f"{path}: cannot save the conversation: {error}.") from error

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replace the messages by those of a file.

        Raises:
            InputError: `path` is not a path.
            StateFileError: the file is missing, damaged, or of another bundle or version; the
                messages are unchanged.
        """
        place = checked_path("load", path)
        try:
            with place.open("rb") as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise StateFileError(f"{path}: cannot read the file: {error.strerror}.") from error
        if len(data) > MAX_FILE_BYTES:
            raise StateFileError(f"{path}: the file is larger than {MAX_FILE_BYTES} bytes.")
        try:
            file = msgspec.json.decode(data, type=_File)
            if file.messages:
                check_messages(file.messages)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ChatError) as error:
            raise StateFileError(
                f"{path}: this is not a conversation of this version: {str(error).rstrip('.')}. "
                "Save it again."
            ) from error
        if file.bundle != self._identity:
            raise StateFileError(
                f"{path}: this conversation was saved with another bundle. Load it with that one."
            )
        self.messages = [*file.messages]


def _tool_messages(calls: Sequence[Any], results: Any) -> list[Message]:
    """One message per call of a reply, in their order."""
    expected = [call.get("id", "") for call in calls]
    if not isinstance(results, Mapping) or sorted(map(str, results)) != sorted(expected):
        raise InputError(
            "answer_tools needs one result per call of the last reply "
            f"({', '.join(expected) or 'there is none'}), got {shown(results)}."
        )
    return [
        {
            "role": "tool",
            "tool_call_id": call_id,
            "name": call["function"]["name"],
            "content": _as_text(results[call_id]),
        }
        for call_id, call in zip(expected, calls, strict=True)
    ]


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"A result must be text or JSON data, got {shown(result)}.") from error
