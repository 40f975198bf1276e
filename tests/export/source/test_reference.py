"""A port is compared with the model that it was ported from."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from torch import Tensor, nn

import ortolan
from ortolan.export.exportable import Exportable
from ortolan.export.proof.reference import keep
from ortolan.export.source import open_exportable
from ortolan.export.source.reference import with_reference
from ortolan.runtime.verification.certificate import Logits
from ortolan.runtime.verification.certificate_files import read_certificate

IDS = torch.tensor([3, 1, 4, 1, 5])


class Original(nn.Module):
    """Attention and dropout in plain PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.drop(self.embed(ids))[:, None]
        x = x + F.scaled_dot_product_attention(x, x, x, is_causal=True)
        return F.linear(x[:, 0], self.embed.weight)


class Ported(nn.Module):
    context_length = 16

    def __init__(self, original: Original, **options: Any) -> None:
        super().__init__()
        self.embed, self.options = original.embed, options

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        x = self.embed(ids)[:, None]
        x = x + state.attend(0, x, x, x, **self.options)
        return F.linear(x[:, 0], self.embed.weight)


def opened(**options: Any) -> tuple[Original, Exportable, Tensor]:
    """An original, its port, and the port's logits."""
    original = Original()
    port = Ported(original, **options)
    with torch.no_grad():
        logits = port(IDS[None], ortolan.State.whole())[0]
    return original, open_exportable(port), logits


def compared(reference: Any, port: Exportable, logits: Tensor) -> Tensor:
    model = with_reference(port, reference)
    assert model.original is not None
    return model.original(None, IDS, logits)


FORMS: dict[str, Callable[[Original], Any]] = {
    "a module": lambda original: original,
    "a rounded module": lambda original: original.double(),
    "a function": lambda original: lambda ids: original.eval()(ids),
    "rows alone": lambda original: lambda ids: original.eval()(ids)[0],
    "a tuple": lambda original: lambda ids: (original.eval()(ids), None),
    "an object": lambda original: lambda ids: SimpleNamespace(logits=original.eval()(ids)),
    "a dictionary": lambda original: lambda ids: {"logits": original.eval()(ids)},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_reference_returns_logits_in_any_form(form: str) -> None:
    original, port, logits = opened()
    original.train()
    torch.testing.assert_close(compared(FORMS[form](original), port, logits), logits)
    assert original.training == ("module" in form)  # a module stays as it was


def raises(ids: Tensor) -> Tensor:
    raise RuntimeError("a mask is missing")


REFUSED: dict[str, tuple[dict[str, Any], Any]] = {
    "another scale": ({"scale": 0.9}, None),
    "a window": ({"window": 3}, None),
    "logits of one token": ({}, lambda ids: torch.zeros(1, 1, 11)),
    "nothing": ({}, lambda ids: None),
    "an error": ({}, raises),
    "no numbers": ({}, lambda ids: torch.full((1, 5, 11), torch.nan)),
    "no callable": ({}, "model"),
}
"""Options of the port, and another reference."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_port_that_differs_from_its_reference_is_refused_with_the_place(
    name: str, snapshot: SnapshotAssertion
) -> None:
    options, reference = REFUSED[name]
    original, port, logits = opened(**options)
    text = refusal(lambda: compared(reference or original, port, logits))
    text = re.sub(r"line \d+", "line ...", text)
    assert re.sub(r"\d\.\d+(e-\d+)?", "...", text) == snapshot


def test_a_certificate_holds_the_logits_of_the_reference(tmp_path: Path) -> None:
    original = Original()

    def shifted(ids: Tensor) -> Tensor:
        logits: Tensor = original.eval()(ids)
        return logits + 5e-5  # within the tolerance

    stored = read_certificate(
        ortolan.export(Ported(original), tmp_path / "bundle", reference=shifted)
    )
    ids = torch.tensor(stored.token_ids[: stored.probes[0].length].tolist())
    expected = keep(shifted(ids[None])[0].detach(), "logits", None)
    assert isinstance(stored.reference, Logits)
    assert isinstance(expected, Logits)
    np.testing.assert_array_equal(stored.reference.top_logits[: len(ids)], expected.top_logits)
