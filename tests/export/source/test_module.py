"""A user's own module, from PyTorch to a bundle that computes the same."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from syrupy.assertion import SnapshotAssertion
from tests.export import tiny_models
from tests.export.models_of_kinds import opened
from tests.export.own_module import VOCAB, unusual
from tests.refusals import refusal
from tests.tiny.tokenizers import of_characters
from torch import Tensor, nn

import ortolan
from ortolan.export.options import ExportOptions
from ortolan.export.source import open_exportable
from ortolan.export.source.module import without_memory

IDS = torch.randint(VOCAB, (3, 40), generator=torch.Generator().manual_seed(0))

Change = Callable[[Tensor, ortolan.State], Tensor]


class Small(nn.Module):
    """An embedding and a function of its vectors and the state."""

    context_length = 16

    def __init__(self, change: Change) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 4)
        self.change = change

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        return self.change(self.embed(ids), state)


def logits_of(module: nn.Module, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        logits: Tensor = module(torch.tensor([ids]), ortolan.State.whole())
    return logits[0].numpy()


def assert_greedy(model: ortolan.Decoder, module: nn.Module, prompts: list[list[int]]) -> None:
    """The completions of a list are the module's own most likely tokens."""
    for prompt, completion in zip(prompts, model.generate(prompts, max_new_tokens=12), strict=True):
        ids = list(prompt)
        for _ in range(12):
            ids.append(int(logits_of(module, ids)[-1].argmax()))
        assert list(completion.tokens) == ids[len(prompt) :]


def test_a_bundle_computes_what_the_module_computes(tmp_path: Path) -> None:
    ortolan.export(unusual(), tmp_path / "bundle")
    model = ortolan.load(tmp_path / "bundle", ortolan.Decoder)
    for ids in IDS.tolist():
        np.testing.assert_allclose(
            model.logits(ids), logits_of(unusual(), ids), rtol=1e-4, atol=1e-5
        )
    prompts = [IDS[0, :17].tolist(), IDS[1, :3].tolist(), IDS[2, :9].tolist()]
    assert_greedy(model, unusual(), prompts)


def test_states_are_found_without_a_declaration() -> None:
    model = opened(unusual())
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
    module = unusual()
    module.embed = nn.Embedding(tiny_models.VOCAB, 32)  # for all ids of the tokenizer
    model = open_exportable(module, ExportOptions(tokenizer=tmp_path), max_context=32)
    assert model.tokens.eos == (7,)
    assert model.tokenizer is not None
    assert sorted(model.companions) == ["generation_config.json", "tokenizer.json"]


def test_other_weights_have_another_hash() -> None:
    other = unusual()
    other.taps.data[0, 0] += 1
    assert len({opened(module).origin.sha256() for module in (unusual(), other, unusual())}) == 2


# --- modules of other forms -----------------------------------------------------------------------


class Recurrent(Small):
    """One state of fixed size, and no attention."""

    def __init__(self) -> None:
        super().__init__(self.summed)
        self.step = nn.Linear(4, 4)

    def summed(self, x: Tensor, state: ortolan.State) -> Tensor:
        sums = x.cumsum(1) + state.recall("sum", (4,), x)[:, None]
        state.keep("sum", sums[:, -1])
        return F.linear(self.step(sums), self.embed.weight)


def test_a_module_without_attention_continues_its_state(tmp_path: Path) -> None:
    module = Recurrent().eval()
    ortolan.export(module, tmp_path / "bundle")
    model = ortolan.load(tmp_path / "bundle", ortolan.Decoder)
    assert_greedy(model, module, [[1, 5, 3], [7], [2, 2, 9, 4]])


class Rare(Small):
    """A scalar parameter and a choice between booleans."""

    def __init__(self) -> None:
        super().__init__(self.chosen)
        self.scale = nn.Parameter(torch.tensor(0.4))

    def chosen(self, x: Tensor, state: ortolan.State) -> Tensor:
        x = x + self.scale * state.attend(0, *[x[:, None]] * 3)[:, 0]
        return torch.where(torch.where(x > 0, x < 1, True), x, -x)


