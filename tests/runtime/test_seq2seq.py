"""Requests to a translator: what is checked, streamed, cancelled and kept."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import ortolan
from ortolan.runtime import (
    BundleKindError,
    ContextLengthError,
    Decoder,
    Encoder,
    InputError,
    ManifestError,
    MemoryPlanError,
    NumericError,
    Sampling,
    SamplingError,
    Seq2Seq,
    TokenizerError,
    open_bundle,
)
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import TextSource
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.threads import SMALL_BYTES, chosen_threads, physical_cores, step_threads
from ortolan.runtime.errors import ForkedError

SOURCE = [5, 40, 7, 31, 8]


@pytest.fixture(scope="module")
def bundle(exported: Callable[[str], Path]) -> Bundle:
    return open_bundle(exported("marian") / "bundle")


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return Engine(bundle, threads=1)


@pytest.fixture
def model(bundle: Bundle, engine: Engine) -> Seq2Seq:
    return Seq2Seq(bundle, engine)


def with_tokens(bundle: Bundle, engine: Engine, **changes: Any) -> Seq2Seq:
    """The same model, whose manifest says something else of its tokens."""
    tokens = msgspec.structs.replace(bundle.manifest.tokens, **changes)
    manifest = msgspec.structs.replace(bundle.manifest, tokens=tokens)
    return Seq2Seq(Bundle(path=bundle.path, manifest=manifest, graphs=bundle.graphs), engine)


# --- what comes out ---------------------------------------------------------------------------


def test_a_text_has_the_tokenizers_special_tokens_around_it(model: Seq2Seq) -> None:
    assert model.tokenizer is not None
    by_text = model.generate("a text", max_new_tokens=8)
    assert (
        by_text.tokens == model.generate(model.tokenizer.encode("a text"), max_new_tokens=8).tokens
    )
    assert by_text.timings.prompt_tokens == len("a text") + 1
    ended = by_text.tokens[-1] in model.manifest.tokens.eos
    visible = by_text.tokens[:-1] if ended else by_text.tokens
    assert by_text.text == model.tokenizer.decode(visible)


def test_beams_give_their_texts_best_first_with_the_score_of_the_first(model: Seq2Seq) -> None:
    best = model.generate(SOURCE, beams=4, max_new_tokens=8)
    several = model.generate(SOURCE, beams=4, n_best=4, max_new_tokens=8)
    assert (several.tokens, several.text, several.score) == (best.tokens, best.text, best.score)
    assert several.score is not None
    scores = [several.score, *(other.score for other in several.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert len({several.tokens, *(other.tokens for other in several.alternatives)}) == 4
    assert best.alternatives == ()


def test_the_score_is_the_mean_log_probability_of_the_tokens(model: Seq2Seq) -> None:
    found = model.generate(SOURCE, beams=3, max_new_tokens=8)
    fed = [model.manifest.tokens.start, *found.tokens[:-1]]
    logits = model.logits(SOURCE, fed).astype(np.float64)  # type: ignore[arg-type]
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = logs[np.arange(len(found.tokens)), found.tokens].mean()
    assert found.score == pytest.approx(expected, abs=1e-5)


def test_the_same_request_after_another_shape_gives_the_same(model: Seq2Seq) -> None:
    def ask(beams: int) -> tuple[int, ...]:
        return model.generate(SOURCE, beams=beams, max_new_tokens=8).tokens

    first = [ask(1), ask(4)]
    model.generate([[9, 9, 9], SOURCE * 3], beams=2, max_new_tokens=8)
    assert [ask(1), ask(4)] == first


def test_threads_that_share_a_model_get_equal_texts(model: Seq2Seq) -> None:
    sources = [SOURCE, [50] * 9, [6, 7]]
    expected = [model.generate(source, beams=2, max_new_tokens=8).tokens for source in sources]
    got: list[list[tuple[int, ...]]] = []

    def work() -> None:
        for _ in range(5):
            got.append([model.generate(s, beams=2, max_new_tokens=8).tokens for s in sources])

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert got == [expected] * 15


def test_seeds_of_a_list_count_up(model: Seq2Seq) -> None:
    def sampled(seed: int) -> Sampling:
        return Sampling(temperature=3.0, seed=seed)

    together = model.generate([SOURCE] * 3, sampling=sampled(5), max_new_tokens=12)
    alone = [
        model.generate(SOURCE, sampling=sampled(5 + index), max_new_tokens=12) for index in range(3)
    ]
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    assert len({each.tokens for each in together}) == 3


def test_a_small_translator_runs_on_one_thread_unless_asked(bundle: Bundle) -> None:
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
    asked = Engine(bundle, threads=2)
    used = {
        role: session.get_session_options().intra_op_num_threads
        for role, session in asked._sessions.items()
    }
    assert used == {"encoder": 2, "decoder": 1}
    assert chosen_threads(None, larger) == physical_cores()
    assert chosen_threads(None, msgspec.structs.replace(manifest, kind="decoder")) == (
        physical_cores()
    )


# --- tokens that are forced or ruled out -------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
def test_forced_and_suppressed_tokens(bundle: Bundle, engine: Engine, beams: int) -> None:
    free = with_tokens(bundle, engine, eos=()).generate(SOURCE, beams=beams, max_new_tokens=6)
    second = free.tokens[1]
    model = with_tokens(
        bundle, engine, eos=(), forced_first=60, forced_last=2, suppressed=(second,)
    )
    found = model.generate(SOURCE, beams=beams, max_new_tokens=6)
    assert (found.tokens[0], found.tokens[-1]) == (60, 2)
    assert second not in found.tokens[1:-1]


def test_the_last_token_is_forced_before_the_first(bundle: Bundle, engine: Engine) -> None:
    model = with_tokens(bundle, engine, forced_first=60, forced_last=2)
    for beams in (1, 2):
        assert model.generate(SOURCE, beams=beams, max_new_tokens=1).tokens == (2,)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_request_may_choose_the_first_token(
    bundle: Bundle, engine: Engine, model: Seq2Seq, beams: int
) -> None:
    assert model.tokenizer is not None
    (letter,) = model.tokenizer.encode("e", add_special_tokens=False)
    forced = with_tokens(bundle, engine, eos=(), forced_first=60)
    numbered: Any = np.int64(letter)
    for first, token in ((numbered, letter), ("e", letter), (None, 60)):
        found = forced.generate([SOURCE, SOURCE], beams=beams, max_new_tokens=4, first=first)
        assert [text.tokens[0] for text in found] == [token, token]
    stream = forced.stream(SOURCE, max_new_tokens=4, first="e")
    list(stream)
    assert stream.completion.tokens[0] == letter


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("some text", "has 9"),
        ("", "has 0"),
        (1000, "first"),
        (True, "first must be"),
    ],
)
def test_a_first_token_that_is_none_is_an_error(model: Seq2Seq, first: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.generate(SOURCE, first=first)


# --- streams and cancellation ------------------------------------------------------------------


def test_a_stream_gives_the_text_of_generate_in_pieces(model: Seq2Seq) -> None:
    whole = model.generate("some text", max_new_tokens=10)
    stream = model.stream("some text", max_new_tokens=10)
    pieces = list(stream)
    assert "".join(pieces) == whole.text
    assert len(pieces) > 1
    assert stream.completion.tokens == whole.tokens
    assert stream.completion.timings.prompt_tokens == len("some text") + 1


def test_a_stop_text_ends_a_text_and_is_no_part_of_it(bundle: Bundle, engine: Engine) -> None:
    model = with_tokens(bundle, engine, eos=())
    whole = model.generate("some text", max_new_tokens=10)
    stop = whole.text[4]
    cut = model.generate("some text", max_new_tokens=10, stop=[stop])
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize("beams", [1, 3])
def test_cancelling_gives_what_there_is(bundle: Bundle, engine: Engine, beams: int) -> None:
    model = with_tokens(bundle, engine, eos=())
    asked = iter([False] * 4 + [True] * 9)
    found = model.generate(SOURCE, beams=beams, max_new_tokens=20, cancel=lambda: next(asked))
    assert found.finish_reason == "cancelled"
    assert 0 < len(found.tokens) < 20
    event = threading.Event()
    event.set()
    nothing = model.generate(SOURCE, beams=beams, cancel=event)
    assert (nothing.finish_reason, nothing.tokens, nothing.text) == ("cancelled", (), "")


# --- requests that are refused -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "error", "said"),
    [
        ("", InputError, "no token"),
        ([[5], []], InputError, "no token"),
        ([5, 97], InputError, "ids from 0 to 96"),
        ([5] * 41, ContextLengthError, "41 tokens"),
        ("a" * 40, ContextLengthError, "41 tokens"),
        (7, InputError, "token ids"),
        ([[5]] * 4097, InputError, "at most 4096"),
    ],
)
def test_a_source_that_is_none_is_refused(
    model: Seq2Seq, source: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        model.generate(source)


def test_an_empty_list_is_a_batch_of_none(model: Seq2Seq) -> None:
    nothing: list[str] = []
    assert model.generate(nothing) == model.generate(nothing, beams=3) == []
    with pytest.raises(InputError, match="single source"):
        model.stream([])


def test_ids_of_a_source_are_those_of_its_own_vocabulary(bundle: Bundle, engine: Engine) -> None:
    source = TextSource(max_tokens=40, vocab_size=50)
    manifest = msgspec.structs.replace(bundle.manifest, source=source)
    model = Seq2Seq(Bundle(path=bundle.path, manifest=manifest, graphs=bundle.graphs), engine)
    assert model.generate([49], max_new_tokens=2).tokens
    with pytest.raises(InputError, match="ids from 0 to 49"):
        model.generate([49, 50])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beams": 0}, "beams must be"),
        ({"beams": 65}, "beams"),
        ({"beams": True}, "beams"),
        ({"beams": 2, "n_best": 3}, "n_best must be"),
        ({"n_best": 2}, "n_best needs"),
        ({"length_penalty": 2.0}, "length_penalty needs"),
        ({"early_stopping": True}, "early_stopping needs"),
        ({"beams": 2, "length_penalty": float("nan")}, "length_penalty must be"),
        ({"beams": 2, "length_penalty": 11}, "length_penalty must be"),
        ({"beams": 2, "early_stopping": "always"}, "early_stopping must be"),
        ({"beams": 2, "temperature": 0.5}, "temperature does not apply"),
        ({"beams": 2, "stop_tokens": [5]}, "stop_tokens does not apply"),
        ({"max_tokens": 5}, "max_tokens.*max_new_tokens"),
        ({"beams": 2, "sampling": Sampling()}, "sampling does not apply"),
        ({"beams": 2, "stop": ["a"]}, "stop does not apply"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 40}, "max_new_tokens to 39"),
        ({"cancel": 3}, "cancel must be"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_an_option_that_means_nothing_is_refused(
    model: Seq2Seq, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((InputError, SamplingError), match=said):
        model.generate(SOURCE, **options)


def test_lists_are_refused_where_one_source_is_meant(model: Seq2Seq) -> None:
    several: Any = [SOURCE]
    for call in (lambda: model.stream(several), lambda: model.logits(several, [1])):
        with pytest.raises(InputError, match="single source"):
            call()


@pytest.mark.parametrize(
    ("ids", "said"), [([], "no token"), ([97], "0 to 96"), ([1] * 41, "40 tokens")]
)
def test_logits_of_no_text_are_refused(model: Seq2Seq, ids: list[int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        model.logits(SOURCE, ids)


def test_a_bundle_without_a_tokenizer_takes_ids_alone(bundle: Bundle, engine: Engine) -> None:
    manifest = msgspec.structs.replace(bundle.manifest, tokenizer=None)
    model = Seq2Seq(Bundle(path=bundle.path, manifest=manifest, graphs=bundle.graphs), engine)
    assert model.generate(SOURCE, max_new_tokens=3).text == ""
    assert model.generate(SOURCE, beams=2, max_new_tokens=3).text == ""
    for call in (
        lambda: model.generate("text"),
        lambda: model.generate(SOURCE, stop=["a"]),
        lambda: model.stream(SOURCE),
    ):
        with pytest.raises(TokenizerError, match="no tokenizer"):
            call()


def test_a_bundle_of_another_kind_is_refused(bundle: Bundle) -> None:
    for kind in (Decoder, Encoder):
        with pytest.raises(BundleKindError, match=r"got an encoder-decoder.*Seq2Seq"):
            ortolan.load(bundle.path, kind)
    with pytest.raises(InputError, match="kind must be"):
        ortolan.load(bundle.path, Bundle)  # type: ignore[type-var]
    assert isinstance(ortolan.load(bundle.path, Seq2Seq), Seq2Seq)


def test_a_manifest_without_a_start_token_is_refused(bundle: Bundle, engine: Engine) -> None:
    with pytest.raises(ManifestError, match="start token"):
        with_tokens(bundle, engine, start=None)


# --- failures ----------------------------------------------------------------------------------


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


def test_a_translator_of_another_process_is_refused(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ortolan.load(bundle.path, Seq2Seq, threads=1)
    monkeypatch.setattr(model._engine, "is_stranded", True)
    for call in (lambda: model.generate(SOURCE), lambda: model.logits(SOURCE, [1])):
        with pytest.raises(ForkedError):
            call()


# --- memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 4])
def test_sources_and_texts_that_do_not_fit_are_refused_before_anything_is_computed(
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
