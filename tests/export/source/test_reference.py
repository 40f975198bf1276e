"""A port is compared with the model that it was ported from."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.proof.reference import keep
from ortolan.export.source import open_exportable
from ortolan.export.source.reference import with_reference
from ortolan.modeling.errors import ConfigError
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
    return original, open_exportable(port, tokenizer=None, max_context=None), logits


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
    torch.testing.assert_close(compared(FORMS[form](original), port, logits), logits)


def test_a_reference_stays_as_it_was() -> None:
    original, port, logits = opened()
    compared(original.train(), port, logits)
    assert original.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scale": 0.9},
            r"Ported differs from its reference, first at position 1 of 5 ids: logits",
        ),
        ({"window": 3}, r"first at position 3 of 5 ids: .* 2 of 5 positions differ"),
    ],
)
def test_a_port_that_differs_is_refused_with_the_place(
    options: dict[str, Any], message: str
) -> None:
    original, port, logits = opened(**options)
    with pytest.raises(ConfigError, match=message):
        compared(original, port, logits)


def raises(ids: Tensor) -> Tensor:
    return ids @ torch.zeros(2, 2)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda ids: torch.zeros(1, 1, 11), r"expected .*\(1, 5, 11\) for 5 ids, got \(1, 1, 11\)"),
        (lambda ids: None, "got NoneType.* returns the logits of every token"),
        (raises, r"with 5 ids raised RuntimeError: .* \(test_reference.py, line"),
        (lambda ids: torch.full((1, 5, 11), torch.nan), "first at position 0 .* 5 of 5 positions"),
    ],
)
def test_a_reference_that_returns_no_logits_is_an_error(reference: Any, message: str) -> None:
    _, port, logits = opened()
    with pytest.raises(ConfigError, match=message):
        compared(reference, port, logits)


def test_only_a_callable_is_a_reference() -> None:
    with pytest.raises(OptionError, match=r"a module or a function of ids \(got str\)"):
        with_reference(opened()[1], "model")  # type: ignore[arg-type]


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
