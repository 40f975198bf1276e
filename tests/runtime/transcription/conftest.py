"""Tiny models that transcribe, exported once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.export import tiny_qwen3_asr
from tests.runtime.transcription.tiny_moonshine import write_moonshine
from tests.runtime.transcription.tiny_wav2vec2 import write_wav2vec2
from tests.runtime.transcription.tiny_whisper import write_whisper

import ortolan

Saved = tuple[Path, Any]

WRITERS: dict[str, Callable[[Path], Any]] = {
    "whisper": write_whisper,
    "moonshine": write_moonshine,
    "wav2vec2": write_wav2vec2,
    "qwen3-asr": tiny_qwen3_asr.write,
}


@pytest.fixture(scope="session")
def speech(tmp_path_factory: pytest.TempPathFactory, quick_exports: None) -> Callable[[str], Saved]:
    """Return a function that exports a model: its folder, and the model of transformers."""

    @cache
    def export(name: str) -> Saved:
        folder = tmp_path_factory.mktemp(name)
        reference = WRITERS[name](folder / "source")
        options = ortolan.ExportOptions(proof="quick")
        ortolan.export(folder / "source", folder / "bundle", options=options)
        return folder, reference

    return export
