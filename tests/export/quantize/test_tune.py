"""Training of the scales of rounded weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.export import tiny_models
from tests.export.models_of_kinds import opened
from tests.export.own_module import Unusual, unusual
from tests.modeling import kinds
from torch import Tensor, nn
from torch.func import functional_call

from ortolan.export import streamed
from ortolan.export.errors import ExportError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.progress import Progress, silent
from ortolan.export.quantize import tune
from ortolan.export.quantize.blocks import Codes, dequantize
from ortolan.export.quantize.calibrate import calibrated_weights
from ortolan.export.quantize.candidates import Candidates
from ortolan.export.quantize.effects import Reference
from ortolan.export.quantize.tune import Student
from ortolan.export.scheme import Scheme
from ortolan.modeling.config import EmbeddingHead, LearnedPositions, SinusoidalPositions
from ortolan.modeling.state import State

SCHEME = Scheme(bits=4, group=32)

SCHEMES = {
    "symmetric": SCHEME,
    "asymmetric": Scheme(bits=4, group=32, symmetric=False),
    "padded": Scheme(bits=4, group=64),
}


def texts(count: int, *, first: int, length: int = 24, below: int = 31) -> list[Tensor]:
    random = torch.Generator().manual_seed(first)
    return [torch.randint(0, below, (length,), generator=random) for _ in range(count)]


MODELS: Mapping[str, tuple[Callable[[], nn.Module], Sequence[str]]] = {
    "decoder": (lambda: tiny_models.decoder(tiny_models.llama()), ("ids",)),
    "encoder": (
        lambda: kinds.encoder(
            kinds.encoder_config(SinusoidalPositions(), head=EmbeddingHead(pooling=("mean",)))
        ),
        ("sources",),
    ),
    "encoder-decoder": (
        lambda: kinds.seq2seq(kinds.seq2seq_config(LearnedPositions())),
        ("sources", "ids"),
    ),
    "own module": (unusual, ("ids",)),
}


def inputs_of(sides: Sequence[str], count: int) -> Inputs:
    of_sides = {side: texts(count, first=place) for place, side in enumerate(sides)}
    return Inputs(sources=of_sides.get("sources", ()), ids=of_sides.get("ids", ()))


class Rounded:
    """A model, its weights in 4 bits or, unless `trained` is in their names, in 8."""

    def __init__(
        self, module: nn.Module, inputs: Inputs, folder: Path, scheme: Scheme, trained: str = ""
    ) -> None:
        self.model: Exportable = opened(module)
        self.names = [n for n, p in self.model.module.named_parameters() if p.dim() == 2]
        exact = replace(scheme, bits=8)
        self.schemes = {name: scheme if trained in name else exact for name in self.names}
        self.folder = folder
        self.candidates = Candidates(folder, self.model.weights)
        plan = {name: (own,) for name, own in self.schemes.items()}
        for weight in calibrated_weights(self.model, plan, inputs):
            self.candidates.add(weight)

    def codes(self, name: str) -> Codes:
        rows = self.model.weights.shape(name)[0]
        return self.candidates.codes(name, self.schemes[name], 0, rows)

    def tune(self, inputs: Inputs, *, steps: int, progress: Progress = silent) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tune, "steps_on", lambda *_: steps)
            data = self.candidates, self.schemes, inputs, self.folder
            tune.train_scales(self.model, *data, progress)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("read_bytes", [streamed.READ_BYTES, 500])
def test_gradients_are_those_of_pytorch(
    scheme: str, read_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "READ_BYTES", read_bytes)
    module = tiny_models.decoder(tiny_models.llama())
    (ids,) = texts(1, first=5)
    made = Rounded(module, Inputs(ids=[ids]), tmp_path, SCHEMES[scheme], "blocks.")
    trained = [name for name in made.names if name.startswith("blocks.")]
    student = Student(made.model, made.candidates, made.schemes)
    assert student.exponents.keys() == set(trained)
    weighting = torch.linspace(-1, 1, made.model.vocab_size)
    got = student.output(lambda: made.model.forward(None, ids))
    (got * weighting).sum().backward()  # type: ignore[no-untyped-call]

    values = {name: dequantize(made.codes(name)) for name in made.names}
    factors = {name: torch.ones(made.codes(name).scales.shape).requires_grad_() for name in trained}
    group = SCHEMES[scheme].group
    for name, factor in factors.items():
        columns = values[name].shape[1]
        values[name] = values[name] * factor.repeat_interleave(group, 1)[:, :columns]
    expected = functional_call(module, values, (ids[None],))[0]
    (expected * weighting).sum().backward()

    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    for name, factor in factors.items():
        torch.testing.assert_close(student.exponents[name].grad, factor.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_training_brings_outputs_closer_and_keeps_codes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "RATE", 1e-2)
    monkeypatch.setattr(tune, "TOKENS", 64)
    make, sides = MODELS[kind]
    inputs = inputs_of(sides, 6)
    made = Rounded(make(), inputs, tmp_path, SCHEME)
    judge = Reference(made.model, inputs, tmp_path / "judge")
    (before,) = judge.distances([made.candidates.instead(made.schemes)])
    known = {name: made.codes(name) for name in made.names}
    methods = {name: made.candidates.weight(name, SCHEME).method for name in made.names}

    made.tune(inputs, steps=20)

    (after,) = judge.distances([made.candidates.instead(made.schemes)])
    assert after < 0.95 * before
    for name, codes in known.items():
        weight = made.candidates.weight(name, SCHEME)
        changed = not torch.equal(made.codes(name).scales, codes.scales)
        assert weight.method == ("tuned" if changed else methods[name])
        for part in weight.parts:
            assert torch.equal(part.codes.values, codes.values)
            assert torch.equal(part.codes.scales, made.codes(name).scales)
    assert any(made.candidates.weight(name, SCHEME).method == "tuned" for name in made.names)


def test_only_weights_in_4_bits_are_trained_and_always_alike(tmp_path: Path) -> None:
    scales: list[dict[str, Tensor]] = []
    inputs = Inputs(ids=texts(6, first=1))
    for run in ("first", "second"):
        (tmp_path / run).mkdir()
        module = tiny_models.decoder(tiny_models.llama())
        name = "blocks.0.feed_forward.up.weight"
        made = Rounded(module, inputs, tmp_path / run, SCHEME, name)
        first = {name: made.codes(name).scales for name in made.names}
        made.tune(inputs, steps=tune.LEAST_STEPS)
        scales.append({name: made.codes(name).scales for name in made.names})
        changed = [n for n in made.names if not torch.equal(first[n], scales[-1][n])]
        assert changed == [name]
    for name, values in scales[0].items():
        assert torch.equal(values, scales[1][name])


@pytest.mark.parametrize("stops", [(1,), (3, 5, 16), (15, 16)])
def test_interrupted_training_continues_to_the_same_scales(
    stops: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "WRITE_S", 0.0)
    monkeypatch.setattr(tune, "TOKENS", 24)
    inputs, told = Inputs(ids=texts(6, first=1)), list[int]()

    def made(name: str) -> Rounded:
        (tmp_path / name).mkdir(exist_ok=True)
        module = tiny_models.decoder(tiny_models.llama())
        return Rounded(module, inputs, tmp_path / name, SCHEME)

    whole = made("whole")
    whole.tune(inputs, steps=tune.LEAST_STEPS)
    for stop in stops:

        def interrupt(step: str, done: int, total: int, what: str = "", stop: int = stop) -> None:
            told.append(done if step == "train scales" else 0)
            if told[-1] == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            made("parts").tune(inputs, steps=tune.LEAST_STEPS, progress=interrupt)
    parts = made("parts")
    parts.tune(inputs, steps=tune.LEAST_STEPS)
    assert [step for step in told if step] == [*range(1, stops[-1] + 1)]
    for name in whole.names:
        assert torch.equal(parts.codes(name).scales, whole.codes(name).scales)


class Undifferentiable(Unusual):
    """A function without gradients."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, ids: Tensor, state: State) -> Tensor:
        with torch.set_grad_enabled(self.how != "no_grad"):
            logits = super().forward(ids, state).exp()
            if self.how == "in place":
                logits += 1
            return logits


