"""A user's own module, from PyTorch to a bundle that gives the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.export import tiny_models
from tests.export.own_module import VOCAB, Unusual, unusual
from torch import Tensor, nn

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.source import open_exportable
from ortolan.export.source.module import without_memory
from ortolan.modeling.errors import ConfigError

IDS = torch.randint(VOCAB, (3, 40), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "bundle"
    ortolan.export(unusual(), path)
    return path


def reference(ids: Tensor) -> np.ndarray:
    with torch.no_grad():
        logits: Tensor = unusual()(ids[None], ortolan.State.whole())
    return logits[0].numpy()


def test_a_bundle_gives_the_logits_of_the_module(bundle: Path) -> None:
    model = ortolan.load(bundle, ortolan.Decoder)
    for ids in IDS:
        got = model.logits(ids.tolist())
        np.testing.assert_allclose(got, reference(ids), rtol=1e-4, atol=1e-5)


def test_a_list_gives_what_the_module_chooses(bundle: Path) -> None:
    model = ortolan.load(bundle, ortolan.Decoder)
    prompts = [IDS[0, :17].tolist(), IDS[1, :3].tolist(), IDS[2, :9].tolist()]
    for prompt, completion in zip(prompts, model.generate(prompts, max_new_tokens=20), strict=True):
        text = list(prompt)
        for _ in range(20):
            text.append(int(reference(torch.tensor(text))[-1].argmax()))
        assert list(completion.tokens) == text[len(prompt) :]


def test_states_are_found_and_not_declared() -> None:
    model = open_exportable(unusual(), tokenizer=None, max_context=None)
    assert [(state.name, state.shape, state.update) for state in model.states("float32")] == [
        ("0.key", ("batch", 2, "capacity", 16), "append"),
        ("0.value", ("batch", 2, "capacity", 16), "append"),
        ("1.key", ("batch", 1, "capacity", 24), "append"),
        ("1.value", ("batch", 1, "capacity", 24), "append"),
        ("taps", ("batch", 32, 2), "replace"),
    ]
    assert (model.vocab_size, model.context_length, model.kind) == (VOCAB, 64, "decoder")


def test_an_export_neither_copies_nor_changes_the_module() -> None:
    module = unusual()
    before = {name: p.data_ptr() for name, p in module.named_parameters()}
    empty = without_memory(module)
    assert all(p.is_meta for p in empty.parameters())
    assert {name: p.data_ptr() for name, p in module.named_parameters()} == before
    assert dict(empty.named_buffers()).keys() == dict(module.named_buffers()).keys()


def test_the_tokenizer_and_its_special_tokens_come_from_a_folder(tmp_path: Path) -> None:
    tiny_models.tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7]}')
    model = open_exportable(larger(), tokenizer=tmp_path, max_context=32)
    assert model.tokens.eos == (7,)
    assert model.tokenizer is not None
    assert sorted(model.companions) == ["generation_config.json", "tokenizer.json"]


def larger() -> Unusual:
    """One that knows all ids of the tokenizer."""
    module = unusual()
    module.embed = nn.Embedding(tiny_models.VOCAB, 32)
    return module


def test_other_weights_are_another_model() -> None:
    one, other = unusual(), unusual()
    other.taps.data[0, 0] += 1
    digests = {
        open_exportable(module, tokenizer=None, max_context=None).sha256()
        for module in (one, other, unusual())
    }
    assert len(digests) == 2


class Recurrent(nn.Module):
    """One state that is replaced, and no attention."""

    context_length = 16

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.step = nn.Linear(4, 4)

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        x: Tensor = self.embed(ids)
        sums = x.cumsum(1) + state.recall("sum", (4,), x)[:, None]
        state.keep("sum", sums[:, -1])
        return torch.nn.functional.linear(self.step(sums), self.embed.weight)


def test_a_module_without_attention_continues_its_texts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Recurrent().eval()
    ortolan.export(module, tmp_path / "bundle")
    model = ortolan.load(tmp_path / "bundle", ortolan.Decoder)
    prompts = [[1, 5, 3], [7], [2, 2, 9, 4]]
    for prompt, completion in zip(prompts, model.generate(prompts, max_new_tokens=6), strict=True):
        text = list(prompt)
        for _ in range(6):
            with torch.no_grad():
                logits = module(torch.tensor([text]), ortolan.State.whole())
            text.append(int(logits[0, -1].argmax()))
        assert list(completion.tokens) == text[len(prompt) :]


class Forgetful(nn.Module):
    """It asks the state for nothing."""

    context_length = 8

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        out: Tensor = self.embed(ids)
        return out


class Pooled(Forgetful):
    """It gives one vector for the whole text."""

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        return super().forward(ids, state).mean(1)


class Careless(Forgetful):
    """It gives other logits for a text that is continued: it averages all that it is shown."""

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        x = super().forward(ids, state)
        state.keep("sum", x.sum(1))
        return x + x.mean(1, keepdim=True)


class Broken(Forgetful):
    """Its forward does not work."""

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        return super().forward(ids, state) @ torch.zeros(3, 3)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Forgetful, "state.attend"),
        (Pooled, r"expected logits of shape \(1, 3, V\)"),
        (Broken, "RuntimeError"),
    ],
)
def test_a_module_that_cannot_be_continued_is_an_error(module: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_exportable(module(), tokenizer=None, max_context=None)


def test_a_module_whose_steps_give_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mean in `return x .*\(test_module.py, line \d+"):
        ortolan.export(Careless(), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


class Differential(nn.Module):
    """Two softmaxes over one set of values that are wider than keys (Ye et al. 2024)."""

    context_length = 48

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 32)
        self.qk = nn.Linear(32, 64)
        self.value = nn.Linear(32, 32)

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        x: Tensor = self.embed(ids)
        q, k = self.qk(x).unflatten(-1, (8, 8)).transpose(1, 2).chunk(2, 1)
        v = self.value(x).unflatten(-1, (2, 16)).transpose(1, 2)
        one = state.attend(0, q[:, :2], k[:, :2], v)
        other = state.attend(1, q[:, 2:], k[:, 2:], v)
        x = x + (one - 0.4 * other).transpose(1, 2).flatten(2)
        return torch.nn.functional.linear(x, self.embed.weight)


class Noting(Differential):
    """It has a constant that is no buffer, and notes a loss of its training."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor(0.5)

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        logits = super().forward(ids, state) * self.scale
        self.loss = logits.mean()
        return logits


