"""`ortolan serve BUNDLE...`."""

import logging
import os
import sys
from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.help import LongCommand, section
from ortolan.errors import OrtolanError

KEYS_VARIABLE = "ORTOLAN_API_KEY"

_service = section("Scheduling")
_network = section("Network")


class UnprotectedError(OrtolanError):
    """The server would be open to other machines without a key."""

    code = "unprotected"


@click.command(cls=LongCommand)
@click.argument("bundles", nargs=-1, required=True, metavar="[NAME=]BUNDLE...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8080, show_default=True, type=int, help="Port; 0 for a free one.")
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"API keys, one per line. Or set {KEYS_VARIABLE}.",
)
@click.option("--slots", default=8, show_default=True, help="Sequences to compute together.")
@options.device
@options.threads
@options.isolate
@_service("--queue", default=64, show_default=True, help="Requests that may wait.")
@_service("--chunk", type=int, help="Prompt tokens to compute between two decode steps.")
@_service("--fast", is_flag=True, help="Faster for few clients, but not exact.")
@_service("--cache-mb", default=256, show_default=True, help="Size of the prefix cache.")
@_service(
    "--cache-folder", type=click.Path(path_type=Path), help="Keep the prefix cache in this folder."
)
@_network("--insecure", is_flag=True, help="Allow other machines to call without a key.")
@_network("--allow-host", multiple=True, metavar="NAME", help="Answer for this host name.")
@_network("--allow-origin", multiple=True, metavar="URL", help="Allow pages of this web origin.")
@_network("--root-path", default="", help="Path under which a proxy serves the server.")
@_network("--request-timeout", default=600.0, show_default=True, help="Seconds per request.")
@_network("--shutdown-timeout", default=10.0, show_default=True, help="Seconds to finish at exit.")
def command(
    bundles: tuple[str, ...],
    host: str,
    port: int,
    key_file: Path | None,
    slots: int,
    queue: int,
    chunk: int | None,
    fast: bool,
    cache_mb: int,
    cache_folder: Path | None,
    device: str,
    threads: int | None,
    isolate: bool,
    insecure: bool,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    root_path: str,
    request_timeout: float,
    shutdown_timeout: float,
) -> None:
    """Serve bundles over HTTP to clients of OpenAI's API, and a chat page at /.

    The first bundle is loaded at once, the others when a request names them.
    """
    from ortolan.server import Settings
    from ortolan.server.run import run
    from ortolan.server.security import LOCAL_HOSTS

    keys = _keys(key_file)
    is_local = host in LOCAL_HOSTS
    if not (is_local or keys or insecure):
        raise UnprotectedError(
            f"--host {host} lets other machines call. Set a key with --key-file or "
            f"{KEYS_VARIABLE}, or accept everybody with --insecure."
        )
    hosts = frozenset({*LOCAL_HOSTS, *map(str.lower, allow_host)} if is_local else allow_host)
    settings = Settings(
        bundles=_named(bundles),
        keys=keys,
        hosts=hosts,
        origins=allow_origin,
        root_path=root_path.rstrip("/"),
        request_timeout_s=request_timeout,
        shutdown_timeout_s=shutdown_timeout,
        load={"device": device, "threads": threads, "isolate": isolate},
        serve={
            "slots": slots,
            "queue": queue,
            "chunk": chunk,
            "mode": "fast" if fast else "exact",
            "cache_bytes": cache_mb << 20,
            "cache_folder": cache_folder,
        },
    )
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.INFO)
    run(settings, host=host, port=port)


def _named(bundles: tuple[str, ...]) -> dict[str, Path]:
    """Folders by name: that before `=`, or the name of the folder."""
    named: dict[str, Path] = {}
    for text in bundles:
        name, equals, folder = text.partition("=")
        path = Path(folder if equals else text)
        name = name if equals else path.resolve().name
        if name in named:
            raise click.UsageError(f"Two bundles are called {name}. Write NAME=BUNDLE.")
        named[name] = path
    return named


def _keys(file: Path | None) -> frozenset[str]:
    lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    keys = {line.strip() for line in [*lines, os.environ.get(KEYS_VARIABLE, "")]}
    keys -= {""}
    if file is not None and not keys:
        raise click.UsageError(f"{file} holds no key.")
    return frozenset(keys)
