from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tests.export import tiny_models
from tests.export.models_of_kinds import write_plain_tokenizer, write_wrapping_tokenizer

import ortolan
from ortolan.modeling import DecoderModel
from ortolan.runtime import Bundle, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A bundle, its source module, and the float32 reference."""

    module: DecoderModel
    reference: DecoderModel
    bundle: Bundle
    model: ortolan.Decoder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module = tiny_models.decoder(tiny_models.llama())
    return tiny_models.write_checkpoint(tmp_path_factory.mktemp("checkpoint"), module)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer without special tokens around a text."""
    return write_plain_tokenizer(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def wrapping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that puts 1 before a text and 2 after it."""
    return write_wrapping_tokenizer(tmp_path_factory.mktemp("wrapping"))


@pytest.fixture(scope="session")
def exported(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path
) -> Callable[[str], Exported]:
    """Exports a case of `tiny_models.CASES` once."""

    @cache
    def export(name: str) -> Exported:
        case = tiny_models.CASES[name]
        module = tiny_models.decoder(case.config(), case.dtype)
        source = checkpoint if name == "llama" else module
        out = tmp_path_factory.mktemp("bundles") / name
        bundle = ortolan.export(source, out, **case.options)
        return Exported(
            module=module,
            reference=tiny_models.reference(module, case.options.get("max_context")),
            bundle=bundle,
            model=load(out, threads=1),
        )

    return export
