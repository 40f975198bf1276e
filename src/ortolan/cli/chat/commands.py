"""The commands of `ortolan chat`: a row each."""

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

import click

from ortolan.cli.chat.session import ChatSession, tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command.

    Attributes:
        run: carries out the command, with its argument.
        help: one line for `/help`.
        argument: placeholder of the argument: empty if there is none, in brackets if it is
            optional.
    """

    run: Callable[[ChatSession, str], None]
    help: str
    argument: str = ""


def obey(text: str, session: ChatSession) -> None:
    """Carry out a command.

    Raises:
        EOFError: the command leaves the chat.
        OrtolanError: the command is unknown or failed; the conversation is as it was.
    """
    from ortolan.runtime import InputError

    name, _, argument = text.strip().partition(" ")
    argument = argument.strip()
    command = COMMANDS.get(name)
    if command is None:
        close = get_close_matches(name, COMMANDS, n=1)
        advice = f"Did you mean {close[0]}?" if close else "Try /help."
        raise InputError(
            f"{name}: expected a command, got none. {advice} "
            "A question that begins with / needs a space before it."
        )
    if argument and not command.argument:
        raise InputError(f"{name}: expected no argument, got {argument!r}. Write {name}.")
    if command.argument and not argument and not command.argument.startswith("["):
        raise InputError(f"{name}: expected a file, got none. Write {name} {command.argument}.")
    command.run(session, argument)


def _help(session: ChatSession, _: str) -> None:
    rows = {f"{name} {row.argument}".rstrip(): row.help for name, row in COMMANDS.items()}
    width = max(map(len, rows))
    for usage, text in rows.items():
        tell(f"{usage:<{width}}  {text}")
    tell(NOTES)


def _save(session: ChatSession, file: str) -> None:
    session.conversation.save(os.path.expanduser(file))
    tell(f"{len(session.conversation.messages)} messages saved")


def _load(session: ChatSession, file: str) -> None:
    session.conversation.load(os.path.expanduser(file))
    session.reply = None
    tell(f"{len(session.conversation.messages)} messages loaded")


def _reset(session: ChatSession, _: str) -> None:
    session.conversation.reset()
    session.reply = None
    tell("a new conversation")


def _regenerate(session: ChatSession, _: str) -> None:
    from ortolan.runtime import InputError

    messages = session.conversation.messages
    if [message["role"] for message in messages[-2:]] != ["user", "assistant"]:
        raise InputError(
            "/regenerate: expected an answer to a question at the end of the conversation, got "
            "none. Ask something first."
        )
    sampling = session.sampling
    if sampling.temperature == 0 or sampling.seed is not None:
        tell("temperature 0 and a seed repeat an answer; /set changes them")
    session.conversation.messages = messages[:-2]
    try:
        session.ask(messages[-2]["content"])
    finally:
        if len(session.conversation.messages) < len(messages):
            session.conversation.messages = messages  # nothing came in its place


def _stats(session: ChatSession, _: str) -> None:
    from ortolan.runtime import InputError

    if session.reply is None:
        raise InputError("/stats: expected an answer, got none yet. Ask something first.")
    completion = session.reply.completion
    timings = completion.timings
    used = timings.prompt_tokens + timings.new_tokens
    tell(
        f"prompt       {timings.prompt_tokens:,} tokens, {timings.cached_tokens:,} of them known\n"
        f"first token  after {timings.time_to_first_token_s:.2f} s\n"
        f"answer       {timings.new_tokens:,} tokens, {timings.tokens_per_second:.1f} a second, "
        f"ended by {completion.finish_reason}\n"
        f"context      {used:,} of {session.model.manifest.context_length:,} tokens\n"
        f"messages     {len(session.conversation.messages)}"
    )


def _set(session: ChatSession, argument: str) -> None:
    from ortolan.runtime import InputError

    types = _settable()
    name, _, text = argument.partition(" ")
    name = name.replace("-", "_")
    if not argument:
        width = max(map(len, types))
        for each in types:
            tell(f"{each:<{width}}  {_shown(getattr(session.sampling, each))}")
        return
    if name not in types:
        raise InputError(f"/set: expected {', '.join(types)}, got {name}. Try /set.")
    if not text.strip():
        raise InputError(f"/set {name}: expected a value, got none. Write /set {name} VALUE.")
    try:
        value: Any = None
        if text.strip() != "none":
            value = types[name].convert(text.strip(), None, None)
    except click.BadParameter as error:
        raise InputError(f"/set {name}: {error.message} Change the value.") from error
    session.sampling = replace(session.sampling, **{name: value})
    tell(f"{name} {_shown(value)}")


def _settable() -> dict[str, Any]:
    """Types of the options of sampling, by name, as the command line has them."""
    from ortolan.runtime import Sampling

    names = [field.name for field in fields(Sampling)]
    params = click.get_current_context().command.params
    return {param.name: param.type for param in params if param.name in names}


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def _exit(session: ChatSession, _: str) -> None:
    raise EOFError


COMMANDS = {
    "/regenerate": Command(run=_regenerate, help="answer the last question once more"),
    "/stats": Command(run=_stats, help="figures of the last answer"),
    "/set": Command(
        run=_set, argument="[NAME VALUE]", help="change an option of sampling, or list them"
    ),
    "/save": Command(run=_save, argument="FILE", help="keep the conversation in a file"),
    "/load": Command(run=_load, argument="FILE", help="go on with a kept one"),
    "/reset": Command(run=_reset, help="begin again"),
    "/help": Command(run=_help, help="this list"),
    "/exit": Command(run=_exit, help="leave; so does Ctrl-D"),
}

NOTES = """\
A line that ends with \\ goes on in the next one; \"\"\" alone on a line begins and ends several.
A space before / makes it a question. Ctrl-C stops an answer and keeps what came."""
