"""All work of Ortolan that writes permanent files, and checks of the result."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.export import tiny_models
from tests.modeling.training.recipes import LANGUAGE_MODEL, write_recipe
from tests.runtime import packed_bundles, tiny_bundle, tiny_decoder
from tests.runtime.engine.test_slots import KEY, SUM, filled
from tokenizers import Tokenizer

import ortolan
from ortolan import files, staging
from ortolan.cli.chat.history import add_to_history, read_history
from ortolan.export.options import ExportOptions
from ortolan.export.output import staged_bundle, write_manifest
from ortolan.modeling import CheckpointError, DecoderModel, load, save
from ortolan.modeling.training import trainer
from ortolan.runtime import BundleNotFoundError, StateFileError, open_bundle
from ortolan.runtime.bundle.packed import find_packed
from ortolan.runtime.chat.conversation import Conversation
from ortolan.runtime.engine.ort_session import onnxruntime_version
from ortolan.runtime.engine.prefix_files import PrefixFiles
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.pack import write as packing

State = Literal["old", "new"] | None


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work that replaces old files in a folder by new ones.

    Attributes:
        old: writes the old files.
        new: writes the new files.
        state: reads all files and returns which are there; `None` for neither.
        has_gap: a killed process may leave neither.
        is_optional: a cache, which works without files it cannot write.
    """

    old: Callable[[Path], object]
    new: Callable[[Path], object]
    state: Callable[[Path], State]
    has_gap: bool = False
    is_optional: bool = False


def _export(folder: Path) -> Work:
    module = tiny_models.decoder(tiny_models.llama(1))
    source = tiny_models.write_checkpoint(folder / "checkpoint", module)
    contexts: dict[State, int] = {"old": 500, "new": 400}

    def export(state: State) -> Callable[[Path], object]:
        def write(place: Path) -> None:
            ortolan.export(source, place / "bundle", max_context=contexts[state], force=True)

        return write

    return Work(old=export("old"), new=export("new"), state=_bundle_state(contexts))


def _folder(folder: Path) -> Work:
    """Replace a folder as an export does."""
    return Work(old=_staged(b"old"), new=_staged(b"new"), state=_marker)


def _renamed_folder(folder: Path) -> Work:
    """The same on a system that cannot exchange two folders."""

    def new(place: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staging, "exchange", lambda one, other: False)
            _staged(b"new")(place)

    return Work(old=_staged(b"old"), new=new, state=_marker, has_gap=True)


def _staged(marker: bytes) -> Callable[[Path], object]:
    def write(place: Path) -> None:
        contents = tiny_bundle.files_of(tiny_bundle.model()) | {"certificate.npz": marker}
        with staged_bundle(place / "bundle", force=True) as new:
            for name, data in contents.items():
                files.write(new / name, data)
            write_manifest(new, tiny_bundle.manifest_of(contents))

    return write


def _marker(place: Path) -> State:
    try:
        bundle = open_bundle(place / "bundle", full_check=True)
    except BundleNotFoundError:
        return None
    return _STATES[bundle.read("certificate.npz").decode()]


def _auto(folder: Path) -> Work:
    torch.manual_seed(0)
    module = DecoderModel(tiny_models.gpt2()).eval()
    contexts: dict[State, int] = {"old": 500, "new": 400}

    def export(state: State) -> Callable[[Path], object]:
        def write(place: Path) -> None:
            ortolan.export(
                module,
                place / "bundle",
                precision=ortolan.Auto(target_size=400_000),
                options=ExportOptions(allow_poor=True),
                max_context=contexts[state],
                force=True,
            )

        return write

    return Work(old=export("old"), new=export("new"), state=_bundle_state(contexts))


def _bundle_state(contexts: dict[State, int]) -> Callable[[Path], State]:
    def state(place: Path) -> State:
        try:
            length = open_bundle(place / "bundle", full_check=True).manifest.context_length
        except BundleNotFoundError:
            return None
        return next(state for state, context in contexts.items() if context == length)

    return state


def _pack(folder: Path) -> Work:
    def old(place: Path) -> None:
        packed_bundles.write(place / "bundle", "int4")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing, "__version__", "0.0.1")
            packing.pack(open_bundle(place / "bundle"))

    def new(place: Path) -> None:
        packing.pack(open_bundle(place / "bundle"))

    def state(place: Path) -> State:
        bundle = open_bundle(place / "bundle", full_check=True)
        packed = find_packed(bundle, onnxruntime=onnxruntime_version(), full_check=True)
        if packed is None:
            return None
        return "old" if packed.manifest.ortolan == "0.0.1" else "new"

    return Work(old=old, new=new, state=state)


