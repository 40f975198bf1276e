from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.runtime import tiny_decoder, tiny_encoder

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.sample_outputs import sample_outputs


@pytest.mark.parametrize("kind", ["decoder", "split", "encoder", "images", "encoder-decoder"])
def test_sample_outputs_of_every_kind_of_bundle_are_repeatable(
    kind: str, tmp_path: Path, exported: Callable[[str], Path]
) -> None:
    if kind == "encoder-decoder":
        path = exported("marian") / "bundle"
    elif kind in ("encoder", "images"):
        image = tiny_encoder.IMAGE if kind == "images" else None
        path = tiny_encoder.write_bundle(tmp_path / "bundle", image=image).path
    else:
        path = tiny_decoder.write_bundle(tmp_path / "bundle", split=kind == "split").path
    first, second = (sample_outputs(Engine(open_bundle(path), threads=1)) for _ in range(2))
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        assert np.isfinite(one).all()
        assert float(one.std()) > 0
        np.testing.assert_array_equal(one, other)
