"""`Seq2Seq`: batches, beams, streams and rejections. Parity is in test_seq2seq_parity.py."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal

from ortolan.runtime import (
    InputError,
    ManifestError,
    MemoryPlanError,
    NumericError,
    Sampling,
    Seq2Seq,
    open_bundle,
)
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.threads import SMALL_BYTES, chosen_threads, physical_cores, step_threads
from ortolan.runtime.generation.beam_search import Beams, BeamSequence
from ortolan.runtime.generation.drafts import PromptLookup
from ortolan.runtime.generation.request import Request

SOURCE = [5, 40, 7, 31, 8]

Changed = Callable[..., Seq2Seq]


@pytest.fixture(scope="module")
def bundle(exported: Callable[[str], Path]) -> Bundle:
    return open_bundle(exported("marian") / "bundle")


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return Engine(bundle, threads=1)


@pytest.fixture(scope="module")
def model(bundle: Bundle, engine: Engine) -> Seq2Seq:
    return Seq2Seq(bundle, engine)


@pytest.fixture(scope="module")
def changed(bundle: Bundle, engine: Engine) -> Changed:
    """The same model with changes to its manifest, or to the tokens of the manifest."""

    def change(tokens: dict[str, Any] | None = None, **fields: Any) -> Seq2Seq:
        if tokens is not None:
            fields["tokens"] = msgspec.structs.replace(bundle.manifest.tokens, **tokens)
        manifest = msgspec.structs.replace(bundle.manifest, **fields)
        return Seq2Seq(Bundle(path=bundle.path, manifest=manifest, graphs=bundle.graphs), engine)

    return change


# --- results ----------------------------------------------------------------------------------


def test_text_gets_the_special_tokens_of_the_tokenizer(model: Seq2Seq) -> None:
    assert model.tokenizer is not None
    by_text = model.generate("a text", max_new_tokens=8)
    by_ids = model.generate(model.tokenizer.encode("a text"), max_new_tokens=8)
    assert by_text.tokens == by_ids.tokens
    assert by_text.timings.prompt_tokens == len("a text") + 1
    ended = by_text.tokens[-1] in model.manifest.tokens.eos
    visible = by_text.tokens[:-1] if ended else by_text.tokens
    assert by_text.text == model.tokenizer.decode(visible)


def test_beams_return_the_best_sequence_and_on_request_others(model: Seq2Seq) -> None:
    best = model.generate(SOURCE, beams=4, max_new_tokens=8)
    ranked = model.generate(SOURCE, beams=4, n_best=4, max_new_tokens=8)
    assert (ranked.tokens, ranked.text, ranked.score) == (best.tokens, best.text, best.score)
    assert ranked.score is not None
    assert len({ranked.tokens, *(other.tokens for other in ranked.alternatives)}) == 4
    assert best.alternatives == ()
    nothing: list[str] = []
    assert model.generate(nothing) == model.generate(nothing, beams=3) == []


def test_a_request_does_not_depend_on_earlier_or_concurrent_ones(model: Seq2Seq) -> None:
    sources = [SOURCE, [50] * 9, [6, 7]]

    def tokens() -> list[Any]:
        return [
            model.generate(source, beams=beams, max_new_tokens=8).tokens
            for beams in (1, 2, 4)
            for source in sources
        ]

    expected = tokens()
    model.generate([[9, 9, 9], SOURCE * 3], beams=2, max_new_tokens=8)
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda _: tokens(), range(3))) == [expected] * 3


def test_a_small_translator_uses_one_thread_by_default(bundle: Bundle) -> None:
    manifest = bundle.manifest
    (name,) = manifest.weights
    files = tuple(
        msgspec.structs.replace(file, size=SMALL_BYTES + 1) if file.name == name else file
        for file in manifest.files
    )
    larger = msgspec.structs.replace(manifest, files=files)
    assert chosen_threads(None, manifest) == Engine(bundle).threads == 1
    assert (chosen_threads(3, manifest), step_threads(3, manifest)) == (3, 1)
    assert step_threads(3, larger) == 3
    used = {
        role: session.get_session_options().intra_op_num_threads
        for role, session in Engine(bundle, threads=2)._sessions.items()
    }
    assert used == {"encoder": 2, "decoder": 1}
    assert chosen_threads(None, larger) == physical_cores()
    decoder = msgspec.structs.replace(manifest, kind="decoder")
    assert chosen_threads(None, decoder) == physical_cores()


# --- forced and suppressed tokens -------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
def test_a_request_may_choose_the_first_token(changed: Changed, beams: int) -> None:
    model = changed({"eos": (), "forced_first": 60})
    assert model.tokenizer is not None
    (letter,) = model.tokenizer.encode("e", add_special_tokens=False)
    numpy_letter: Any = np.int64(letter)
    for first, token in ((numpy_letter, letter), ("e", letter), (None, 60)):
        batch = model.generate([SOURCE, SOURCE], beams=beams, max_new_tokens=4, first=first)
        assert [done.tokens[0] for done in batch] == [token, token]
    forced = changed({"eos": (), "forced_first": 60, "forced_last": 2})
    assert forced.generate(SOURCE, beams=beams, max_new_tokens=1).tokens == (2,)
    done = forced.generate(SOURCE, beams=beams, max_new_tokens=6)
    assert (done.tokens[0], done.tokens[-1]) == (60, 2)
    stream = model.stream(SOURCE, max_new_tokens=4, first="e")
    list(stream)
    assert stream.completion.tokens[0] == letter


# --- streams and cancellation -----------------------------------------------------------------


def test_a_stream_returns_the_text_of_generate_in_pieces(model: Seq2Seq) -> None:
    whole = model.generate("some text", max_new_tokens=10)
    stream = model.stream("some text", max_new_tokens=10)
    pieces = list(stream)
    assert "".join(pieces) == whole.text
    assert len(pieces) > 1
    assert stream.completion.tokens == whole.tokens
    assert stream.completion.timings.prompt_tokens == len("some text") + 1


@pytest.mark.parametrize("beams", [1, 3])
def test_cancelling_keeps_what_there_is(changed: Changed, beams: int) -> None:
    model = changed({"eos": ()})
    answers = iter([False] * 4 + [True] * 9)
    done = model.generate(SOURCE, beams=beams, max_new_tokens=20, cancel=lambda: next(answers))
    assert done.finish_reason == "cancelled"
    assert 0 < len(done.tokens) < 20
    event = threading.Event()
    event.set()
    nothing = model.generate(SOURCE, beams=beams, cancel=event)
    assert (nothing.finish_reason, nothing.tokens, nothing.text) == ("cancelled", (), "")


# --- rejections -------------------------------------------------------------------------------


def test_ids_of_a_source_belong_to_its_vocabulary(changed: Changed) -> None:
    model = changed(source=TextSource(max_tokens=40, vocab_size=50))
    assert model.generate([49], max_new_tokens=2).tokens
    with pytest.raises(InputError, match="50"):
        model.generate([49, 50])


INVALID: list[dict[str, Any]] = [
    *({"beams": beams} for beams in (0, 65, True)),
    {"beam": 2},
    {"max_tokens": 5},
    {"n_best": 2},
    {"length_penalty": 2.0},
    {"early_stopping": True},
    {"beams": 2, "n_best": 3},
    {"beams": 2, "length_penalty": float("nan")},
    {"beams": 2, "length_penalty": 11},
    {"beams": 2, "early_stopping": "always"},
    {"beams": 2, "temperature": 0.5},
    {"beams": 2, "stop_tokens": [5]},
    {"beams": 2, "sampling": Sampling()},
    {"beams": 2, "stop": ["a"]},
    {"beams": 2, "prompt_logprobs": 0},
    {"beams": 2, "ignore_eos": True},
    {"prompt_logprobs": 0},
    {"draft": PromptLookup()},
    {"max_new_tokens": 0},
    {"max_new_tokens": 40},
    {"cancel": 3},
    {"temperature": -1.0},
]


@pytest.mark.parametrize("options", INVALID, ids=lambda options: f"{options}"[:50])
def test_an_option_that_does_not_apply_is_refused(
    model: Seq2Seq, options: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: model.generate(SOURCE, **options)) == snapshot


def test_a_manifest_needs_a_start_token(changed: Changed) -> None:
    with pytest.raises(ManifestError, match="start token"):
        changed({"start": None})


# --- failures and memory ----------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 2])
def test_logits_that_are_not_finite_name_the_step(
    model: Seq2Seq, beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    run = Runner.step

    def poisoned(runner: Runner, tokens: Any) -> None:
        run(runner, tokens)
        steps.append(1)
        if len(steps) == 3:
            runner.logits_BV[...] = np.nan

    monkeypatch.setattr(Runner, "step", poisoned)
    with pytest.raises(NumericError, match="step 3"):
        model.generate(SOURCE, beams=beams, max_new_tokens=8, cancel=lambda: False)


@pytest.mark.parametrize("beams", [1, 4])
def test_memory_is_checked_before_anything_is_computed(
    model: Seq2Seq, memory_left: Callable[[int], None], beams: int
) -> None:
    read = len(SOURCE) * model.manifest.state_bytes("source")
    written = beams * 10 * model.manifest.state_bytes("append")
    memory_left(read + written + beams * 4 * model.manifest.vocab_size)

    assert model.generate(SOURCE, beams=beams, max_new_tokens=9).tokens
    with pytest.raises(MemoryPlanError, match=f"{beams} x 11 tokens"):
        model.generate(SOURCE, beams=beams, max_new_tokens=10)
    with pytest.raises(MemoryPlanError):
        model.generate([SOURCE, SOURCE], beams=beams, max_new_tokens=9)


# --- beams where transformers is no reference --------------------------------------------------


def small_search(beams: int) -> BeamSequence:
    request = Request(prompt=[3], prompt_tokens=1, limit=4, eos=frozenset({0}))
    return BeamSequence(request, Beams(beams=beams), tokenizer=None)


def test_ties_go_to_the_first_beam_and_the_lowest_id() -> None:
    search = small_search(2)
    search.advance(np.zeros((2, 6), np.float32))
    assert (search.next_tokens, search.parents) == ([1, 2], [0, 0])
    search.advance(np.zeros((2, 6), np.float32))
    assert (search.next_tokens, search.parents) == ([1, 2], [0, 0])


def test_a_vocabulary_smaller_than_the_candidates_is_searched_whole() -> None:
    search = small_search(3)
    while not search.is_done:
        search.advance(np.log(np.array([[0.2, 0.5, 0.3]] * 3, np.float32)))
    best = search.best(1)[0]
    assert best.tokens == (1, 1, 1, 1)
    assert best.score == pytest.approx(math.log(0.5), abs=1e-6)


def test_an_unfinished_search_returns_hypotheses_before_beams() -> None:
    search = small_search(2)
    assert search.best(2) == []
    search.advance(np.log(np.array([[0.4, 0.35, 0.2, 0.05]] * 2, np.float32)))
    assert [one.tokens for one in search.best(3)] == [(0,), (1,), (2,)]
    assert not search.is_done
