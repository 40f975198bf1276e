"""The syntax of chat templates: Jinja's, with the settings and the tag of transformers."""

from functools import cache

from jinja2 import Environment, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser

__all__ = ["environment"]


class _Generation(Extension):
    """`{% generation %}`, which marks the answers for training."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Scope:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@cache
def environment() -> Environment:
    """What parses a template. Nothing is compiled or run in it."""
    return Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, LoopControlExtension],
    )
