"""Names of models on the Hugging Face Hub.

org/name               the main branch of a repository
org/name:int4          a bundle in a folder, or a GGUF file of this type
org/name@revision      a branch, a tag or a commit
"""

import os
import re
from dataclasses import dataclass, replace

from ortolan.hub import HubError

_WORD = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_FORM = re.compile(
    rf"(?P<repository>{_WORD}/{_WORD})(?::(?P<part>{_WORD}))?(?:@(?P<revision>[\w][\w./-]{{0,254}}))?",
    re.ASCII,
)
"""Two dots or hyphens in a row are excluded below, as on the Hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A model on the Hub: a repository, the bundle or GGUF file in it, and a revision."""

    repository: str
    part: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        part = "" if self.part is None else f":{self.part}"
        return f"{self.repository}{part}{'' if self.revision is None else f'@{self.revision}'}"


def parsed(text: str) -> Name | None:
    """The name that a text spells, if it has that form."""
    match = _FORM.fullmatch(text)
    if match is None or ".." in text or "--" in match["repository"]:
        return None
    return Name(**match.groupdict())


def name_of(source: object, revision: str | None = None) -> Name | None:
    """The name that a source means, or `None` for a path.

    A path that exists is always a path, and so is everything that is not a string.
    """
    name = parsed(source) if isinstance(source, str) and not os.path.lexists(source) else None
    if revision is None:
        return name
    if not isinstance(revision, str):
        raise HubError(f"revision must be text (got {type(revision).__name__}).")
    if name is None:
        raise HubError(f"revision {revision} is for a name on the Hub, but {source} is a path.")
    if name.revision not in (None, revision):
        raise HubError(f"Two revisions: {name.revision} in {source}, and {revision}. Pass one.")
    if parsed(f"{name.repository}@{revision}") is None:
        raise HubError(f"revision must be a branch, a tag or a commit (got {revision!r:.80}).")
    return replace(name, revision=revision)