class Storing(nn.Module):
    """Two softmaxes over one set of values that are wider than keys (Ye et al. 2024).

    Has a constant that is not a buffer, and stores a training loss.
    """

    context_length = 48

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 32)
        self.qk = nn.Linear(32, 64)
        self.value = nn.Linear(32, 32)
        self.scale = torch.tensor(0.5)

    def forward(self, ids: Tensor, state: ortolan.State) -> Tensor:
        x: Tensor = self.embed(ids)
        q, k = torch.unflatten(self.qk(x), -1, (8, 8)).transpose(1, 2).chunk(2, 1)
        v = torch.unflatten(self.value(x), -1, (2, 16)).transpose(1, 2)
        one = state.attend(0, q[:, :2], k[:, :2], v)
        other = state.attend(1, q[:, 2:], k[:, 2:], v)
        x = x + (one - 0.4 * other).transpose(1, 2).flatten(2)
        logits = F.linear(x, self.embed.weight) * self.scale
        self.loss = logits.mean()
        return logits


@pytest.mark.parametrize("kind", [Rare, pytest.param(Storing, marks=pytest.mark.slow)])
def test_unusual_tensors_are_exported(kind: Callable[[], nn.Module], tmp_path: Path) -> None:
    module, ids = kind().eval(), [1, 3, 0, 2, 2, 3] * 2
    module(torch.tensor([ids]), ortolan.State.whole())  # a stored loss belongs to a graph
    ortolan.export(module, tmp_path / "bundle")
    got = ortolan.load(tmp_path / "bundle", ortolan.Decoder).logits(ids)
    np.testing.assert_allclose(got, logits_of(module, ids), rtol=1e-4, atol=1e-5)


# --- refused --------------------------------------------------------------------------------------


def tokens_before_rows(x: Tensor, state: ortolan.State) -> Tensor:
    y = x.transpose(0, 1)[:, None]
    return state.attend(0, y, y, y)[:, 0].transpose(0, 1)


def heads_after_tokens(x: Tensor, state: ortolan.State) -> Tensor:
    y = torch.unflatten(x, -1, (2, 2))
    return state.attend(0, y, y, y).flatten(2)


def mean_of_the_chunk(x: Tensor, state: ortolan.State) -> Tensor:
    state.keep("sum", state.recall("sum", (4,), x) + x.sum(1))
    return x + x.mean(1, keepdim=True)


def without_onnx(x: Tensor, state: ortolan.State) -> Tensor:
    x = x + state.attend(0, *[x[:, None]] * 3)[:, 0]
    return x.cummax(-1).values


def branch(x: Tensor, state: ortolan.State) -> Tensor:
    return x if x[0, 0, 0] > 0 else 2 * x


def never_kept(x: Tensor, state: ortolan.State) -> Tensor:
    return x + state.recall("sum", (4,), x)[:, None]


def stateless(x: Tensor, state: ortolan.State) -> Tensor:
    return x


def pooled(x: Tensor, state: ortolan.State) -> Tensor:
    return x.mean(1)


def raising(x: Tensor, state: ortolan.State) -> Tensor:
    raise RuntimeError("no such layer")


REFUSED = (
    *(tokens_before_rows, heads_after_tokens, mean_of_the_chunk, without_onnx, branch, never_kept),
    *(stateless, pooled, raising),
)


@pytest.mark.parametrize("change", REFUSED)
def test_a_module_that_cannot_be_continued_is_refused_with_its_line(
    change: Change, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    text = refusal(lambda: ortolan.export(Small(change), tmp_path / "bundle"), tmp_path)
    text = re.sub(r"line \d+", "line ...", text)
    assert re.sub(r"by \S+ \(roundings: at most [^)]+\)", "by ...", text) == snapshot
    assert not (tmp_path / "bundle").exists()


def without_a_context() -> Any:
    module = unusual()
    module.context_length = None  # type: ignore[assignment]
    return opened(module)


OPTIONS: dict[str, Callable[[], object]] = {
    "no context": without_a_context,
    "attention maps": lambda: ortolan.export(
        unusual(), "unwritten", options=ortolan.ExportOptions(attention_maps=True)
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_a_module_cannot_follow_are_refused(
    name: str, snapshot: SnapshotAssertion
) -> None:
    assert refusal(OPTIONS[name]) == snapshot
