"""`ortolan serve MODEL...`."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ortolan.cli import options
from ortolan.cli.help import LongCommand, section
from ortolan.cli.progress import progress
from ortolan.errors import OrtolanError
from ortolan.runtime.bundle.kinds import KINDS

KEYS_VARIABLE = "ORTOLAN_API_KEY"

_scheduling = section("Scheduling")
_network = section("Network")
_operation = section("Operation")

_SECONDS = click.FloatRange(min=0, min_open=True)


class UnprotectedError(OrtolanError, code="unprotected"):
    """The server would be open to other machines without a key."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"--host {host} lets other machines call. Set a key with --key-file or "
            f"{KEYS_VARIABLE}, or accept everybody with --insecure."
        )


@click.command(cls=LongCommand)
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port to listen on; 0 for any free one.",
)
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"API keys, one per line. Or set {KEYS_VARIABLE}.",
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME=FOLDER",
    help="LoRA adapter of a bundle, as a further model; repeatable.",
)
@click.option("--slots", default=8, show_default=True, help="Sequences to compute together.")
@options.loading_in_section
@options.checkpoint
@_scheduling("--queue", default=64, show_default=True, help="Requests that may wait.")
@_scheduling("--chunk", type=int, help="Prompt tokens to compute between two decode steps.")
@_scheduling(
    "--fast",
    "mode",
    is_flag=True,
    callback=lambda _, __, is_fast: "fast" if is_fast else "exact",
    help="Faster for few clients, but not exact.",
)
@_scheduling(
    "--cache-mb",
    "cache_bytes",
    default=256,
    show_default=True,
    callback=lambda _, __, size: size << 20,
    help="Size of the prefix cache, in MiB.",
)
@_scheduling("--cache-folder", type=options.path, help="Keep the prefix cache in this folder.")
@_network("--insecure", is_flag=True, help="Allow other machines to call without a key.")
@_network(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    callback=lambda _, __, names: frozenset(map(str.lower, names)),
    help="Answer requests for this host name; repeatable.",
)
@_network(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="URL",
    callback=lambda _, __, urls: tuple(map(_origin, urls)),
    help="Let web pages of this origin call; repeatable.",
)
@_network(
    "--root-path",
    default="",
    metavar="PATH",
    callback=lambda _, __, path: _root_path(path),
    help="Path under which a proxy serves the server.",
)
@_operation(
    "--request-timeout",
    "request_timeout_s",
    default=600.0,
    show_default=True,
    type=_SECONDS,
    metavar="SECONDS",
    help="Time that a request may take, waiting included.",
)
@_operation(
    "--shutdown-timeout",
    "shutdown_timeout_s",
    default=10.0,
    show_default=True,
    type=_SECONDS,
    metavar="SECONDS",
    help="Time that running requests get to finish at exit.",
)
@_operation("--log-prompts", is_flag=True, help="Log request bodies and generated texts, too.")
def serve_command(
    models: tuple[str, ...],
    host: str,
    port: int,
    key_file: Path | None,
    adapters: tuple[str, ...],
    settings: Any,
    checkpoint: options.CheckpointChoice,
    insecure: bool,
    hosts: frozenset[str],
    **values: Any,
) -> None:
    """Serve models over HTTP to clients of OpenAI's API, and a chat page at /.

    MODEL is a bundle or a checkpoint: a folder, a .gguf file, or a name on the Hugging Face Hub. A
    checkpoint is exported once, and kept for the next start (`ortolan cache`). The first model is
    loaded at once, the others when a request names them.
    """
    from ortolan.cli.ready import ready, shown_name
    from ortolan.runtime.serving.service import ServeOptions
    from ortolan.server import Settings
    from ortolan.server.run import run
    from ortolan.server.security import LOCAL_HOSTS

    keys, is_local = _keys(key_file), host in LOCAL_HOSTS
    if not (is_local or keys or insecure):
        raise UnprotectedError(host)
    named = _named(models, "MODEL", shown_name)
    with progress() as steps:
        bundles = {
            name: ready(model, steps, tuple(KINDS), settings["device"], checkpoint)
            for name, model in named.items()
        }
    folders = _named(adapters, "FOLDER", lambda folder: Path(folder).resolve().name)
    serve: Any = {name: values.pop(name) for name in ServeOptions.__optional_keys__ & values.keys()}
    about = Settings(
        bundles=bundles,
        adapters={name: Path(folder) for name, folder in folders.items()},
        keys=keys,
        hosts=hosts | LOCAL_HOSTS if is_local or hosts else hosts,  # none for any
        load=settings,
        serve=serve,
        **values,
    )
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.INFO)
    run(about, host=host, port=port)


def _named(texts: tuple[str, ...], what: str, name_of: Callable[[str], str]) -> dict[str, str]:
    """Models or folders by name: that before `=`, or their own."""
    named: dict[str, str] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        path = rest if equals else text
        name = name if equals else name_of(path)
        if name in named:
            raise click.UsageError(f"Two models are called {name}. Write NAME={what}.")
        named[name] = path
    return named


def _keys(file: Path | None) -> frozenset[str]:
    try:
        text = "" if file is None else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file} must be UTF-8 text with a key per line.") from error
    lines = [*text.splitlines(), os.environ.get(KEYS_VARIABLE, "")]
    keys = frozenset(key for line in lines if (key := line.strip()))
    if file is not None and not text.strip():
        raise click.UsageError(f"{file} holds no key.")
    return keys


def _origin(url: str) -> str:
    """An origin as browsers send it."""
    scheme, colon, host = url.rstrip("/").partition("://")
    if scheme not in ("http", "https") or not colon or not host or set(host) & set("/?#*"):
        raise click.BadParameter(
            f"{url} must be like https://example.org or http://localhost:3000."
        )
    return f"{scheme}://{host.lower()}"


def _root_path(path: str) -> str:
    if path and not path.startswith("/"):
        raise click.BadParameter(f"{path} must start with /.")
    return path.rstrip("/")
