from pathlib import Path

import pytest
import torch
from tests.export.quantize.weights import gaussian
from torch import nn

from ortolan.export.proof.witness import Witness
from ortolan.export.quantize import rounding
from ortolan.export.quantize.channel import quantize_channels
from ortolan.export.weights.blob import BlobWriter
from ortolan.export.weights.codes import write_channels
from ortolan.modeling.weights import ModuleWeights


def test_memory_is_given_back_while_a_long_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = gaussian(101, 4)
    module = nn.Linear(4, 101, bias=False)
    module.weight.data = weight
    read: list[int] = []
    given_back: list[int] = []
    monkeypatch.setattr(rounding, "CHUNK_ELEMENTS", 3 * 4)
    monkeypatch.setattr(rounding, "READ_CHUNKS", 2)
    monkeypatch.setattr(rounding, "TRIM_READS", 5)
    monkeypatch.setattr(rounding, "return_free_memory", lambda: given_back.append(len(read)))
    for rows in rounding.row_chunks(ModuleWeights(module), "weight"):
        torch.testing.assert_close(rows, weight[3 * len(read) : 3 * len(read) + 3])
        read.append(len(rows))
    assert read == [3] * 33 + [2]
    assert given_back == [10, 20, 30]


def test_error_of_products_of_integers_is_that_of_their_codes(tmp_path: Path) -> None:
    module = nn.Linear(37, 9, bias=False)
    module.weight.data = weight = gaussian(9, 37)
    with BlobWriter(tmp_path, sizes={}, witness=Witness(())) as writer:
        (written,) = write_channels(writer, ModuleWeights(module), ["weight"])
    codes, scales = quantize_channels(weight)
    off = codes.T * scales[:, None] - weight
    assert (written.name, written.bits, written.group) == ("weight", 8, None)
    assert written.error == pytest.approx(float(off.norm() / weight.norm()))
    assert 0.001 < written.error < 0.02
