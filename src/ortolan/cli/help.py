"""Commands with many options: `--help` shows the main ones, `--help-all` shows every section."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class LongCommand(click.Command):
    """A command whose `--help` leaves out the options that `section` declares."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Add `--help-all` in front of `--help`."""
        *params, help_option = super().get_params(ctx)
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_all,
            help="Show every option and exit.",
        )
        return [*params, help_all, help_option]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the main options, then the sections if `--help-all` asks for them."""
        shows_all = ctx.meta.get(_SHOWS_ALL, False)
        for name, records in option_sections(self, ctx).items():
            if shows_all or name == "Options":
                with formatter.section(name):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say where the other options are."""
        if not ctx.meta.get(_SHOWS_ALL, False):
            formatter.write_paragraph()
            formatter.write_text(f"Run `{ctx.command_path} --help-all` for all options.")


def option_sections(command: click.Command, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
    """The options of a command and their help, by section; `Options` has the main ones."""
    sections: dict[str, list[tuple[str, str]]] = {"Options": []}
    for param in command.get_params(ctx):
        name = param.section if isinstance(param, _SectionOption) else "Options"
        record = param.get_help_record(ctx)
        if record is not None and not isinstance(param, click.Argument):
            sections.setdefault(name, []).append(record)
    return sections


def section(name: str) -> Callable[..., Decorator]:
    """Return a `click.option` whose options are shown in this section of `--help-all`."""
    return partial(click.option, cls=_SectionOption, section=name)


class _SectionOption(click.Option):
    """An option that `--help` leaves out."""

    def __init__(self, *args: Any, section: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


_SHOWS_ALL = "ortolan.help_all"


def _print_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
