"""`ortolan publish BUNDLE... ORG/NAME`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortolan.cli import options
from ortolan.cli.output import print_json, print_table, size
from ortolan.cli.progress import progress

if TYPE_CHECKING:  # the runtime is imported when the command runs
    from ortolan.hub.name import Name
    from ortolan.hub.upload import Published
    from ortolan.runtime import Bundle

CARD = "README.md"


@click.command()
@click.argument("bundles", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.argument("repository", metavar="ORG/NAME")
@click.option("--private", is_flag=True, help="Make the repository private.")
@click.option("--revision", metavar="BRANCH", help="Branch to publish on. Default: main.")
@options.base_model
@options.license_id
@click.option("--card/--no-card", default=True, help=f"Write {CARD}, the model card. Default: yes.")
@options.as_json
def command(
    bundles: tuple[Path, ...],
    repository: str,
    private: bool,
    revision: str | None,
    base_model: str | None,
    license_id: str | None,
    card: bool,
    as_json: bool,
) -> None:
    """Publish BUNDLES in the repository ORG/NAME of the Hugging Face Hub.

    One bundle becomes the repository itself, ORG/NAME. Several of one checkpoint get a folder each,
    named by precision, such as ORG/NAME:int4, in place of what was published there. Every hash is
    checked first. Signatures go along; packed weights do not.

    Needs a token that may write: `hf auth login`, or HF_TOKEN.
    """
    from ortolan.hub.client import hide_bars
    from ortolan.hub.upload import upload
    from ortolan.runtime.inspect.card import model_card

    name = _name(repository, revision)
    with progress("publish", as_json=as_json) as steps:
        steps("check", 0, len(bundles))
        groups = [_checked(path) for path in bundles]
        opened = [group[0] for group in groups]
        folders = _folders(opened)
        contents = _contents(groups, folders)
        text = model_card(
            opened,
            folders=folders,
            base_model=base_model,
            license_id=license_id,
            repository=name.repository,
        )
        if card:
            contents[CARD] = text.encode()
        steps("upload", 0, 1)
        if as_json or not sys.stderr.isatty():
            hide_bars(name)
        else:
            steps.close()  # bars of the library take its place
        # a bundle at the root would hide those in folders
        done = upload(name, contents, folders={"", *folders}, is_private=private)
    _print(done, name, groups, folders, as_json=as_json)


def _print(
    done: Published,
    name: Name,
    groups: Sequence[Sequence[Bundle]],
    folders: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print where the bundles are, what they are called, and how to use the first."""
    from ortolan.runtime.inspect.card import use_of

    names = [f"{replace(name, part=folder or None)}" for folder in folders]
    sizes = [sum(file.size for own in group for file in own.manifest.files) for group in groups]
    if as_json:
        rows = [
            {"name": own, "precision": group[0].manifest.precision, "bytes": count}
            for own, group, count in zip(names, groups, sizes, strict=True)
        ]
        print_json({"url": done.url, "commit": done.commit, "bundles": rows})
        return
    use = use_of(groups[0][0].manifest, names[0]) or f"ortolan verify {names[0]}"
    is_custom = any(own.manifest.foreign_operators for own in groups[0])
    print_table(
        [
            ("published", done.url),
            *((own, size(count)) for own, count in zip(names, sizes, strict=True)),
            ("use", None if is_custom else use),
        ]
    )


def _name(repository: str, revision: str | None) -> Name:
    from ortolan.hub.errors import HubError
    from ortolan.hub.name import parsed

    name = parsed(repository if revision is None else f"{repository}@{revision}")
    if name is None or name.part is not None:
        raise HubError(
            f"Publish in a repository, as org/name, on one --revision (got {repository!r:.80})."
        )
    return name


def _checked(path: Path) -> list[Bundle]:
    """A bundle and those in it, with every hash checked."""
    from ortolan.runtime import open_bundle
    from ortolan.runtime.bundle.folder import open_parts

    bundle = open_bundle(path, full_check=True)
    group = [bundle, *open_parts(bundle, full_check=True).values()]
    custom = sorted({form for own in group for form in own.manifest.foreign_operators})
    if custom:
        click.echo(
            f"ortolan: warning: {path} uses custom operators ({', '.join(custom):.200}), which "
            "are not tested with hostile input. Others load it in a subprocess first.",
            err=True,
        )
    return group


def _folders(bundles: Sequence[Bundle]) -> list[str]:
    """Where each bundle goes in the repository."""
    from ortolan.runtime import InputError

    if len(bundles) == 1:
        return [""]
    folders = [f"{bundle.manifest.precision}" for bundle in bundles]
    for folder in folders:
        if folders.count(folder) > 1:
            raise InputError(
                f"Two of these bundles are {folder}, and a repository has one folder for each "
                "precision. Publish one of them in another repository."
            )
    return folders


def _contents(
    groups: Sequence[Sequence[Bundle]], folders: Sequence[str]
) -> dict[str, Path | bytes]:
    """Files by their path in the repository."""
    from ortolan.runtime.bundle.folder import SIGNATURE, files_of

    contents: dict[str, Path | bytes] = {}
    for group, folder in zip(groups, folders, strict=True):
        root = group[0].path
        signature = root / SIGNATURE
        paths = files_of(group)
        if signature.is_file() and not signature.is_symlink():
            paths.add(signature)
        for path in sorted(paths):
            contents[f"{folder}/{path.relative_to(root).as_posix()}".lstrip("/")] = path
    return contents
