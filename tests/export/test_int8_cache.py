"""Bundles with an int8 KV cache, against PyTorch with rounded keys and values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from tests.export import tiny_models
from tests.export.own_module import unusual
from torch import Tensor, nn

import ortolan
from ortolan.export.options import ExportOptions
from ortolan.modeling.config import AlibiPositions, DecoderConfig
from ortolan.modeling.layers import ops, scores
from ortolan.modeling.state import State

INT8 = ExportOptions(cache="int8")
LENGTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model, and the layer whose keys each attention reads, in forward order."""

    module: nn.Module
    reads: Sequence[int]
    forward: Callable[[Tensor], Tensor]


def own_decoder(config: DecoderConfig) -> Source:
    module = tiny_models.decoder(config)
    return Source(module=module, reads=range(len(config.blocks)), forward=module)


def own_module() -> Source:
    module = unusual()
    return Source(module=module, reads=(0, 1, 0), forward=lambda ids: module(ids, State.whole()))


def with_distances() -> DecoderConfig:
    return replace(tiny_models.post_norm(), positions=AlibiPositions())


SOURCES: dict[str, Callable[[], Source]] = {
    "grouped queries": lambda: own_decoder(tiny_models.llama()),
    "learned positions": lambda: own_decoder(tiny_models.gpt2()),
    "a window, half of each head rotated": lambda: own_decoder(tiny_models.mistral()),
    "caps": lambda: own_decoder(tiny_models.qwen2()),
    "norms of keys, and sinks": lambda: own_decoder(tiny_models.modern()),
    "distances": lambda: own_decoder(with_distances()),
    "shared keys, and a state that is replaced": own_module,
}

QUICK = ("norms of keys, and sinks", "shared keys, and a state that is replaced")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SOURCES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    source: Source
    model: ortolan.Decoder
    scales: Sequence[tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    @cache
    def export(name: str) -> Exported:
        source = SOURCES[name]()
        out = tmp_path_factory.mktemp("bundles") / "bundle"
        ortolan.export(source.module, out, options=INT8)
        model = ortolan.load(out, ortolan.Decoder, threads=1)
        return Exported(source=source, model=model, scales=scales_of(out))

    return export


def scales_of(bundle: Path) -> list[tuple[Tensor, Tensor]]:
    """Scales of keys and values, `(K, 1, D)`, per layer."""
    graph = onnx.load(bundle / "decoder.onnx").graph
    found = {
        each.name: torch.from_numpy(numpy_helper.to_array(each).copy())
        for each in graph.initializer
        if each.name.endswith(".scale")
    }
    return [
        (found[f"past_key_values.{i}.key.scale"], found[f"past_key_values.{i}.value.scale"])
        for i in range(len(found) // 2)
    ]


def rounded(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).round().clamp(-128, 127) * scale


def torch_logits(
    case: Exported, ids: Sequence[int], monkeypatch: pytest.MonkeyPatch, *, rounds: bool
) -> NDArray[np.float32]:
    """Logits of PyTorch, with keys and values rounded as in the cache if `rounds`."""
    attend, calls = scores.attend, iter(case.source.reads)

    def attend_rounded(q: Tensor, k: Tensor, v: Tensor, *given: Any, **named: Any) -> Tensor:
        of_keys, of_values = case.scales[next(calls)]
        return attend(q, rounded(k, of_keys), rounded(v, of_values), *given, **named)

    with monkeypatch.context() as patched, torch.inference_mode():
        if rounds:
            patched.setattr(ops, "attend", attend_rounded)
        logits: NDArray[np.float32] = case.source.forward(torch.tensor([ids]))[0].numpy()
    return logits


def random_ids(length: int = LENGTH) -> list[int]:
    ids: list[int] = np.random.default_rng(3).integers(0, 60, length).tolist()
    return ids


def distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return float(np.abs(one - other).max() / np.abs(other).max())


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_pytorch_with_rounded_keys_and_values(
    name: str, exported: Callable[[str], Exported], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, ids = exported(name), random_ids()
    got = case.model.logits(ids)
    near = distance(got, torch_logits(case, ids, monkeypatch, rounds=True))
    far = distance(got, torch_logits(case, ids, monkeypatch, rounds=False))
    assert near < 1e-4
    assert far > 3e-4


def test_cached_chunked_batched_rewound_and_restored_texts_are_the_same_to_the_bit(
    exported: Callable[[str], Exported],
) -> None:
    case, ids = exported("norms of keys, and sinks"), random_ids()
    wanted = case.model.logits(ids)
    with case.model.session() as session:
        chunked = [session.append(ids[start : start + 13]) for start in range(0, LENGTH, 13)]
        session.rewind(20)
        one_by_one = [session.append([token]) for token in ids[20:40]]
        kept = session.snapshot()
    with case.model.session() as other:
        other.restore(kept)
        restored = [other.append([token]) for token in ids[40:]]
    ends = [*range(12, LENGTH, 13), LENGTH - 1]
    assert np.array_equal(chunked, wanted[ends])
    assert np.array_equal(one_by_one, wanted[20:40])
    assert np.array_equal(restored, wanted[40:])
    alone = [case.model.generate(ids[:length], max_new_tokens=12) for length in (3, 9, 31)]
    together = case.model.generate([ids[:length] for length in (3, 9, 31)], max_new_tokens=12)
    assert [each.tokens for each in together] == [each.tokens for each in alone]


@pytest.mark.parametrize("name", QUICK)
def test_saved_and_forked_texts_go_on_as_the_kept_one_to_the_bit(
    name: str, exported: Callable[[str], Exported], tmp_path: Path
) -> None:
    case, ids = exported(name), random_ids()
    kept = case.model.session()
    kept.append(ids[:20])
    kept.append(ids[20:21])
    kept.save(tmp_path / "saved")
    others = (case.model.load_session(tmp_path / "saved"), kept.fork())
    for part in (ids[21:40], ids[40:41], ids[41:]):
        wanted = kept.append(part)
        assert all(np.array_equal(other.append(part), wanted) for other in others)


def test_states_that_grow_are_int8_and_the_others_float(
    exported: Callable[[str], Exported],
) -> None:
    states = exported("shared keys, and a state that is replaced").model.manifest.states
    assert {(state.update, state.dtype) for state in states} == {
        ("append", "int8"),
        ("replace", "float32"),
    }
