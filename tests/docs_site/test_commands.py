"""Pages of commands."""

import click

from docs_site.commands import command_page
from ortolan.cli.help import LongCommand, section


@click.command(cls=LongCommand)
@click.option("--size", default=4, help="Size; see --fast or `--slow X`.")
@section("Speed")("--fast", is_flag=True, help="Be fast.")
@click.argument("source")
def build(size: int, fast: bool, source: str) -> None:
    """Build SOURCE.

    \b
      build a
      build b
    """


def test_the_page_has_usage_verbatim_lines_and_options_of_every_section() -> None:
    page = command_page(build, click.Context(build, info_name="build"))
    assert page.startswith("# build\n\n````text\nbuild [OPTIONS] SOURCE\n````\n\nBuild SOURCE.\n")
    assert "````text\n  build a\n  build b\n````" in page
    assert "## Options\n\n````{option} --size INTEGER\n" in page
    assert "## Speed\n\n````{option} --fast\nBe fast.\n````" in page


def test_options_in_help_texts_become_code_once() -> None:
    page = command_page(build, click.Context(build, info_name="build"))
    assert "see `--fast` or `--slow X`." in page
