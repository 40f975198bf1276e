"""All work of Ortolan that writes permanent files, and checks of the result."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.cli.test_sign import write_keys
from tests.export import tiny_models
from tests.modeling.training.recipes import LANGUAGE_MODEL, write_recipe
from tests.runtime import packed_bundles, tiny_adapters, tiny_bundle, tiny_decoder
from tests.runtime.slot_states import KEY, SUM, filled
from tokenizers import Tokenizer

import ortolan
from ortolan import files, staging
from ortolan.cli.chat.history import add_to_history, read_history
from ortolan.export.adapter import staged_adapter, write_adapter
from ortolan.export.output import staged_bundle, write_manifest
from ortolan.modeling import CheckpointError, DecoderModel, load, save
from ortolan.modeling.training import trainer
from ortolan.runtime import AdapterError, BundleNotFoundError, StateFileError, open_bundle
from ortolan.runtime.bundle.adapter_folder import BLOB, open_adapter
from ortolan.runtime.bundle.packed import find_packed
from ortolan.runtime.chat.conversation import Conversation
from ortolan.runtime.engine.prefix_files import PrefixFiles
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.pack import write as packing
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.signing import SignatureError, check, sign

Version = Literal["old", "new"]

State = Version | None

VERSIONS: tuple[Version, Version] = ("old", "new")


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work that replaces old files in a folder by new ones.

    Attributes:
        write: writes a version to a folder.
        state: reads all files and returns their version; `None` for neither.
        has_gap: a killed process may leave neither.
        is_optional: a cache, which works without files it cannot write.
    """

    write: Callable[[Path, Version], object]
    state: Callable[[Path], State]
    has_gap: bool = False
    is_optional: bool = False


CONTEXTS: dict[Version, int] = {"old": 500, "new": 400}


def _context_state(place: Path) -> State:
    try:
        length = open_bundle(place / "bundle", full_check=True).manifest.context_length
    except BundleNotFoundError:
        return None
    return next(version for version in VERSIONS if CONTEXTS[version] == length)


def _export(folder: Path) -> Work:
    module = tiny_models.decoder(tiny_models.llama(1))
    source = tiny_models.write_checkpoint(folder / "checkpoint", module)

    def write(place: Path, version: Version) -> None:
        ortolan.export(source, place / "bundle", max_context=CONTEXTS[version], force=True)

    return Work(write=write, state=_context_state)


def _stage(place: Path, version: Version) -> None:
    """Replace a folder as an export does, with the version in a file."""
    contents = tiny_bundle.files_of(tiny_bundle.model()) | {"certificate.bin": version.encode()}
    with staged_bundle(place / "bundle", force=True) as folder:
        for name, data in contents.items():
            files.write(folder / name, data)
        write_manifest(folder, tiny_bundle.manifest_of(contents))


def _staged_state(place: Path) -> State:
    try:
        bundle = open_bundle(place / "bundle", full_check=True)
    except BundleNotFoundError:
        return None
    return _version(bundle.read("certificate.bin").decode())


def _version(text: str) -> Version:
    return next(version for version in VERSIONS if text.startswith(version))


def _folder(folder: Path) -> Work:
    return Work(write=_stage, state=_staged_state)


def _renamed_folder(folder: Path) -> Work:
    """The same on a system that cannot exchange two folders."""

    def write(place: Path, version: Version) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if version == "new":
                patch.setattr(staging, "exchange", lambda one, other: False)
            _stage(place, version)

    return Work(write=write, state=_staged_state, has_gap=True)


def _adapter(folder: Path) -> Work:
    bundle = open_bundle(tiny_decoder.write_bundle(folder / "bundle").path)
    certificate = read_certificate(bundle)
    manifests = {}
    for rank, version in enumerate(VERSIONS, 1):
        factors = tiny_adapters.random_factors(bundle, rank=rank)
        tiny_adapters.write_adapter(folder / version, bundle, factors, ranks=(rank,))
        manifests[version] = open_adapter(folder / version).manifest

    def write(place: Path, version: Version) -> None:
        with staged_adapter(place / "adapter", force=True) as staged_folder:
            blob = (folder / version / BLOB).read_bytes()
            write_adapter(staged_folder, certificate, manifests[version], blob=blob)

    def state(place: Path) -> State:
        try:
            adapter = open_adapter(place / "adapter")
        except AdapterError:
            return None
        for file in adapter.manifest.files:
            adapter.read(file.name)
        return next(v for v in VERSIONS if manifests[v].ranks == adapter.manifest.ranks)

    return Work(write=write, state=state)


def _pack(folder: Path) -> Work:
    def write(place: Path, version: Version) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if version == "old":
                packed_bundles.write(place / "bundle", "int4")
                patch.setattr(packing, "__version__", "0.0.1")
            packing.pack(open_bundle(place / "bundle"))

    def state(place: Path) -> State:
        bundle = open_bundle(place / "bundle", full_check=True)
        packed = find_packed(bundle, onnxruntime=onnxruntime_version(), full_check=True)
        if packed is None:
            return None
        return "old" if packed.manifest.ortolan == "0.0.1" else "new"

    return Work(write=write, state=state)


