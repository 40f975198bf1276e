"""Settings of Sphinx for the pages that `scripts/build_docs.py` writes."""

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import ortolan
from docs_site.api import documented, is_constructible
from docs_site.docstrings import converted
from docs_site.names import ROLE, NameRole, link_code, resolved

project = "Ortolan"
author = copyright = "The Ortolan contributors"
version = release = ortolan.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
highlight_language = "text"  # of indented blocks, most of which are pictures
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", ".*"),  # annotations name other projects and internals
    ("py:obj", r"typing\.Annotated.*"),  # bounds of numbers
    ("py:exc", r"concurrent\..*|CancelledError"),  # the standard library
]

myst_heading_anchors = 6

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
napoleon_use_rtype = False
add_module_names = False
python_use_unqualified_type_names = True
python_display_short_literal_types = True
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 88

html_theme = "pydata_sphinx_theme"
html_title = "Ortolan"
html_logo = html_favicon = str(Path(ortolan.__file__).parent / "server/page/files/icon.svg")
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options: dict[str, Any] = {
    "logo": {"text": "Ortolan"},
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}


def _convert(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    lines[:] = converted(lines, Path(app.srcdir) / "docs" / "adr")


def _signature(
    app: Sphinx,
    what: str,
    name: str,
    value: Any,
    options: Any,
    arguments: str | None,
    result: str | None,
) -> tuple[str, str | None] | None:
    """Leave out constructors that users do not call, and show defaults that Sphinx can parse."""
    if what == "class" and not is_constructible(value):
        return "", None
    return None if arguments is None else (arguments.replace("<factory>", "..."), result)


def _add_aliases(app: Sphinx, env: BuildEnvironment) -> None:
    """Register the other public names of every object and of its members."""
    domain = env.domains.python_domain
    for name in documented():
        for full, entry in list(domain.objects.items()):
            if full == name.name or full.startswith(f"{name.name}."):
                for alias in name.aliases:
                    domain.objects[alias + full.removeprefix(name.name)] = entry._replace(
                        aliased=True
                    )


def setup(app: Sphinx) -> None:
    """Connect the conversion of docstrings and the aliases."""
    app.add_role(ROLE, NameRole())
    app.connect("autodoc-process-docstring", _convert, priority=400)  # napoleon has 500
    app.connect("autodoc-process-signature", _signature)
    app.connect("doctree-read", link_code)
    app.connect("env-updated", _add_aliases)
    app.connect("missing-reference", resolved)
