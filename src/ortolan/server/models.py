"""`Models`: the bundles of a server, loaded when they are needed."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ortolan.runtime import Manifest, load, open_bundle
from ortolan.runtime.bundle.adapter_folder import Adapter, open_adapter
from ortolan.runtime.errors import AdapterError, BundleKindError, InputError, MemoryPlanError
from ortolan.runtime.serving.service import ServeOptions
from ortolan.server.errors import ApiError

log = logging.getLogger("ortolan.server")

RELOAD_PAUSE_S = 30.0
"""Time after a reload in which a model that fails again is not loaded once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A loaded bundle and its service.

    Attributes:
        name: that requests use.
        fingerprint: changes with the bundle and with the mode of the service.
        options: of every request: the adapter, if the name is that of one.
    """

    name: str
    model: Any
    service: Any
    fingerprint: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Kind of the bundle."""
        kind: str = self.model.kind
        return kind

    def expect(self, *kinds: str, what: str) -> None:
        """Raise ApiError unless the bundle is of one of these kinds."""
        if self.kind not in kinds:
            raise ApiError(
                f"The model {self.name!r} cannot {what}: its bundle is of the kind "
                f"{self.kind!r}. Choose another from /v1/models.",
                code=BundleKindError.code,
                param="model",
            )


class Models:
    """Bundles by name. One loads at a time; unused ones are dropped when memory is short.

    A model that fails is loaded again by the next request, once no other call uses it.

    An adapter is a model, too: requests that name it use its bundle with the adapter.
    """

    def __init__(
        self,
        bundles: Mapping[str, Path],
        *,
        adapters: Mapping[str, Path],
        load_options: Mapping[str, Any],
        serve_options: Mapping[str, Any],
        shutdown_timeout_s: float,
    ) -> None:
        self._bundles = dict(bundles)
        self._manifests = {name: open_bundle(path).manifest for name, path in bundles.items()}
        self._adapters = {name: self._with_base(name, path) for name, path in adapters.items()}
        self._load_options = dict(load_options)
        self._serve_options = dict(serve_options)
        self._shutdown_timeout_s = shutdown_timeout_s
        self._loaded: dict[str, ServedModel] = {}  # least recently used first
        self._users: dict[str, int] = dict.fromkeys(bundles, 0)
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._reloads_from = dict.fromkeys(bundles, 0.0)
        self._lock = asyncio.Lock()  # one bundle at a time is loaded or dropped

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all bundles and adapters."""
        return (*self._bundles, *self._adapters)

    @property
    def loaded(self) -> tuple[ServedModel, ...]:
        """Bundles in memory."""
        return tuple(self._loaded.values())

    def revive(self) -> list[str]:
        """Return the names of the loaded bundles that fail, and load those that no call uses again.

        If no bundle is loaded, load the first.
        """
        failing = [name for name, served in self._loaded.items() if served.service.is_failing]
        for name in failing if self._loaded else self.names[:1]:
            if name not in self._loaded or self._may_reload(name, users=0):
                self._begin_load(name)
        return failing

    def bundle(self, name: str) -> str:
        """Name of the bundle of a model: its own, or that of the bundle that an adapter changes."""
        if name in self._adapters:
            return self._adapters[name][0]
        if name not in self._bundles:
            raise ApiError(
                f"There is no model {name[:100]!r}. Models: {', '.join(self.names)}.",
                code="model_not_found",
                param="model",
                status=404,
            )
        return name

    def adapter(self, name: str) -> Adapter | None:
        """The adapter of this name; `None` for a bundle."""
        return self._adapters[name][1] if name in self._adapters else None

    def is_loaded(self, name: str) -> bool:
        """Whether the bundle of a model is in memory."""
        return self.bundle(name) in self._loaded

    def created(self, name: str) -> int:
        """Unix time of a bundle's manifest."""
        return int((self._bundles[self.bundle(name)] / "manifest.json").stat().st_mtime)

    def manifest(self, name: str) -> Manifest:
        """Manifest of the bundle of a model."""
        return self._manifests[self.bundle(name)]

    async def load_first(self) -> None:
        """Load the first bundle."""
        async with self.use(self.names[0]):
            pass

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        """Load a bundle if necessary, and keep it loaded inside the `async with`."""
        chosen = self._named(name)
        bundle = self.bundle(chosen)
        self._users[bundle] += 1
        try:
            yield self._adapted(chosen, await self._get(bundle))
        finally:
            self._users[bundle] -= 1

    async def drop_unused(self) -> bool:
        """Drop the loaded models that no call uses. Returns whether there were any."""
        has_dropped = False
        async with self._lock:
            for name in list(self._loaded):
                if not self._users[name]:  # asked now: a call may have come during the last drop
                    await self._drop(name)
                    has_dropped = True
        return has_dropped

    async def close(self) -> None:
        """Finish or cancel what runs, and drop all models."""
        async with self._lock:
            for name in list(self._loaded):
                await self._drop(name)

    def _named(self, name: str | None) -> str:
        if name is None:
            if len(self._bundles) > 1:
                raise ApiError(
                    f"Name a model. Models: {', '.join(self.names)}.",
                    code="model-missing",
                    param="model",
                )
            return self.names[0]
        return name

    def _with_base(self, name: str, path: Path) -> tuple[str, Adapter]:
        """Open an adapter; return it with the name of its bundle."""
        if name in self._bundles:
            raise InputError(f"A bundle and an adapter are called {name}. Rename one of them.")
        adapter = open_adapter(path.absolute())
        for base, manifest in self._manifests.items():
            with suppress(AdapterError):
                adapter.check_bundle(manifest)
                return base, adapter
        raise AdapterError(
            f"{path}: this adapter was made for none of the served bundles. Serve its bundle, too."
        )

    def _adapted(self, name: str, served: ServedModel) -> ServedModel:
        """The model that a request named, given its bundle."""
        adapter = self.adapter(name)
        if adapter is None:
            return served
        mode = served.fingerprint.rpartition("_")[2]
        return replace(
            served,
            name=name,
            options={"adapter": name},
            fingerprint=f"fp_{adapter.identity[:16]}_{mode}",
        )

    async def _get(self, name: str) -> ServedModel:
        if name not in self._loaded or self._may_reload(name, users=1):
            # a client that leaves must not cancel it: its thread would go on, and the next
            # request would start a second load
            await asyncio.shield(self._begin_load(name))
        served = self._loaded[name] = self._loaded.pop(name)
        return served

    def _may_reload(self, name: str, *, users: int) -> bool:
        """Whether to load a bundle again: it fails, and no more than these calls use it."""
        return (
            self._loaded[name].service.is_failing
            and self._users[name] <= users
            and time.monotonic() >= self._reloads_from[name]
        )

    def _begin_load(self, name: str) -> "asyncio.Task[None]":
        if name not in self._loading:
            load = self._loading[name] = asyncio.create_task(self._load(name))
            load.add_done_callback(lambda done: self._end_of_load(name, done))
        return self._loading[name]

    def _end_of_load(self, name: str, done: "asyncio.Task[None]") -> None:
        del self._loading[name]
        if not done.cancelled() and done.exception() is not None:
            log.warning("%s did not load: %s", name, done.exception())

    async def _load(self, name: str) -> None:
        """Load a bundle; while memory is short, drop the least recently used one."""
        async with self._lock:
            if name in self._loaded:
                log.warning("%s fails, and is loaded again", name)
                self._reloads_from[name] = time.monotonic() + RELOAD_PAUSE_S
                await self._drop(name)
            while name not in self._loaded:
                try:
                    self._loaded[name] = await asyncio.to_thread(self._open, name)
                except MemoryPlanError:
                    unused = next((n for n in self._loaded if not self._users[n]), None)
                    if unused is None:
                        raise
                    await self._drop(unused)

    def _open(self, name: str) -> ServedModel:
        start = time.monotonic()
        adapters = {
            n: adapter.path for n, (base, adapter) in self._adapters.items() if base == name
        }
        model = load(self._bundles[name], adapters=adapters, **self._load_options)
        service = _service(model, self._serve_options)
        mode = self._serve_options.get("mode", "exact")
        log.info("loaded %s in %.1f s", name, time.monotonic() - start)
        return ServedModel(
            name=name,
            model=model,
            service=service,
            fingerprint=f"fp_{model.identity[:16]}_{mode}",
        )

    async def _drop(self, name: str) -> None:
        served = self._loaded.pop(name)
        await asyncio.to_thread(served.service.close, self._shutdown_timeout_s)
        del served
        gc.collect()  # frees the sessions now; a model and its parts refer to each other
        log.info("dropped %s", name)


_OPTIONS_OF_KIND = {
    "decoder": ServeOptions.__optional_keys__,
    "encoder": {"queue"},
    "encoder-decoder": {"slots", "queue"},
}
"""Options of `serve` by kind of bundle."""


def _service(model: Any, options: Mapping[str, Any]) -> Any:
    allowed = _OPTIONS_OF_KIND[model.kind]
    return model.serve(**{name: value for name, value in options.items() if name in allowed})
