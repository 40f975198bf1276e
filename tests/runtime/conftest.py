"""Tiny bundles that are written and loaded once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.runtime import packed_bundles
from tests.runtime.tiny_adapters import Pairs
from tests.runtime.tiny_decoder import BOS, EOS, TinyDecoder, tokenizer_json, write_bundle

from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.bundle.packed import Packed
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.loading import load

POISON = 13
"""Id whose logits are not finite in `poisoned`; the character `-`."""


@pytest.fixture
def memory_left(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the free memory of this machine, and lets the smallest needs be checked."""
    from ortolan.runtime.engine import memory_plan

    def set_free(count: int) -> None:
        monkeypatch.setattr(memory_plan, "SMALL_BYTES", 0)
        monkeypatch.setattr(memory_plan, "available_memory", lambda root: count)
        monkeypatch.setattr(memory_plan, "free_swap", lambda root: 0)

    return set_free


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the graphs that packed weights are attached to."""
    names: list[str] = []
    attach = Packed.attach

    def spy(self: Packed, file: str, graph: bytes) -> bytes:
        names.append(file)
        return attach(self, file, graph)

    monkeypatch.setattr(Packed, "attach", spy)
    return names


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDecoder:
    """A decoder with a tokenizer, BOS and EOS."""
    folder = tmp_path_factory.mktemp("tiny") / "bundle"
    return write_bundle(folder, tokenizer=tokenizer_json(), tokens=Tokens(bos=BOS, eos=(EOS,)))


@pytest.fixture(scope="session")
def model(tiny: TinyDecoder) -> Decoder:
    return load(tiny.path, Decoder, threads=1)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """The weights of `tiny`, without a tokenizer and special tokens."""
    return load(write_bundle(tmp_path_factory.mktemp("bare") / "bundle").path, Decoder, threads=1)


@pytest.fixture(scope="session")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """A decoder whose logits after the token `POISON` are not finite."""
    path = tmp_path_factory.mktemp("poisoned") / "bundle"
    return load(write_bundle(path, poisoned=POISON, tokenizer=tokenizer_json()).path, Decoder)


def resident_bytes() -> int:
    """Memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    pytest.skip("no /proc on this system")


class Models(dict[str, Decoder]):
    """Decoders by their kind in `packed_bundles`; groups are longer than a row of the embedding."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, kind: str) -> Decoder:
        bundle = packed_bundles.write(self._folder / kind, kind, group=64, has_text=True)
        self[kind] = load(bundle.path, Decoder, threads=1)
        return self[kind]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def exported(
    tmp_path_factory: pytest.TempPathFactory, quick_exports: None
) -> Callable[[str], Path]:
    """Return a function that exports a tiny translator: folder with `bundle` and `checkpoint`."""

    @cache
    def folder(family: str) -> Path:
        from tests.runtime.tiny_translators import write_bundle  # imports PyTorch

        path = tmp_path_factory.mktemp(family)
        write_bundle(family, path)
        return path

    return folder
