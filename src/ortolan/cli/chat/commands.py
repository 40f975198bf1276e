"""The commands of `ortolan chat`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

import click

from ortolan import runtime
from ortolan.cli.chat.session import ChatSession, tell
from ortolan.cli.output import aligned


def run_command(text: str, session: ChatSession) -> None:
    """Run a command."""
    name, _, argument = text.strip().partition(" ")
    argument = argument.strip()
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1)
        advice = f"Did you mean {close[0]}?" if close else "Try /help."
        raise runtime.InputError(
            f"{name} is not a command. {advice} To ask a question that begins with /, put a space "
            "before it."
        )
    run, place, _ = COMMANDS[name]
    if argument and not place:
        raise runtime.InputError(f"{name} has no argument (got {argument!r}).")
    if place == "FILE" and not argument:
        raise runtime.InputError(f"{name} needs a file. Write {name} FILE.")
    run(session, argument)


def _help(session: ChatSession, _: str) -> None:
    rows = [(f"{name} {place}".rstrip(), text) for name, (_, place, text) in COMMANDS.items()]
    for line in aligned(rows):
        tell(line)
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
    tell("new conversation")


def _regenerate(session: ChatSession, _: str) -> None:
    messages = session.conversation.messages
    if [message["role"] for message in messages[-2:]] != ["user", "assistant"]:
        raise runtime.InputError("There is no answer to generate again. Ask something first.")
    sampling = session.sampling
    if sampling.temperature == 0 or sampling.seed is not None:
        tell("temperature 0 or a seed repeats the answer; change them with /set")
    session.conversation.messages = messages[:-2]
    try:
        session.ask(messages[-2]["content"])
    finally:
        if len(session.conversation.messages) < len(messages):
            session.conversation.messages = messages  # there is no new answer


def _stats(session: ChatSession, _: str) -> None:
    if session.reply is None:
        raise runtime.InputError("There is no answer yet. Ask something first.")
    completion = session.reply.completion
    timings = completion.timings
    used = timings.prompt_tokens + timings.new_tokens
    tell(
        f"prompt       {timings.prompt_tokens:,} tokens, {timings.cached_tokens:,} cached\n"
        f"first token  after {timings.time_to_first_token_s:.2f} s\n"
        f"answer       {timings.new_tokens:,} tokens, {timings.tokens_per_second:.1f} tok/s, "
        f"finish reason {completion.finish_reason}\n"
        f"context      {used:,} of {session.model.manifest.context_length:,} tokens\n"
        f"messages     {len(session.conversation.messages)}"
    )


def _set(session: ChatSession, argument: str) -> None:
    names = [field.name for field in fields(runtime.Sampling)]
    params = click.get_current_context().command.params  # the same types as on the command line
    types: dict[str, Any] = {param.name: param.type for param in params if param.name in names}
    name, _, text = argument.partition(" ")
    name, text = name.replace("-", "_"), text.strip()
    if not argument:
        for line in aligned((own, _shown(getattr(session.sampling, own))) for own in types):
            tell(line)
        return
    if name not in types:
        raise runtime.InputError(f"/set: expected {', '.join(types)}, got {name}.")
    if not text:
        raise runtime.InputError(f"/set {name} needs a value. Write /set {name} VALUE.")
    try:
        value: Any = None if text == "none" else types[name].convert(text, None, None)
    except click.BadParameter as error:
        raise runtime.InputError(f"/set {name}: {error.message}") from error
    session.sampling = replace(session.sampling, **{name: value})
    tell(f"{name} {_shown(value)}")


def _shown(value: object) -> str:
    return "none" if value is None else f"{value}"


def _exit(session: ChatSession, _: str) -> None:
    raise EOFError


COMMANDS: dict[str, tuple[Callable[[ChatSession, str], None], str, str]] = {
    "/regenerate": (_regenerate, "", "answer the last question again"),
    "/stats": (_stats, "", "show figures of the last answer"),
    "/set": (_set, "[NAME VALUE]", "change a sampling option, or list them"),
    "/save": (_save, "FILE", "save the conversation"),
    "/load": (_load, "FILE", "continue a saved conversation"),
    "/reset": (_reset, "", "start a new conversation"),
    "/help": (_help, "", "show this list"),
    "/exit": (_exit, "", "leave, like Ctrl-D"),
}
"""Functions of the commands, their arguments, and their lines of `/help`."""

NOTES = """\
End a line with \\ to continue it; put \"\"\" before and after a question of several lines.
Put a space before / to ask a question. Ctrl-C stops an answer and keeps the text so far."""
