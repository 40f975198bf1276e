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
from ortolan.runtime.serving.encoder_service import EncoderServeOptions
from ortolan.runtime.serving.seq2seq_service import Seq2SeqServeOptions
from ortolan.runtime.serving.service import ServeOptions
from ortolan.server.errors import ApiError
from ortolan.server.settings import Settings

log = logging.getLogger("ortolan.server")

RELOAD_PAUSE_S = 30.0
"""Time after a reload in which a model that fails again is not loaded once more."""

_OPTIONS_OF_KIND = {
    "decoder": ServeOptions.__optional_keys__,
    "encoder": EncoderServeOptions.__optional_keys__,
    "encoder-decoder": Seq2SeqServeOptions.__optional_keys__,
}
"""Options of `serve` by kind of bundle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the name of a model stands for: a bundle, or one that an adapter changes.

    Attributes:
        bundle: its name, which is another one if there is an adapter.
    """

    name: str
    bundle: str
    path: Path
    manifest: Manifest
    adapter: Adapter | None = None


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

    def expect(self, *kinds: str, what: str) -> None:
        """Raise ApiError unless the bundle is of one of these kinds."""
        if self.model.kind not in kinds:
            raise ApiError(
                f"The model {self.name!r} cannot {what}: its bundle is of the kind "
                f"{self.model.kind!r}. Choose another from /v1/models.",
                code=BundleKindError.code,
                param="model",
            )


class Models:
    """Bundles by name. One loads at a time; unused ones are dropped when memory is short.

    A model that fails is loaded again by the next request, once no other call uses it.

    An adapter is a model, too: requests that name it use its bundle with the adapter.

    Attributes:
        entries: all bundles, then all adapters.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._mode = settings.serve.get("mode", "exact")
        self.entries = {
            name: Entry(name=name, bundle=name, path=path, manifest=open_bundle(path).manifest)
            for name, path in settings.bundles.items()
        }
        for name, path in settings.adapters.items():
            self.entries[name] = self._adapted_entry(name, path)
        self._loaded: dict[str, ServedModel] = {}  # least recently used first
        self._users: dict[str, int] = dict.fromkeys(settings.bundles, 0)
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._reloads_from = dict.fromkeys(settings.bundles, 0.0)
        self._lock = asyncio.Lock()  # one bundle at a time is loaded or dropped

    @property
    def loaded(self) -> tuple[ServedModel, ...]:
        """Bundles in memory."""
        return tuple(self._loaded.values())

    def entry(self, name: str | None) -> Entry:
        """The entry of a model; without a name, that of the only bundle."""
        names = ", ".join(self.entries)
        if name is None:
            if len(self._settings.bundles) > 1:
                raise ApiError(
                    f"Name a model. Models: {names}.", code="model-missing", param="model"
                )
            name = next(iter(self.entries))
        if name not in self.entries:
            raise ApiError(
                f"There is no model {name[:100]!r}. Models: {names}.",
                code="model_not_found",
                param="model",
                status=404,
            )
        return self.entries[name]

    def revive(self) -> list[str]:
        """Return the names of the loaded bundles that fail, and load those that no call uses again.

        If no bundle is loaded, load the first.
        """
        failing = [name for name, served in self._loaded.items() if served.service.is_failing]
        for name in failing if self._loaded else list(self.entries)[:1]:
            if name not in self._loaded or self._may_reload(name, users=0):
                self._begin_load(name)
        return failing

    async def load_first(self) -> None:
        """Load the first bundle."""
        async with self.use(next(iter(self.entries))):
            pass

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        """Load a bundle if necessary, and keep it loaded inside the `async with`."""
        entry = self.entry(name)
        self._users[entry.bundle] += 1
        try:
            served = await self._get(entry.bundle)
            if entry.adapter is not None:
                served = replace(
                    served,
                    name=entry.name,
                    options={"adapter": entry.name},
                    fingerprint=f"fp_{entry.adapter.identity[:16]}_{self._mode}",
                )
            yield served
        finally:
            self._users[entry.bundle] -= 1

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

    def _adapted_entry(self, name: str, path: Path) -> Entry:
        if name in self._settings.bundles:
            raise InputError(f"A bundle and an adapter are called {name}. Rename one of them.")
        adapter = open_adapter(path.absolute())
        for bundle in self._settings.bundles:
            with suppress(AdapterError):
                adapter.check_bundle(self.entries[bundle].manifest)
                return replace(self.entries[bundle], name=name, adapter=adapter)
        raise AdapterError(
            f"{path}: this adapter was made for none of the served bundles. Serve its bundle, too."
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
            n: e.adapter.path for n, e in self.entries.items() if e.bundle == name and e.adapter
        }
        load_options: Any = self._settings.load
        model: Any = load(self.entries[name].path, adapters=adapters, **load_options)
        options = self._settings.serve.items()
        allowed = _OPTIONS_OF_KIND[model.kind]
        service = model.serve(**{key: value for key, value in options if key in allowed})
        log.info("loaded %s in %.1f s", name, time.monotonic() - start)
        fingerprint = f"fp_{model.identity[:16]}_{self._mode}"
        return ServedModel(name=name, model=model, service=service, fingerprint=fingerprint)

    async def _drop(self, name: str) -> None:
        served = self._loaded.pop(name)
        await asyncio.to_thread(served.service.close, self._settings.shutdown_timeout_s)
        del served
        gc.collect()  # frees the sessions now; a model and its parts refer to each other
        log.info("dropped %s", name)
