"""The choice of the attention kernel, and the chunks that bound its memory."""

import os
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.runtime.serving.faults import failing
from tests.runtime.tiny_decoder import TinyDecoder

from ortolan.runtime import Decoder, load, open_bundle
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.engine import attention_kernels, ort_session
from ortolan.runtime.engine.attention_kernels import (
    FEWEST,
    GRID,
    SCORE_BYTES,
    chunk_tokens,
    kernel_choice,
    query_heads,
    score_bytes,
)
from ortolan.runtime.engine.memory_plan import plan_memory
from ortolan.runtime.graph.summary import AttentionNode

SWITCH = "ORT_GQA_DISABLE_FLASH_ATTENTION"


@pytest.fixture
def bundle(tiny: TinyDecoder) -> Bundle:
    return open_bundle(tiny.path)


@pytest.mark.parametrize("heads", [1, 9, 32, 128])
@pytest.mark.parametrize("behind", [0, 100, 4096, 100_000])
def test_the_scores_of_a_call_stay_small(heads: int, behind: int) -> None:
    tokens = chunk_tokens(heads, behind)
    assert FEWEST <= tokens <= GRID
    taken = score_bytes(heads, tokens, behind + tokens)
    assert taken <= SCORE_BYTES or tokens == FEWEST
    more = score_bytes(heads, tokens + 1, behind + GRID)
    assert tokens == GRID or more > SCORE_BYTES, "cut smaller than it has to be"


def test_heads_are_those_of_the_widest_attention(bundle: Bundle) -> None:
    said = {node.attributes["num_heads"] for node in bundle.graphs["decoder"].attention}
    assert {query_heads(bundle.graphs.values(), bundle.manifest.states)} == said
    held = {state.shape[1] for state in bundle.manifest.states}
    assert {query_heads([], bundle.manifest.states)} == held
    assert query_heads([], []) == 1
    linear = AttentionNode(
        name="", operator="com.microsoft::LinearAttention", attributes={"q_num_heads": 4096}
    )
    graphs = [replace(graph, attention=(linear,)) for graph in bundle.graphs.values()]
    assert query_heads(graphs, []) == 1  # it has no scores


def test_small_chunks_compute_the_same_prompt(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = load(bundle.path, Decoder, threads=1), [7 * index % 50 for index in range(60)]
    whole = model.session().append(ids)
    monkeypatch.setattr(attention_kernels, "SCORE_BYTES", 1)
    with failing(lambda _: False) as calls:
        in_parts = model.session().append(ids)
    assert calls() == 4, "16, 16, 16 and 12 tokens"
    np.testing.assert_allclose(in_parts, whole, rtol=0, atol=1e-5)


def test_the_memory_plan_counts_the_scores(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def workspace(device: str = "cpu") -> int:
        return plan_memory(bundle.manifest, bundle.graphs, context=64, device=device).workspace

    heads = query_heads(bundle.graphs.values(), bundle.manifest.states)
    counted = workspace()
    monkeypatch.setattr("ortolan.runtime.engine.memory_plan.score_bytes", lambda *_: 0)
    assert counted - workspace() == score_bytes(heads, 64, 64)
    assert workspace("cuda") < workspace()


def test_the_switch_is_set_while_any_thread_opens_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(kernel_choice(whole_scores=True))
        second.enter_context(kernel_choice(whole_scores=True))
        first.close()
        assert os.environ[SWITCH] == "1"
    assert SWITCH not in os.environ
    with suppress(KeyError), kernel_choice(whole_scores=True):
        raise KeyError
    assert SWITCH not in os.environ
    monkeypatch.setenv(SWITCH, "0")
    with kernel_choice(whole_scores=True):
        assert os.environ[SWITCH] == "0", "the user's own choice"
    assert os.environ[SWITCH] == "0"


@pytest.mark.parametrize("first", [True, False])
def test_sessions_with_the_other_kernel_wait(monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    seen: list[str | None] = []

    def open_other() -> None:
        with kernel_choice(whole_scores=not first):
            seen.append(os.environ.get(SWITCH))

    other = threading.Thread(target=open_other)
    with kernel_choice(whole_scores=first):
        other.start()
        other.join(0.05)
        assert seen == []
    other.join(60)
    assert seen == [None if first else "1"]
    assert SWITCH not in os.environ


def test_both_kernels_compute_the_same(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, seen, original = [], [], ort_session.OrtSession

    def watched(*args: Any, **options: Any) -> Any:
        seen.append(os.environ.get(SWITCH))
        return original(*args, **options)

    monkeypatch.setattr(ort_session, "OrtSession", watched)
    for value in ("0", "1"):
        monkeypatch.setenv(SWITCH, value)
        logits.append(load(bundle.path, Decoder, threads=1).logits(range(48)))
    np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=1e-5)
    monkeypatch.delenv(SWITCH)
    load(bundle.path, Decoder, threads=1)
    assert seen == ["0", "1", "1"], "without the user's choice, the one of whole scores"
    assert SWITCH not in os.environ
