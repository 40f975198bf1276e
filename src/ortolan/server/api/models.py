"""`/v1/models`: what the server serves."""

from typing import Any, Literal

import msgspec

from ortolan.server.call import Call


class ModelCard(msgspec.Struct, kw_only=True):
    """A model.

    Attributes:
        id: its name.
        parent: the bundle that an adapter changes; `None` for a bundle.
        created: Unix time of the export.
        loaded: whether it is in memory.
        kind: kind of the bundle.
        context_length: maximum number of tokens.
        precision: of the weights.
        quality: measured distance from the trained model; `None` if it was not measured.
        unverified: why the export could not replay its certificate; `None` if it did.
    """

    id: str
    created: int
    loaded: bool
    kind: str
    context_length: int
    precision: str
    quality: dict[str, Any] | None
    unverified: str | None
    parent: str | None = None
    object: Literal["model"] = "model"
    owned_by: str = "ortolan"


class ModelList(msgspec.Struct, kw_only=True):
    """All models."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


async def list_models(call: Call) -> ModelList:
    """List the models."""
    return ModelList(data=[_card(call, name) for name in call.models.entries])


async def get_model(call: Call) -> ModelCard:
    """Describe one model."""
    return _card(call, call.request.path_params["model"])


def _card(call: Call, name: str) -> ModelCard:
    entry = call.models.entry(name)
    manifest, adapter = entry.manifest, entry.adapter
    quality = (manifest if adapter is None else adapter.manifest).quality
    return ModelCard(
        id=name,
        created=int((entry.path / "manifest.json").stat().st_mtime),
        loaded=any(served.name == entry.bundle for served in call.models.loaded),
        kind=manifest.kind,
        context_length=manifest.context_length,
        precision=manifest.precision,
        quality=None if quality is None else msgspec.to_builtins(quality),
        unverified=manifest.unverified,
        parent=None if adapter is None else entry.bundle,
    )
