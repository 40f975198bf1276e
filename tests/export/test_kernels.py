from dataclasses import replace
from pathlib import Path

import pytest
from tests.export import tiny_models

import ortolan
from ortolan.export.errors import ExportError
from ortolan.export.kernels import check_kernels
from ortolan.modeling import TransformerConfig
from ortolan.modeling.config import NoPositions, RotaryPositions


def model(head_dim: int, rotated: int) -> TransformerConfig:
    config = tiny_models.llama()
    block = replace(config.blocks[0], attention=tiny_models.attention(4, 2, head_dim))
    positions = RotaryPositions(dim=rotated) if rotated else NoPositions()
    return replace(config, blocks=(block,), positions=positions)


@pytest.mark.parametrize(("head_dim", "rotated"), [(8, 0), (24, 0), (16, 16), (80, 32), (48, 48)])
def test_widths_that_the_kernel_takes_pass(head_dim: int, rotated: int) -> None:
    check_kernels(model(head_dim, rotated))


@pytest.mark.parametrize(
    ("head_dim", "rotated", "message"),
    [
        (12, 0, "layer 0: expected heads in multiples of 8, got heads of 12"),
        (24, 16, "in multiples of 16, got heads of 24 with 16 channels rotated"),
        (32, 8, "in multiples of 16, got heads of 32 with 8 channels rotated"),
    ],
)
def test_widths_that_the_kernel_refuses_are_errors(
    head_dim: int, rotated: int, message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        check_kernels(model(head_dim, rotated))


def test_export_without_a_kernel_ends_before_any_work(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(ExportError, match="no attention kernel"):
        ortolan.export(
            tiny_models.decoder(model(12, 0)),
            tmp_path / "out",
            progress=lambda step, done, total: told.append(step),
        )
    assert told == []
    assert list(tmp_path.iterdir()) == []
