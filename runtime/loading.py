"""`load`: from a bundle, in a folder or on the Hub, to a model that is ready to use."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from ortolan.hub.name import name_of
from ortolan.runtime import limits
from ortolan.runtime.arguments import checked_flag, refuse_unknown
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.fetched import fetched
from ortolan.runtime.bundle.folder import (
    open_bundle,
    open_part,
    retry_if_replaced,
)
from ortolan.runtime.bundle.manifest import wrong_kind
from ortolan.runtime.bundle.packed import find_packed
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.encoder import Encoder
from ortolan.runtime.engine.adapters import Adapters, open_adapters
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import check_load
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.errors import BundleKindError, InputError, shown
from ortolan.runtime.model import Model
from ortolan.runtime.seq2seq import Seq2Seq
from ortolan.runtime.verification.first_load import pass_first_load

_MODELS: dict[str, type[Model]] = {model.kind: model for model in (Decoder, Encoder, Seq2Seq)}

M = TypeVar("M", bound=Model)


class LoadOptions(TypedDict, total=False):
    """Options of `load`, all optional.

    Attributes:
        device: `auto`, the default, `cpu`, `cuda` or `cuda:N`.
        threads: number of threads within one operator. `None`, the default, uses the physical
            cores of this process, or 1 for a small encoder-decoder; its decoder always uses 1.
        weights: `map`, the default, maps the files. `copy` reads every file once, compares its
            hash, and does not need the folder afterwards: use it where others may change the
            folder. It needs the memory of the weights, two to three times as much while loading,
            and ignores what `ortolan pack` prepared.
        isolate: load a bundle in a subprocess first, with limits on memory and time, unless it was
            made, loaded or verified on this machine before. A crash or hang of onnxruntime becomes
            an error. It costs about one more load, once; `True` by default.
        full_check: hash all weights before use; `False` by default.
        adapters: folders made by `ortolan adapter`, by the names that requests choose them by; for
            a decoder on the CPU. Requests without an adapter get the same results, to the bit, as
            without this option. The last bits of those with one may depend on which others are
            loaded.
        revision: branch, tag or commit, for a bundle that is loaded by name.
    """

    device: str
    threads: int | None
    weights: Literal["map", "copy"]
    isolate: bool
    full_check: bool
    adapters: Mapping[str, str | os.PathLike[str]]
    revision: str | None


@overload
def load(path: str | os.PathLike[str], kind: type[M], **options: Unpack[LoadOptions]) -> M: ...


@overload
def load(path: str | os.PathLike[str], **options: Unpack[LoadOptions]) -> Any: ...


def load(
    path: str | os.PathLike[str],
    kind: type[Model] | None = None,
    **options: Unpack[LoadOptions],
) -> Any:
    """Load a bundle.

        model = load("bundle/")
        decoder = load("bundle/", Decoder, threads=4)  # type checkers know the result
        model = load("org/name")                       # on the Hugging Face Hub
        model = load("org/name:int4@v1")               # folder int4 of tag v1

    Weights are mapped, not copied. Replace the files of a bundle in use, but never change them in
    place: an overwritten file changes results, and a truncated one crashes the process. Weights
    prepared by `ortolan pack` are used if they fit; otherwise the logger `ortolan.runtime` warns
    and says why.

    A bundle on the Hub is fetched once, into the cache that `ortolan cache` manages, and every hash
    is checked before it is used. That needs the package `huggingface_hub` (extra `hub`), whose
    settings apply: with `HF_HUB_OFFLINE=1`, what is in the cache is loaded without a connection.

    Args:
        path: folder of the bundle, or its name on the Hub. A path that exists is always a path.
        kind: `Decoder`, `Seq2Seq` or `Encoder`, to reject other kinds; `None` accepts all.
        **options: see `LoadOptions`.

    Returns:
        A `Decoder`, a `Seq2Seq` or an `Encoder`.

    Raises:
        AdapterError: an adapter is missing, damaged, or made for another bundle.
        BundleError: the bundle is missing, damaged or unsafe.
        BundleKindError: the bundle is of another kind.
        CacheError: a fetched bundle cannot be kept.
        DeviceError: the device does not exist, or the bundle was made for another.
        FirstLoadError: with `isolate`, loading crashed or exceeded its limits.
        HubError: the Hub refuses or cannot be reached, or `huggingface_hub` is not installed.
        InputError: an argument is invalid.
        MemoryPlanError: there is not enough free memory.
        MissingExtraError: onnxruntime is not installed.
        RepositoryError: the repository holds no such bundle.
    """
    refuse_unknown("load", options, LoadOptions.__optional_keys__)
    # by identity: a caller's object may define == in any way
    if kind is not None and not any(kind is model for model in _MODELS.values()):
        raise InputError(f"kind must be Decoder, Seq2Seq or Encoder (got {shown(kind)}).")
    name = name_of(path, options.get("revision"))
    return _load(path if name is None else fetched(name), kind, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """How to load a bundle and the bundles in it."""

    device: str
    threads: int | None
    is_copied: bool
    isolate: bool
    full_check: bool

    def opened(self, open_: Callable[..., Bundle], *source: Any) -> Bundle:
        # a copy hashes every file anyway
        full_check = self.full_check and not self.is_copied
        return open_(*source, full_check=full_check)


@retry_if_replaced
def _load(path: str | os.PathLike[str], kind: type[Model] | None, options: LoadOptions) -> Model:
    """Load the bundle in a folder."""
    settings = _Settings(
        device=options.get("device", "auto"),
        threads=options.get("threads"),
        is_copied=_is_copied(options.get("weights", "map")),
        isolate=checked_flag("isolate", options.get("isolate", True)),
        full_check=checked_flag("full_check", options.get("full_check", False)),
    )
    bundle = settings.opened(open_bundle, path)
    model = kind or _MODELS[bundle.manifest.kind]
    if bundle.manifest.kind != model.kind:
        article = "a" if model is Decoder else "an"
        raise wrong_kind(
            bundle.manifest, what=f"load as {model.__name__}", expected=f"{article} {model.kind}"
        )
    if bundle.manifest.is_head:
        raise BundleKindError(
            f"{bundle.path} is the head of another bundle and generates nothing alone. Load the "
            "folder above it, and pass draft=MtpHead()."
        )
    adapters = open_adapters(options.get("adapters", {}), bundle)
    bundle, engine = _started(bundle, settings, adapters)
    if bundle.manifest.features is not None:
        media = settings.opened(open_part, bundle, "media")
        return Decoder(bundle, engine, Encoder(*_started(media, settings)))
    if bundle.manifest.texts is not None:
        texts = settings.opened(open_part, bundle, "texts")
        return Encoder(bundle, engine, Encoder(*_started(texts, settings)))
    return model(bundle, engine)


def _started(
    bundle: Bundle, settings: _Settings, adapters: Adapters | None = None
) -> tuple[Bundle, Engine]:
    """The bundle, which keeps its files if they are copied, and its engine."""
    device, threads, full_check = settings.device, settings.threads, settings.full_check
    has_head, packed = bundle.manifest.has_head, None
    if settings.is_copied:
        _check_tensors(bundle)
        bundle = bundle.keeping()
    else:
        packed = find_packed(bundle, onnxruntime=onnxruntime_version(), full_check=full_check)
    check_load(bundle, is_packed=packed is not None, adapter_bytes=adapters.size if adapters else 0)
    if settings.isolate:
        pass_first_load(bundle, device=device, packed=packed)
    if has_head and (settings.isolate or full_check):
        head = open_part(bundle, "head", full_check=full_check)
        if settings.isolate:
            pass_first_load(head, device=device)

    def head_engine() -> Engine:
        head = open_part(bundle, "head")
        if settings.is_copied:
            head = head.keeping()
        check_load(head, is_packed=False)
        return Engine(head, device=device, threads=threads)

    engine = Engine(
        bundle,
        device=device,
        threads=threads,
        packed=packed,
        adapters=adapters,
        open_head=head_engine,
    )
    if settings.is_copied and has_head:
        engine.head()  # while its files are there
    return bundle, engine


def _check_tensors(bundle: Bundle) -> None:
    """Reject tensors that are too large for onnxruntime to copy."""
    for tensor in (tensor for graph in bundle.graphs.values() for tensor in graph.external):
        if tensor.length > limits.MAX_COPIED_BYTES:
            raise InputError(
                f"weights='copy' is limited to tensors of {limits.MAX_COPIED_BYTES} bytes, but "
                f"{tensor.name!r} has {tensor.length}. Load it with weights='map', or export it "
                "at a lower precision."
            )


def _is_copied(weights: Any) -> bool:
    if isinstance(weights, str) and weights in ("map", "copy"):
        return weights == "copy"
    raise InputError(f"weights must be 'map' or 'copy' (got {shown(weights)}).")
