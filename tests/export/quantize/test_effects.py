"""Rounded weights in files, the distances of models that use them, and the choice among them."""

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.export import tiny_models
from tests.export.memory_weights import MemoryWeights
from tests.export.quantize import low_bit
from tests.export.quantize.weights import correlated_inputs, gaussian
from torch import Tensor

from ortolan.export.derived import DerivedWeights, Recipe
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.quantize import effects, gptq, rounding
from ortolan.export.quantize.allocate import Form, fewest_bytes, least_effect
from ortolan.export.quantize.blocks import dequantize
from ortolan.export.quantize.calibrate import fit_with_loss
from ortolan.export.quantize.candidates import INDEX, Candidates
from ortolan.export.quantize.effects import Reference, distances, some_of
from ortolan.export.quantize.rounding import Part, QuantizedWeight, round_weight
from ortolan.export.scheme import Scheme
from ortolan.export.source import open_exportable
from ortolan.export.streamed import RoundsInputs
from ortolan.modeling import DecoderModel
from ortolan.modeling.weights import Weights

SCHEMES = [scheme for scheme in low_bit.SCHEMES if scheme.group == 32]

SCHEME = SCHEMES[0]


WEIGHTS = DerivedWeights(
    MemoryWeights(
        q=gaussian(6, 40, seed=1),
        k=gaussian(4, 40, seed=2),
        turned=gaussian(40, 5, seed=3),
        experts=gaussian(18, 40, seed=4).view(3, 6, 40),
    ),
    {"q+k": Recipe(("q", "k")), "turned.T": Recipe(("turned",), transposed=True)},
)


def rounded(made: Candidates, weights: Weights, name: str, scheme: Scheme = SCHEME) -> list[Part]:
    """Add a weight that is rounded to nearest, and return its parts."""
    parts = list(round_weight(weights, name, scheme).parts)
    made.add(QuantizedWeight(name=name, scheme=scheme, method="rtn", parts=iter(parts)))
    return parts


@pytest.mark.parametrize("scheme", SCHEMES, ids=low_bit.label)
@pytest.mark.parametrize("elements", [50, 1 << 20])
def test_codes_come_back_as_they_were(
    scheme: Scheme, elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounding, "CHUNK_ELEMENTS", elements)
    made, values = Candidates(tmp_path, WEIGHTS), {}
    for name in ("q+k", "turned.T", "experts"):
        assert (name, scheme) not in made
        parts = rounded(made, WEIGHTS, name, scheme)
        values[name] = torch.cat([dequantize(part.codes) for part in parts])
        made = Candidates(tmp_path, WEIGHTS)  # as another process finds them
        assert (name, scheme) in made
        again = made.weight(name, scheme)
        assert (again.name, again.scheme, again.method) == (name, scheme, "rtn")
        for part, other in zip(parts, again.parts, strict=True):
            assert torch.equal(part.rows, other.rows)
            assert torch.equal(part.codes.values, other.codes.values)
            assert torch.equal(dequantize(part.codes), dequantize(other.codes))
        error = sum(float((dequantize(p.codes) - p.rows).square().sum()) for p in parts)
        assert made.loss(name, scheme) == pytest.approx(error)

    stands_for = made.instead(dict.fromkeys(values, scheme))
    expected = {
        "q": values["q+k"][:6],
        "k": values["q+k"][6:],
        "turned": values["turned.T"].T,
        "experts": values["experts"].view(3, 6, 40),
    }
    assert stands_for.keys() == expected.keys()
    for name, value in expected.items():
        assert stands_for[name].shape(name) == value.shape
        assert torch.equal(stands_for[name].rows(name, 0, len(value)), value)
        assert torch.equal(stands_for[name].rows(name, 1, 3), value[1:3])


@pytest.mark.parametrize("damage", ["no index", "half an index", "half a file", "no file"])
def test_a_weight_that_is_not_whole_is_not_finished(damage: str, tmp_path: Path) -> None:
    made = Candidates(tmp_path, WEIGHTS)
    for name in ("q+k", "experts"):
        rounded(made, WEIGHTS, name)
    indices = {json.loads(path.read_bytes())["name"]: path for path in tmp_path.glob(f"*{INDEX}")}
    index = indices["q+k"]
    path = index if damage.endswith("index") else next(tmp_path.glob(f"{index.stem}-*.pt"))
    if damage.startswith("no"):
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    again = Candidates(tmp_path, WEIGHTS)
    assert ("q+k", SCHEME) not in again
    assert ("experts", SCHEME) in again


