"""Graphs whose results would depend on where a prompt is cut, computed by exact runners."""

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.export import tiny_models

import ortolan
from ortolan.export.options import ExportOptions, Int4
from ortolan.modeling.config import BlockConfig, DecoderConfig, RotaryPositions
from ortolan.runtime.engine.attention_kernels import GRID
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.exactness import score_edges
from ortolan.runtime.engine.runner import Runner

CHUNKS = (16, 32, 64, GRID)


def states(engine: Engine, ids: list[int], chunk: int, first: int = 0) -> list[Any]:
    """Logits and states of a prompt that is appended in two parts, in chunks of a size."""
    runner = Runner(engine, engine.slots(2), exact=True, chunk=chunk)
    if first:
        runner.prefill(0, ids[:first])
    return [runner.prefill(0, ids[first:]), *runner.slots.snapshot().buffers]


@pytest.mark.parametrize("length", [40, 70, 173])
@pytest.mark.parametrize("kind", ["256 channels", "512 channels", "int8 prefill"])
def test_results_do_not_depend_on_chunks(
    kind: str, length: int, engines: dict[str, Engine]
) -> None:
    engine = engines[kind]
    ids = np.random.default_rng(length).integers(4, tiny_models.VOCAB, length).tolist()
    expected = states(engine, ids, GRID)
    parts = [(chunk, 0) for chunk in CHUNKS]
    if not engine.exactness.depends_on_chunks:
        parts += [(chunk, first) for chunk in CHUNKS for first in (1, 7, 30)]
    for chunk, first in parts:
        for got, want in zip(states(engine, ids, chunk, first), expected, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"{chunk}, {first}")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    folder = tmp_path_factory.mktemp("engines")
    split = ExportOptions(graphs="split", prefill_precision="int8", allow_poor=True)
    exports: dict[str, tuple[DecoderConfig, dict[str, Any]]] = {
        "256 channels": (wide(256), {}),
        "512 channels": (wide(512), {}),
        "int8 prefill": (
            tiny_models.llama(),
            {"precision": Int4(method="rtn"), "options": split},
        ),
    }
    return {
        kind: Engine(
            ortolan.export(tiny_models.decoder(config), folder / kind, **options), threads=1
        )
        for kind, (config, options) in exports.items()
    }


def wide(channels: int) -> DecoderConfig:
    """Layers with heads of this many channels; the second one sees the sums of the first."""
    mixer = tiny_models.attention(2, 1, channels)
    block = BlockConfig(mixer=mixer, feed_forward=tiny_models.GATED, norm=tiny_models.RMS)
    return tiny_models.config("llama", RotaryPositions(dim=channels), block, block)


@pytest.mark.parametrize(
    ("channels", "edges"),
    [(64, ()), (128, ()), (192, (64,)), (256, (64,)), (512, (32, 64)), (576, (16, 32, 64))],
)
def test_edges_follow_from_the_widest_head(
    channels: int, edges: tuple[int, ...], engines: dict[str, Engine]
) -> None:
    key = engines["256 channels"].manifest.states[0]
    states = [msgspec.structs.replace(key, shape=(*key.shape[:-1], size)) for size in (channels, 8)]
    assert score_edges(states) == edges
