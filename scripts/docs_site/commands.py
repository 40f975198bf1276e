"""One page per command, with every option, from the parsers of the command line."""

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from docs_site.documents import toctree
from ortolan.cli import COMMANDS, cli
from ortolan.cli.help import option_sections

_VERBATIM = "\b"
_OPTION = re.compile(r"(?<![\w`-])--?[a-z][\w-]*(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)")


def write_commands(folder: Path) -> None:
    """Write the page of each command, and their index, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    top = click.Context(cli, info_name="ortolan", **cli.context_settings)
    for name in COMMANDS:
        command = cli.get_command(top, name)
        if command is None:
            raise LookupError(
                f"ortolan {name}: listed in COMMANDS, but the group does not have it."
            )
        context = click.Context(command, info_name=name, parent=top)
        (folder / f"{name}.md").write_text(command_page(command, context), encoding="utf-8")
    listed = [f"* [ortolan {name}]({name}.md): {text}" for name, text in COMMANDS.items()]
    index = command_page(cli, top).replace("# ortolan", "# Commands", 1)
    index += "\n## Commands\n\n" + "\n".join(listed) + "\n"
    (folder / "index.md").write_text(
        index + toctree(f"{name}.md" for name in COMMANDS), encoding="utf-8"
    )


def command_page(command: click.Command, context: click.Context) -> str:
    """The page of a command in MyST Markdown: usage, description and options by section."""
    usage = command.get_usage(context).removeprefix("Usage: ")
    parts = [f"# {context.command_path}", _fenced("text", usage), *_paragraphs(command.help or "")]
    parts.append(_fenced("{program}", "", context.command_path))
    for section, records in option_sections(command, context).items():
        parts.append(f"## {section}")
        parts += [_fenced("{option}", _as_code(text), names) for names, text in records]
    return "\n\n".join(parts) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; click prints some of them as they are."""
    for paragraph in cleandoc(text).split("\n\n"):
        is_verbatim = paragraph.startswith(_VERBATIM)
        yield _fenced("text", paragraph.strip("\b\n")) if is_verbatim else _as_code(paragraph)


def _as_code(text: str) -> str:
    """Put the options that a help text names in backticks."""
    return _OPTION.sub(r"`\g<0>`", text)


def _fenced(language: str, text: str, title: str = "") -> str:
    return f"````{language} {title}".rstrip() + f"\n{text}\n````"
