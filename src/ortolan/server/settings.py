"""`Settings`: what a server serves, to whom, and within which limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ortolan.runtime.loading import LoadOptions
from ortolan.runtime.serving.service import ServeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a server.

    Attributes:
        bundles: folders by model name. The first one is loaded at once, the others when a request
            names them.
        adapters: folders of LoRA adapters by model name, made for one of the bundles.
        keys: API keys; with none, requests need no key.
        hosts: names that the `Host` header may have, without port; with none, any. Protects a
            server on this machine from web pages that resolve their name to it.
        origins: web origins whose pages may call the server, such as `https://example.org`.
        root_path: path under which a proxy serves the application, such as `/llm`.
        max_body_bytes: maximum size of a request body.
        max_form_bytes: the same for a form with a file.
        body_timeout_s: maximum time for a body to arrive.
        request_timeout_s: maximum time for a request, waiting included.
        shutdown_timeout_s: at shutdown, seconds until running requests are cancelled.
        log_prompts: write bodies of requests and generated texts to the log.
        max_stored_responses: number of responses to keep for clients that ask for it.
        max_stored_bytes: maximum size of all of them; the least recently used are dropped.
        load: options of `ortolan.load`.
        serve: options of `Decoder.serve`.
    """

    bundles: Mapping[str, Path]
    adapters: Mapping[str, Path] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    origins: tuple[str, ...] = ()
    root_path: str = ""
    max_body_bytes: int = 4 << 20
    max_form_bytes: int = 25 << 20
    body_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    shutdown_timeout_s: float = 10.0
    log_prompts: bool = False
    max_stored_responses: int = 1024
    max_stored_bytes: int = 64 << 20
    load: LoadOptions = field(default_factory=LoadOptions)
    serve: ServeOptions = field(default_factory=ServeOptions)
