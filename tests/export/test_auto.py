"""Bits that an export chooses, by a bound on the divergence or on the size."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.export import tiny_models
from tests.modeling import kinds

import ortolan
from ortolan.export.errors import OptionError, ParityError
from ortolan.export.quantize import auto
from ortolan.modeling import DecoderModel
from ortolan.runtime import Bundle
from ortolan.runtime.certificate import read

EMBEDDING = 3.0
"""Times what is drawn: the logits of this model differ enough for bits to matter."""


def model() -> DecoderModel:
    torch.manual_seed(0)
    module = DecoderModel(tiny_models.gpt2()).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(EMBEDDING)
    return module


def exported(out: Path, module: DecoderModel | None = None, **bound: Any) -> Bundle:
    return ortolan.export(module or model(), out, precision=ortolan.Auto(**bound))


def kl(bundle: Bundle) -> float:
    measured = read(bundle).measured
    assert measured is not None
    assert measured.mean_kl is not None
    return measured.mean_kl


def weight_bytes(bundle: Bundle) -> int:
    return sum(bundle.file(name).stat().st_size for name in bundle.manifest.weights)


def bits(bundle: Bundle) -> list[int]:
    return [tensor.bits for tensor in bundle.manifest.quantized]


def test_the_fewest_bytes_that_keep_a_divergence(tmp_path: Path) -> None:
    loose, middle, tight = (
        exported(tmp_path / str(bound), max_kl=bound) for bound in (5.0, 0.02, 0.004)
    )
    print(
        kl(loose),
        kl(middle),
        kl(tight),
        [weight_bytes(x) for x in (loose, middle, tight)],
        bits(middle),
    )
    assert 0
