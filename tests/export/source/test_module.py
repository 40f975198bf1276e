"""A user's own module, from PyTorch to a bundle that computes the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.export import tiny_models
from tests.export.own_module import VOCAB, Unusual, unusual
from tests.tiny.tokenizers import of_characters
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


def logits_of(module: nn.Module, ids: Tensor) -> np.ndarray:
    with torch.no_grad():
        logits: Tensor = module(ids[None], ortolan.State.whole())
    return logits[0].numpy()


def assert_greedy(model: ortolan.Decoder, module: nn.Module, prompts: list[list[int]]) -> None:
    """The completions of a list are the module's own most likely tokens."""
    for prompt, completion in zip(prompts, model.generate(prompts, max_new_tokens=12), strict=True):
        ids = list(prompt)
        for _ in range(12):
            ids.append(int(logits_of(module, torch.tensor(ids))[-1].argmax()))
        assert list(completion.tokens) == ids[len(prompt) :]


def test_a_bundle_computes_the_logits_of_the_module(bundle: Path) -> None:
    model = ortolan.load(bundle, ortolan.Decoder)
    for ids in IDS:
        got = model.logits(ids.tolist())
        np.testing.assert_allclose(got, logits_of(unusual(), ids), rtol=1e-4, atol=1e-5)


def test_a_list_of_prompts_is_continued_as_by_the_module(bundle: Path) -> None:
    prompts = [IDS[0, :17].tolist(), IDS[1, :3].tolist(), IDS[2, :9].tolist()]
    assert_greedy(ortolan.load(bundle, ortolan.Decoder), unusual(), prompts)


def test_states_are_found_without_a_declaration() -> None:
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
    of_characters().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7]}')
    model = open_exportable(larger(), tokenizer=tmp_path, max_context=32)
    assert model.tokens.eos == (7,)
    assert model.tokenizer is not None
    assert sorted(model.companions) == ["generation_config.json", "tokenizer.json"]


def larger() -> Unusual:
    """A module that knows all ids of the tokenizer."""
    module = unusual()
    module.embed = nn.Embedding(tiny_models.VOCAB, 32)
    return module


def test_other_weights_have_another_hash() -> None:
    one, other = unusual(), unusual()
    other.taps.data[0, 0] += 1
    digests = {
        open_exportable(module, tokenizer=None, max_context=None).sha256()
        for module in (one, other, unusual())
    }
    assert len(digests) == 2


class Recurrent(nn.Module):
    """One state of fixed size, and no attention."""

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


def test_a_module_without_attention_continues_its_state(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Recurrent().eval()
    ortolan.export(module, tmp_path / "bundle")
    model = ortolan.load(tmp_path / "bundle", ortolan.Decoder)
    assert_greedy(model, module, [[1, 5, 3], [7], [2, 2, 9, 4]])


class Forgetful(nn.Module):
    """Never calls the state."""

    context_length = 8

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        out: Tensor = self.embed(ids)
        return out


class Pooled(Forgetful):
    """Returns one vector for the whole sequence."""

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        return super().forward(ids, state).mean(1)


class Careless(Forgetful):
    """Averages the tokens of the chunk, so a continued sequence gets other logits."""

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        x = super().forward(ids, state)
        state.keep("sum", state.recall("sum", (4,), x) + x.sum(1))
        return x + x.mean(1, keepdim=True)


class Broken(Forgetful):
    """Its forward raises."""

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        return super().forward(ids, state) @ torch.zeros(3, 3)


class RowsSecond(Forgetful):
    """Passes tokens before rows."""

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        x = super().forward(ids, state).transpose(0, 1)[:, None]
        return state.attend(0, x, x, x)[:, 0].transpose(0, 1)


class HeadsThird(Forgetful):
    """Passes heads after tokens."""

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        x = super().forward(ids, state).reshape(*ids.shape, 2, 2)
        return state.attend(0, x, x, x).flatten(2)


class Undecided(Forgetful):
    """Branches on the ids."""

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        x = super().forward(ids, state)
        return x if ids[0, 0] == 5 else 2 * x


class NeverKept(Forgetful):
    """Recalls without keeping."""

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        x = super().forward(ids, state)
        return x + state.recall("sum", (4,), x)[:, None]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (RowsSecond, r"attend: the queries of layer 0 must be \(batch, heads, .* \(3, 1, 1, 4\)"),
        (HeadsThird, r"attend: the queries of layer 0 .* Swap axes"),
        (
            Undecided,
            r"reads numbers of a tensor in `return x if .*` \(test_module.py, line .*where",
        ),
        (NeverKept, "state 'sum' is recalled but never kept"),
        (Forgetful, "state.attend"),
        (Pooled, r"expected logits of shape \(1, 3, V\)"),
        (Broken, r"RuntimeError: .* in `return .* @ torch.zeros.*` \(test_module.py, line \d+"),
    ],
)
def test_a_module_that_cannot_be_continued_is_an_error(module: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_exportable(module(), tokenizer=None, max_context=None)


def test_a_module_whose_steps_compute_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mean in `return x .*\(test_module.py, line \d+"):
        ortolan.export(Careless(), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


class Rare(Forgetful):
    """Uses an operator that ONNX lacks, a scalar parameter, and a choice between booleans."""

    def __init__(self, *, has_maximum: bool) -> None:
        super().__init__()
        self.has_maximum, self.scale = has_maximum, nn.Parameter(torch.tensor(0.4))

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        x = super().forward(ids, state)
        x = x + self.scale * state.attend(0, *[x[:, None]] * 3)[:, 0]
        x = torch.where(torch.where(x > 0, x < 1, True), x, -x)
        return x.cummax(-1).values if self.has_maximum else x


def test_scalar_parameters_and_chosen_booleans_are_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Rare(has_maximum=False).eval()
    ids = [1, 3, 0, 2, 2, 3]
    ortolan.export(module, tmp_path / "bundle")
    logits = ortolan.load(tmp_path / "bundle", ortolan.Decoder).logits(ids)
    want = module(torch.tensor([ids]), ortolan.State.whole())[0]
    np.testing.assert_allclose(logits, want.detach(), rtol=1e-5, atol=1e-6)


def test_an_operator_without_onnx_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        ortolan.export(Rare(has_maximum=True), tmp_path / "bundle")
    message = str(refused.value)
    assert "aten.cummax in `return x.cummax(-1).values if" in message
    assert "(test_module.py, line" in message
    assert "\x1b" not in message


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


class Storing(Differential):
    """Has a constant that is not a buffer, and stores a training loss."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor(0.5)

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        logits = super().forward(ids, state) * self.scale
        self.loss = logits.mean()
        return logits


@pytest.mark.slow
def test_values_wider_than_keys_are_exported_and_stored_tensors_are_not(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, ids = Storing(), torch.randint(11, (40,))
    want = module(ids[None], ortolan.State.whole())[0]  # its loss belongs to a graph
    ortolan.export(module, tmp_path / "bundle")
    got = ortolan.load(tmp_path / "bundle", ortolan.Decoder).logits(ids.tolist())
    np.testing.assert_allclose(got, want.detach(), rtol=1e-4, atol=1e-5)


def test_a_module_needs_a_context_length() -> None:
    module = unusual()
    module.context_length = None  # type: ignore[assignment]
    with pytest.raises(OptionError, match="max_context"):
        open_exportable(module, tokenizer=None, max_context=None)


def test_attention_maps_are_refused(tmp_path: Path) -> None:
    options = ortolan.ExportOptions(attention_maps=True)
    with pytest.raises(OptionError, match="attention_maps"):
        ortolan.export(unusual(), tmp_path / "bundle", options=options)