def test_memory_is_given_back_while_a_long_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = gaussian(101, 4)
    read: list[int] = []
    given_back: list[int] = []
    monkeypatch.setattr(rounding, "CHUNK_ELEMENTS", 3 * 4)
    monkeypatch.setattr(rounding, "READ_CHUNKS", 2)
    monkeypatch.setattr(rounding, "TRIM_READS", 5)
    monkeypatch.setattr(rounding, "return_free_memory", lambda: given_back.append(len(read)))
    for rows in rounding.row_chunks(MemoryWeights(weight=weight), "weight"):
        torch.testing.assert_close(rows, weight[3 * len(read) : 3 * len(read) + 3])
        read.append(len(rows))
    assert read == [3] * 33 + [2]
    assert given_back == [10, 20, 30]


def test_loss_is_the_error_of_what_the_weight_computes() -> None:
    weight, x = gaussian(16, 64), correlated_inputs(400, 64)
    factor = gptq.factorize(x.T @ x, damping=1e-5)
    for scheme in SCHEMES:
        part = fit_with_loss(weight, factor, scheme)
        error = float((x @ (weight - dequantize(part.codes)).T).square().sum())
        assert part.loss == pytest.approx(error, rel=0.01)


def test_kernels_round_what_enters_in_the_groups_of_the_weight(tmp_path: Path) -> None:
    made, scheme = Candidates(tmp_path, WEIGHTS), Scheme(bits=4, group=32)
    rounded(made, WEIGHTS, "q+k", scheme)
    plain, kernel = (made.instead({"q+k": scheme}, as_kernels=each)["q"] for each in (False, True))
    assert not isinstance(plain, RoundsInputs)
    assert isinstance(kernel, RoundsInputs)
    entering = torch.tensor([127.0] + [0.4] * 31 + [12.7] + [0.14] * 6 + [0.16]).view(1, 1, 40)
    expected = torch.tensor([127.0] + [0.0] * 31 + [12.7] + [0.1] * 6 + [0.2]).view(1, 1, 40)
    torch.testing.assert_close(kernel.rounded(entering), expected)
    assert torch.equal(kernel.rounded(torch.zeros(2, 40)), torch.zeros(2, 40))
    assert torch.equal(kernel.rows("q", 0, 6), plain.rows("q", 0, 6))


TEXTS = [torch.arange(start, start + 20) for start in (0, 7, 31)]


def opened() -> tuple[DecoderModel, Exportable]:
    torch.manual_seed(0)
    module = DecoderModel(tiny_models.gpt2()).eval()  # its head is its embedding
    return module, open_exportable(module)


def divergence(module: DecoderModel, values: Mapping[str, Tensor]) -> float:
    """Mean KL divergence of the module with other values for some weights."""
    other = DecoderModel(module.config).eval()
    other.load_state_dict({**module.state_dict(), **values}, strict=False)
    with torch.inference_mode():
        outputs = [(module(ids[None])[0], other(ids[None])[0]) for ids in TEXTS]
    each = [
        F.kl_div(got.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="none")
        for wanted, got in outputs
    ]
    return float(torch.cat(each).sum(-1).mean())


@pytest.mark.parametrize("at_once", [1, 10_000])
def test_each_weight_has_the_effect_that_pytorch_sees(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "TOKENS_AT_ONCE", at_once)
    module, model = opened()
    names = [name for name, each in module.named_parameters() if each.ndim == 2]
    (tmp_path / "codes").mkdir()
    (tmp_path / "reference").mkdir()
    made = Candidates(tmp_path / "codes", model.weights)
    values = {
        name: torch.cat([dequantize(part.codes) for part in rounded(made, model.weights, name)])
        for name in names
    }
    variants = [[name] for name in names] + [names]
    reference = Reference(model, Inputs(ids=TEXTS), tmp_path / "reference")
    told: list[tuple[int, int]] = []
    found = reference.distances(
        [made.instead(dict.fromkeys(each, SCHEME)) for each in variants],
        lambda step, done, total, what="": told.append((done, total)),
    )
    expected = [divergence(module, {name: values[name] for name in each}) for each in variants]
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-8)
    assert min(expected) > 1e-7
    assert told[-1] == (len(variants), len(variants))


def test_nothing_rounded_has_no_effect(tmp_path: Path) -> None:
    _, model = opened()
    assert Reference(model, Inputs(ids=TEXTS), tmp_path).distances([{}]) == [0.0]


