"""The server of all endpoints: the chat models, and encoders."""

from pathlib import Path

import pytest
from tests.runtime import tiny_encoder

from ortolan.runtime import Decoder
from ortolan.runtime.bundle.text_source import TextSource

PROMPTS = TextSource(max_tokens=24, prompts={"query": "k ", "document": "l "})


@pytest.fixture(scope="session")
def bundles(
    models: dict[str, Decoder], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder, write = tmp_path_factory.mktemp("encoders"), tiny_encoder.write_bundle
    return {name: model.bundle.path for name, model in models.items()} | {
        "embedder": write(folder / "embedder", kind="embedding").path,
        "prompted": write(folder / "prompted", kind="embedding", source=PROMPTS).path,
        "labels": write(folder / "labels", kind="labels").path,
        "pairs": write(folder / "pairs", kind="scores", labels=("relevant",)).path,
        "images": write(folder / "images", kind="embedding", image=tiny_encoder.IMAGE).path,
    }