def _signature(folder: Path) -> Work:
    keys = {version: write_keys(folder, version) for version in VERSIONS}

    def write(place: Path, version: Version) -> None:
        if version == "old":
            tiny_decoder.write_bundle(place / "bundle")
        sign(place / "bundle", keys[version][0])

    def state(place: Path) -> State:
        for version in VERSIONS:
            with suppress(SignatureError):
                check(place / "bundle", keys[version][1])
                return version
        return None

    return Work(write=write, state=state)


_no_model: Any = None

LENGTHS = {"old": 9000, "new": 5000}


def _conversation(folder: Path) -> Work:
    def write(place: Path, version: Version) -> None:
        conversation = Conversation(_no_model, "bundle", system=version * LENGTHS[version])
        conversation.save(place / "saved.json")

    def state(place: Path) -> State:
        conversation = Conversation(_no_model, "bundle")
        try:
            conversation.load(place / "saved.json")
        except StateFileError:
            return None
        (message,) = conversation.messages
        return _version(message["content"])

    return Work(write=write, state=state)


def _history(folder: Path) -> Work:
    def write(place: Path, version: Version) -> None:
        add_to_history(place / "state" / "history", f"{version}\n" * LENGTHS[version])

    def state(place: Path) -> State:
        entries = read_history(place / "state" / "history")
        return _version(entries[-1]) if entries else None

    return Work(write=write, state=state)


def _session(folder: Path) -> Work:
    tiny_decoder.write_bundle(folder / "bundle")
    model = ortolan.load(folder / "bundle", ortolan.Decoder, threads=1)
    ids = {"old": list(range(20)), "new": list(range(5, 40))}
    sessions = {}
    for version in VERSIONS:
        sessions[version] = model.session()
        sessions[version].append(ids[version])

    def state(place: Path) -> State:
        try:
            tokens = list(model.load_session(place / "saved").tokens)
        except StateFileError:
            return None
        return next(version for version in VERSIONS if ids[version] == tokens)

    return Work(write=lambda place, version: sessions[version].save(place / "saved"), state=state)


_SLOTS = Slots((KEY, SUM), count=1, context_length=100, identities=("bundle",))
_BLOCK = filled(
    Slots((KEY, SUM), count=1, context_length=100, identities=("bundle",)), 16
).snapshot()
_IDS = np.arange(16, dtype="<i8").tobytes()
_KEY, _ROOT = bytes(range(32)), bytes(32)


def _prefix(folder: Path) -> Work:
    def write(place: Path, version: Version) -> None:
        if version == "new":
            prefixes = PrefixFiles(place, most_bytes=1 << 20)
            prefixes.write([_KEY], _IDS, _BLOCK, after=_ROOT)
            prefixes.close()

    def state(place: Path) -> State:
        block = PrefixFiles(place, most_bytes=1 << 20).read(_KEY, _IDS, _SLOTS, after=_ROOT)
        if block is None:
            return None
        for buffer, expected in zip(block.buffers, _BLOCK.buffers, strict=True):
            np.testing.assert_array_equal(buffer, expected)
        return "new"

    return Work(write=write, state=state, has_gap=True, is_optional=True)


def _checkpoint(folder: Path) -> Work:
    """Models of different shapes, so that a config does not fit the other's weights."""
    models = {
        version: tiny_models.decoder(tiny_models.llama(layers))
        for layers, version in enumerate(VERSIONS, 1)
    }

    def state(place: Path) -> State:
        try:
            weights = load(place / "saved").state_dict()
        except CheckpointError:
            return None
        return next(version for version in VERSIONS if _equal(models[version], weights))

    return Work(
        write=lambda place, version: save(models[version], place / "saved"),
        state=state,
        has_gap=True,
    )


def _equal(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> bool:
    own = model.state_dict()
    return own.keys() == weights.keys() and all(torch.equal(own[n], weights[n]) for n in own)


def _training(folder: Path) -> Work:
    """Recipes with different tokenizers, without gradients."""
    sizes = {"old": 290, "new": 300}
    for version, size in sizes.items():
        (folder / version).mkdir()
        new = f"vocab_size = {size}"
        write_recipe(folder / version, LANGUAGE_MODEL, "vocab_size = 300", new)

    def write(place: Path, version: Version) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "backward", lambda _: None)
            trainer.train(folder / version / "recipe.toml", place / "saved")

    def state(place: Path) -> State:
        try:
            model = load(place / "saved", DecoderModel)
        except CheckpointError:
            return None
        tokenizer = Tokenizer.from_file(str(place / "saved" / "tokenizer.json"))
        size = tokenizer.get_vocab_size()
        assert size == model.config.vocab_size
        return "old" if size == sizes["old"] else "new"

    return Work(write=write, state=state, has_gap=True)


WORKS: dict[str, Callable[[Path], Work]] = {
    "folder": _folder,
    "folder by two renames": _renamed_folder,
    "export": _export,
    "adapter": _adapter,
    "pack": _pack,
    "signature": _signature,
    "conversation": _conversation,
    "history of chats": _history,
    "session": _session,
    "prefix": _prefix,
    "checkpoint": _checkpoint,
    "training": _training,
}