def test_vectors_are_compared_by_their_cosines() -> None:
    first, second = torch.eye(3), torch.tensor([[2.0, 0, 0], [0, -1, 0], [1, 0, 0]])
    assert distances(first, second, "states").tolist() == [0, 2, 1]
    assert distances(first[0], second[1], "embedding").tolist() == [1]


def test_labels_are_compared_as_one_distribution() -> None:
    got = distances(torch.tensor([0.0, 1.0]), torch.tensor([5.0, 6.0]), "labels")
    assert got.tolist() == pytest.approx([0.0], abs=1e-6)


def test_effects_are_measured_on_the_first_inputs() -> None:
    _, model = opened()
    for tokens, count in ((1, 1), (30, 1), (31, 2), (1000, 3)):
        assert len(some_of(model, Inputs(ids=TEXTS), tokens).ids) == count


# --- choices --------------------------------------------------------------------------------------

CHOICES = [
    [Form(10, 8.0), Form(12, 5.0), Form(20, 0.1)],
    [Form(10, 1.0), Form(12, 0.6), Form(20, 0.0)],
    [Form(50, 2.0), Form(60, 1.9), Form(100, 0.0)],
]


def drawn(seed: int, count: int = 5) -> list[list[Form]]:
    """Forms with more bytes and less error."""
    chance = random.Random(seed)
    weights = []
    for _ in range(count):
        size, effect = chance.randint(50, 100), chance.random()
        weights.append(
            [Form(size, effect), Form(size * 9 // 8, effect * 0.6), Form(size * 2, effect / 256)]
        )
    return weights


def total(weights: Sequence[Sequence[Form]], places: Sequence[int]) -> Form:
    chosen = [forms[place] for forms, place in zip(weights, places, strict=True)]
    return Form(sum(form.bytes for form in chosen), sum(form.effect for form in chosen))


def combinations(weights: Sequence[Sequence[Form]]) -> list[Form]:
    places = itertools.product(*(range(len(forms)) for forms in weights))
    return [total(weights, each) for each in places]


LARGE_LAST = [[Form(1, 0.5), Form(2, 0.1)], [Form(100, 9.0), Form(200, 0.0)]]


@pytest.mark.parametrize(
    ("weights", "effect", "expected"),
    [
        (CHOICES, 11.0, [0, 0, 0]),
        (CHOICES, 8.0, [1, 0, 0]),
        (CHOICES, 3.2, [2, 0, 0]),
        (CHOICES, 0.1, [2, 2, 2]),
        (CHOICES, 0.0, [2, 2, 2]),  # impossible: the least effect
        (LARGE_LAST, 0.6, [0, 1]),  # a large last step makes a small one needless
    ],
)
def test_fewest_bytes_that_keep_a_bound(
    weights: list[list[Form]], effect: float, expected: list[int]
) -> None:
    assert fewest_bytes(weights, effect) == expected


FREE = [[Form(1, 9.0), Form(2, 0.0)], [Form(1, 0.5), Form(1, 0.4)]]


@pytest.mark.parametrize(
    ("weights", "size", "expected"),
    [
        (CHOICES, 10, [0, 0, 0]),  # impossible: the fewest bytes
        (CHOICES, 71, [0, 0, 0]),
        (CHOICES, 72, [1, 0, 0]),
        (CHOICES, 80, [2, 0, 0]),
        (CHOICES, 140, [2, 2, 2]),
        (CHOICES, 1000, [2, 2, 2]),
        (FREE, 2, [0, 1]),  # what costs no bytes comes first
        ([[Form(1, 0.5), Form(2, 0.5), Form(3, 0.7)]], 10, [0]),  # no nearer form is taken
    ],
)
def test_least_effect_in_a_size(weights: list[list[Form]], size: int, expected: list[int]) -> None:
    assert least_effect(weights, size) == expected


@pytest.mark.parametrize("seed", range(20))
def test_choices_are_at_most_one_step_from_the_best_of_all(seed: int) -> None:
    weights = drawn(seed)
    smallest = total(weights, [0] * len(weights))
    effect, size = smallest.effect * 0.4, int(smallest.bytes * 1.4)
    kept = total(weights, fewest_bytes(weights, effect))
    best = min(form.bytes for form in combinations(weights) if form.effect <= effect)
    assert kept.effect <= effect
    assert kept.bytes <= best + max(forms[2].bytes - forms[0].bytes for forms in weights)
    within = total(weights, least_effect(weights, size))
    least = min(form.effect for form in combinations(weights) if form.bytes <= size)
    assert within.bytes <= size
    assert within.effect <= least + max(forms[0].effect for forms in weights)
