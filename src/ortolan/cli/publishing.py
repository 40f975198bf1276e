"""Commands about bundles for others: `card`, `publish` and `sign`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortolan import files, runtime
from ortolan.cli import options
from ortolan.cli.extras import extra
from ortolan.cli.output import print_json, print_table, size
from ortolan.cli.progress import progress

if TYPE_CHECKING:  # the runtime is imported when the command runs
    from ortolan.hub.name import Name

CARD = "README.md"


@click.command()
@click.argument("bundles", type=options.path, nargs=-1, required=True)
@click.argument("repository", metavar="ORG/NAME")
@click.option("--private", is_flag=True, help="Make the repository private.")
@click.option("--revision", metavar="BRANCH", help="Branch to publish on. Default: main.")
@options.base_model
@options.license_id
@click.option("--card/--no-card", default=True, help=f"Write {CARD}, the model card. Default: yes.")
@options.as_json
def publish_command(
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
    from ortolan.hub.client import library
    from ortolan.hub.upload import upload
    from ortolan.runtime.inspect.card import model_card, use_of

    name = _name(repository, revision)
    with progress() as steps:
        steps("check", 0, len(bundles))
        groups = _by_folder([_checked(path) for path in bundles])
        first = next(iter(groups.values()))
        contents: dict[str, Path | bytes] = {
            file: path for at, group in groups.items() for file, path in _files(at, group)
        }
        text = model_card(
            [group[0] for group in groups.values()],
            folders=[*groups],
            base_model=base_model,
            license_id=license_id,
            repository=name.repository,
        )
        if card:
            contents[CARD] = text.encode()
        steps("upload", 0, 1)
        if as_json or not sys.stderr.isatty():
            library(name).utils.disable_progress_bars()
        else:
            steps.close()  # bars of the library take its place
        # a bundle at the root would hide those in folders
        done = upload(name, contents, folders={"", *groups}, is_private=private)
    rows = _rows(name, groups)
    if as_json:
        print_json({"url": done.url, "commit": done.commit, "bundles": rows})
        return
    called, is_custom = rows[0]["name"], any(own.manifest.foreign_operators for own in first)
    use = use_of(first[0].manifest, called) or f"ortolan verify {called}"
    print_table(
        [
            ("published", done.url),
            *((row["name"], size(row["bytes"])) for row in rows),
            ("use", None if is_custom else use),
        ]
    )


def _rows(name: Name, groups: Mapping[str, Sequence[runtime.Bundle]]) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{replace(name, part=folder or None)}",
            "precision": group[0].manifest.precision,
            "bytes": sum(file.size for own in group for file in own.manifest.files),
        }
        for folder, group in groups.items()
    ]


def _name(repository: str, revision: str | None) -> Name:
    from ortolan.hub import HubError
    from ortolan.hub.name import parsed

    name = parsed(repository if revision is None else f"{repository}@{revision}")
    if name is None or name.part is not None:
        raise HubError(
            f"Publish in a repository, as org/name, on one --revision (got {repository!r:.80})."
        )
    return name


def _checked(path: Path) -> list[runtime.Bundle]:
    """A bundle and those in it, with every hash checked."""
    from ortolan.runtime.bundle.folder import open_parts

    bundle = runtime.open_bundle(path, full_check=True)
    group = [bundle, *open_parts(bundle, full_check=True).values()]
    custom = sorted({form for own in group for form in own.manifest.foreign_operators})
    if custom:
        click.echo(
            f"ortolan: warning: {path} uses custom operators ({', '.join(custom):.200}), which "
            "are not tested with hostile input. Others load it in a subprocess first.",
            err=True,
        )
    return group


def _by_folder(groups: Sequence[list[runtime.Bundle]]) -> dict[str, list[runtime.Bundle]]:
    """Bundles and those in them, by their folders in the repository."""
    if len(groups) == 1:
        return {"": groups[0]}
    found: dict[str, list[runtime.Bundle]] = {}
    for group in groups:
        folder = f"{group[0].manifest.precision}"
        if folder in found:
            raise runtime.InputError(
                f"Two of these bundles are {folder}, and a repository has one folder for each "
                "precision. Publish one of them in another repository."
            )
        found[folder] = group
    return found


def _files(folder: str, group: Sequence[runtime.Bundle]) -> list[tuple[str, Path]]:
    """Files of a bundle and of those in it, by their paths in the repository."""
    from ortolan.runtime.bundle.folder import SIGNATURE, files_of

    root = group[0].path
    signature = root / SIGNATURE
    is_signed = signature.is_file() and not signature.is_symlink()
    paths = files_of(group) | ({signature} if is_signed else set())
    return [(f"{folder}/{path.relative_to(root).as_posix()}".lstrip("/"), path) for path in paths]


@click.command()
@click.argument("bundles", type=options.path, nargs=-1, required=True)
@options.base_model
@options.license_id
@click.option("--repo", metavar="REPO", help="Repository of the bundles, for its commands.")
@click.option("--out", type=options.path, help="File to write. Default: stdout.")
@click.option("--force", is_flag=True, help="Replace OUT.")
def card_command(
    bundles: tuple[Path, ...],
    base_model: str | None,
    license_id: str | None,
    repo: str | None,
    out: Path | None,
    force: bool,
) -> None:
    """Write the model card of a repository with BUNDLES for the Hugging Face Hub.

    A repository has the card as README.md, and a folder for each bundle, such as int4, so that
    REPO:int4 is the name of one. `ortolan publish` does all of that.
    """
    from ortolan.runtime.inspect.card import model_card

    opened = [runtime.open_bundle(bundle) for bundle in bundles]
    text = model_card(opened, base_model=base_model, license_id=license_id, repository=repo)
    if out is None:
        click.echo(text, nl=False)
        return
    if out.exists() and not force:
        raise runtime.InputError(f"{out} exists. Pass --force to replace it.")
    with files.replaced(out) as file:
        file.write(text.encode())


@click.command()
@options.bundle_folder
@click.option(
    "--key", type=options.path, required=True, help="Private key in PEM, of an elliptic curve."
)
@click.option("--password", envvar="ORTOLAN_KEY_PASSWORD", help="Password of the key.")
def sign_command(bundle: Path, key: Path, password: str | None) -> None:
    """Sign BUNDLE with a private key: `ortolan verify --key` checks it with the public one.

    The signature is written to model.sig in BUNDLE, in the format of OpenSSF Model Signing.
    """
    with extra("sign", command="sign"):
        from ortolan.signing import sign

    click.echo(sign(bundle, key, password=password))