@pytest.mark.parametrize(
    ("how", "reason"),
    [("no_grad", "does not require grad"), ("in place", "modified by an inplace operation")],
)
def test_a_model_without_gradients_is_refused(how: str, reason: str, tmp_path: Path) -> None:
    inputs = Inputs(ids=texts(2, first=1))
    made = Rounded(Undifferentiable(how), inputs, tmp_path, SCHEME)
    with pytest.raises(ExportError, match=rf"{reason}.*--effort normal"):
        made.tune(inputs, steps=tune.LEAST_STEPS)


def test_steps_take_minutes_or_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(tiny_models.decoder(tiny_models.llama()))
    names = [name for name, p in model.module.named_parameters() if p.dim() == 2]
    weights = sum(p.numel() for _, p in model.module.named_parameters() if p.dim() == 2)
    assert tune.steps_on(8 * tune.TOKENS, model, names) == 8 * tune.EPOCHS
    assert tune.steps_on(tune.TOKENS, model, names) == 0  # three steps change nothing
    monkeypatch.setattr(tune, "MOST_WORK", 20 * weights * tune.TOKENS)
    assert tune.steps_on(8 * tune.TOKENS, model, names) == 20
    monkeypatch.setattr(tune, "MOST_WORK", 15 * weights * tune.TOKENS)
    assert tune.steps_on(8 * tune.TOKENS, model, names) == 0
    assert tune.steps_on(8 * tune.TOKENS, model, []) == 0
    assert "too long" in (tune.obstacle(8 * tune.TOKENS, model, names) or "")
    monkeypatch.undo()
    assert tune.steps_on(8 * tune.TOKENS, replace(model, takes_one=True), names) == 0
    assert tune.obstacle(8 * tune.TOKENS, model, names) is None
    assert "512 tokens are too few" in (tune.obstacle(512, model, names) or "")
    assert "every weight keeps" in (tune.obstacle(8 * tune.TOKENS, model, []) or "")