def _conversation(folder: Path) -> Work:
    def saved(content: str) -> Callable[[Path], object]:
        def write(place: Path) -> None:
            conversation = Conversation(_no_model, "bundle", system=content)
            conversation.save(place / "saved.json")

        return write

    def state(place: Path) -> State:
        conversation = Conversation(_no_model, "bundle")
        try:
            conversation.load(place / "saved.json")
        except StateFileError:
            return None
        (message,) = conversation.messages
        return _STATES[message["content"][:3]]

    return Work(old=saved("old" * 9000), new=saved("new" * 5000), state=state)


def _history(folder: Path) -> Work:
    def state(place: Path) -> State:
        entries = read_history(place / "state" / "history")
        return _STATES[entries[-1][:3]] if entries else None

    def typed(text: str) -> Callable[[Path], object]:
        return lambda place: add_to_history(place / "state" / "history", text)

    return Work(old=typed("old\n" * 9000), new=typed("new\n" * 5000), state=state)


def _session(folder: Path) -> Work:
    tiny_decoder.write_bundle(folder / "bundle")
    model = ortolan.load(folder / "bundle", ortolan.Decoder, threads=1)
    ids = {"old": list(range(20)), "new": list(range(5, 40))}

    def saved(name: str) -> Callable[[Path], object]:
        session = model.session()
        session.append(ids[name])
        return lambda place: session.save(place / "saved")

    def state(place: Path) -> State:
        try:
            tokens = list(model.load_session(place / "saved").tokens)
        except StateFileError:
            return None
        return _STATES[next(name for name in ids if ids[name] == tokens)]

    return Work(old=saved("old"), new=saved("new"), state=state)


def _prefix(folder: Path) -> Work:
    def new(place: Path) -> None:
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

    return Work(old=lambda place: None, new=new, state=state, has_gap=True, is_optional=True)


def _checkpoint(folder: Path) -> Work:
    """Models of different shapes, so that a config does not fit the other's weights."""
    models = {"old": tiny_models.decoder(tiny_models.llama(1))}
    models["new"] = tiny_models.decoder(tiny_models.llama(2))

    def saved(name: str) -> Callable[[Path], object]:
        return lambda place: save(models[name], place / "saved")

    def state(place: Path) -> State:
        try:
            weights = load(place / "saved").state_dict()
        except CheckpointError:
            return None
        return next(_STATES[name] for name, model in models.items() if _equal(model, weights))

    return Work(old=saved("old"), new=saved("new"), state=state, has_gap=True)


def _training(folder: Path) -> Work:
    """Recipes with different tokenizers, without gradients."""
    recipes = {"old": folder / "old", "new": folder / "new"}
    for name, size in (("old", "290"), ("new", "300")):
        recipes[name].mkdir()
        write_recipe(recipes[name], LANGUAGE_MODEL, "vocab_size = 300", f"vocab_size = {size}")

    def trained(name: str) -> Callable[[Path], object]:
        def write(place: Path) -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch.Tensor, "backward", lambda _: None)
                trainer.train(recipes[name] / "recipe.toml", place / "saved")

        return write

    def state(place: Path) -> State:
        try:
            model = load(place / "saved", DecoderModel)
        except CheckpointError:
            return None
        tokenizer = Tokenizer.from_file(str(place / "saved" / "tokenizer.json"))
        size = tokenizer.get_vocab_size()
        assert size == model.config.vocab_size
        return "old" if size == 290 else "new"

    return Work(old=trained("old"), new=trained("new"), state=state, has_gap=True)


_SLOTS = Slots((KEY, SUM), count=1, context_length=100, identity="bundle")
_BLOCK = filled(Slots((KEY, SUM), count=1, context_length=100, identity="bundle"), 16).snapshot()
_IDS = np.arange(16, dtype="<i4").tobytes()
_KEY, _ROOT = bytes(range(32)), bytes(32)

_no_model: Any = SimpleNamespace(forget=lambda: None)

_STATES: dict[str, State] = {"old": "old", "new": "new"}


def _equal(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> bool:
    own = model.state_dict()
    return own.keys() == weights.keys() and all(torch.equal(own[n], weights[n]) for n in own)


WORKS: dict[str, Callable[[Path], Work]] = {
    "folder": _folder,
    "folder by two renames": _renamed_folder,
    "export": _export,
    "export in chosen bits": _auto,
    "pack": _pack,
    "conversation": _conversation,
    "history of chats": _history,
    "session": _session,
    "prefix": _prefix,
    "checkpoint": _checkpoint,
    "training": _training,
}