def test_tensors_that_a_module_notes_are_no_part_of_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, ids = Noting(), torch.tensor([[1, 2, 3]])
    want = module(ids, ortolan.State.whole())[0]  # its loss belongs to a graph
    ortolan.export(module, tmp_path / "bundle")
    got = ortolan.load(tmp_path / "bundle", ortolan.Decoder).logits([1, 2, 3])
    np.testing.assert_allclose(got, want.detach(), rtol=1e-4, atol=1e-5)


def test_values_wider_than_keys_are_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Differential().eval()
    ortolan.export(module, tmp_path / "bundle")
    model = ortolan.load(tmp_path / "bundle", ortolan.Decoder)
    ids = torch.randint(11, (1, 40))
    with torch.no_grad():
        want = module(ids, ortolan.State.whole())[0].numpy()
    np.testing.assert_allclose(model.logits(ids[0].tolist()), want, rtol=1e-4, atol=1e-5)


def test_a_module_has_to_say_how_much_fits() -> None:
    module = unusual()
    module.context_length = None  # type: ignore[assignment]
    with pytest.raises(OptionError, match="max_context"):
        open_exportable(module, tokenizer=None, max_context=None)


def test_maps_of_attention_are_refused(tmp_path: Path) -> None:
    options = ortolan.ExportOptions(attention_maps=True)
    with pytest.raises(OptionError, match="attention_maps"):
        ortolan.export(unusual(), tmp_path / "bundle", options=options)
