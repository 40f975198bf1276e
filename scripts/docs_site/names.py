"""Links from names in text to what documents them, where something does."""

import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole

from ortolan.cli import COMMANDS

PACKAGES = ("ortolan", "ortolan.runtime")
"""Packages whose names docstrings use without the package."""

ROLE = "name"
"""Role of a Python name that may be documented."""

_PYTHON = re.compile(r"(ortolan(?:\.\w+)+)(?:\(\))?")
_COMMAND = re.compile(r"ortolan ([\w-]+)(?: .*)?")
_OPTIONAL = "may_be_missing"


class NameRole(XRefRole):
    """A reference to a Python object, or code if nothing documents it."""

    def process_link(
        self,
        env: BuildEnvironment,
        refnode: nodes.Element,
        has_explicit_title: bool,
        title: str,
        target: str,
    ) -> tuple[str, str]:
        """Look the name up as Python does, from the innermost scope outward."""
        scope = {key: env.ref_context.get(key) for key in ("py:module", "py:class")}
        python = {"refdomain": "py", "reftype": "obj", _OPTIONAL: True}
        refnode.attributes.update(python | scope)
        return title, target.removesuffix("()")


def resolved(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.Element | None:
    """Look an optional name up in the packages that users import; show it as code otherwise."""
    if not node.get(_OPTIONAL):
        return None
    domain = env.domains.python_domain
    for package in PACKAGES:
        full = f"{package}.{node['reftarget']}"
        if full in domain.objects:
            page = node["refdoc"]
            return domain.resolve_xref(env, page, app.builder, "obj", full, node, shown)
    return shown


def link_code(app: Sphinx, doctree: nodes.document) -> None:
    """Link code in text that is a qualified name or a command to its page."""
    here = app.env.docname
    for code in list(doctree.findall(nodes.literal)):
        if isinstance(code.parent, nodes.reference | pending_xref | nodes.title):
            continue
        link: nodes.Element
        if name := _PYTHON.fullmatch(code.astext()):
            python = {"refdomain": "py", "reftype": "obj", "reftarget": name[1], _OPTIONAL: True}
            link = pending_xref("", refdoc=here, refexplicit=True, **python)
        elif (command := _COMMAND.fullmatch(code.astext())) and command[1] in COMMANDS:
            page = f"reference/commands/{command[1]}"
            uri = app.builder.get_relative_uri(here, page)
            link = nodes.reference("", "", internal=True, refuri=uri)
        else:
            continue
        code.replace_self(link)
        link += code
