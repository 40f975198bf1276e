import weakref
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.runtime.tiny_decoder import CONTEXT, VOCABULARY, TinyDecoder, assert_close, write_bundle

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.runner import Decoder, feed, prefill
from ortolan.runtime.engine.session import Engine
from ortolan.runtime.engine.step import Step
from ortolan.runtime.errors import ContextLengthError

KINDS = ("unified", "split", "recurrent")

ids = st.integers(0, VOCABULARY - 1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[TinyDecoder, Engine]]:
    folder = tmp_path_factory.mktemp("steps")
    bundles = {
        "unified": write_bundle(folder / "unified"),
        "split": write_bundle(folder / "split", split=True),
        "recurrent": write_bundle(folder / "recurrent", recurrent=True),
    }
    return {kind: (tiny, Engine(open_bundle(tiny.path))) for kind, tiny in bundles.items()}


def random_ids(count: int, seed: int = 0) -> list[int]:
    chosen: list[int] = np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()
    return chosen


def whole(engine: Engine, tokens: list[int]) -> NDArray[np.float32]:
    return feed(engine, engine.cache(), tokens, positions=range(len(tokens)))


@pytest.mark.parametrize("kind", KINDS)
def test_one_call_gives_the_reference_at_every_position(
    tiny: dict[str, tuple[TinyDecoder, Engine]], kind: str
) -> None:
    decoder, engine = tiny[kind]
    tokens = random_ids(70)
    assert_close(whole(engine, tokens), decoder.reference(tokens))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(tokens=st.lists(ids, min_size=1, max_size=40), chunk=st.integers(1, 12))
def test_chunks_give_what_one_call_gives(
    tiny: dict[str, tuple[TinyDecoder, Engine]], kind: str, tokens: list[int], chunk: int
) -> None:
    _, engine = tiny[kind]
    got = prefill(engine, engine.cache(), tokens, chunk=chunk)
    assert got is not None
    assert_close(got, whole(engine, tokens)[-1])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(tokens=st.lists(ids, min_size=2, max_size=40), data=st.data())
def test_decoding_behind_a_prompt_gives_what_one_call_gives(
    tiny: dict[str, tuple[TinyDecoder, Engine]], kind: str, tokens: list[int], data: st.DataObject
) -> None:
    _, engine = tiny[kind]
    expected = whole(engine, tokens)
    prompt = data.draw(st.integers(0, len(tokens) - 1))
    cache = engine.cache()
    if prompt > 0:
        prefill(engine, cache, tokens[:prompt])
    decoder = Decoder(engine, cache)
    for position in range(prompt, len(tokens)):
        logits = decoder.step([tokens[position]], [position + 1])[0]
        assert_close(logits, expected[position])
    assert cache.lengths == [len(tokens)]


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_across_every_growth_of_the_cache_up_to_the_context(
    tiny: dict[str, tuple[TinyDecoder, Engine]], kind: str
) -> None:
    decoder, engine = tiny[kind]
    tokens = random_ids(CONTEXT)
    expected = decoder.reference(tokens)
    cache = engine.cache()
    prefill(engine, cache, tokens[:250])
    stepper, capacities = Decoder(engine, cache), {cache.capacity}
    for position in range(250, CONTEXT):
        logits = stepper.step([tokens[position]], [position + 1])[0]
        capacities.add(cache.capacity)
        assert_close(logits, expected[position])
    assert capacities == {256, 512, 768, CONTEXT}
    with pytest.raises(ContextLengthError, match=f"{CONTEXT}"):
        stepper.step([0], [CONTEXT + 1])
    assert cache.lengths == [CONTEXT]


@settings(max_examples=10, deadline=None)
@given(
    rows=st.lists(st.lists(ids, min_size=1, max_size=20), min_size=2, max_size=4),
    tail=st.lists(ids, min_size=1, max_size=6),
)
def test_ragged_rows_decoded_together_give_what_each_gives_alone(
    tiny: dict[str, tuple[TinyDecoder, Engine]], rows: list[list[int]], tail: list[int]
) -> None:
    _, engine = tiny["unified"]
    cache = engine.cache(batch=len(rows))
    for index, prompt in enumerate(rows):
        prefill(engine, cache, prompt, row=index)
    decoder, lengths = Decoder(engine, cache), list(cache.lengths)
    for count, token in enumerate(tail, start=1):
        lengths = [length + 1 for length in lengths]
        logits = decoder.step([token] * len(rows), lengths).copy()
        for index, prompt in enumerate(rows):
            expected = whole(engine, prompt + tail[:count])[-1]
            assert_close(logits[index], expected)


def test_a_row_fed_its_last_token_again_stays_as_it_is(
    tiny: dict[str, tuple[TinyDecoder, Engine]],
) -> None:
    _, engine = tiny["unified"]
    cache = engine.cache(batch=2)
    prompts = [random_ids(9, seed=1), random_ids(30, seed=2)]
    for index, prompt in enumerate(prompts):
        prefill(engine, cache, prompt, row=index)
    kept = cache.snapshot(row=1)
    decoder = Decoder(engine, cache)
    for length in range(10, 60):  # row 0 also becomes the longer one
        logits = decoder.step([length, prompts[1][-1]], [length, 30])
    assert_close(logits[1], whole(engine, prompts[1])[-1])
    for got, want in zip(cache.snapshot(row=1).buffers, kept.buffers, strict=True):
        assert_close(got, want)


@settings(max_examples=10, deadline=None)
@given(
    tokens=st.lists(ids, min_size=2, max_size=30),
    other=st.lists(ids, min_size=1, max_size=30),
    data=st.data(),
)
def test_a_rewound_row_gives_what_a_fresh_one_gives(
    tiny: dict[str, tuple[TinyDecoder, Engine]],
    tokens: list[int],
    other: list[int],
    data: st.DataObject,
) -> None:
    _, engine = tiny["unified"]
    kept = data.draw(st.integers(0, len(tokens) - 1))
    cache, fresh = engine.cache(), engine.cache()
    prefill(engine, cache, tokens)
    cache.rewind(kept)
    if kept > 0:
        prefill(engine, fresh, tokens[:kept])
    got, expected = prefill(engine, cache, other), prefill(engine, fresh, other)
    assert got is not None
    assert expected is not None
    assert_close(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_row_gives_what_the_kept_one_gives(
    tiny: dict[str, tuple[TinyDecoder, Engine]], kind: str
) -> None:
    _, engine = tiny[kind]
    cache = engine.cache()
    prefill(engine, cache, random_ids(50))
    kept = cache.snapshot()
    expected = prefill(engine, cache, random_ids(300, seed=5))
    assert expected is not None
    prefill(engine, cache, random_ids(90, seed=6))
    cache.restore(kept)
    got = prefill(engine, cache, random_ids(300, seed=5))
    assert got is not None
    np.testing.assert_array_equal(got, expected)


def test_split_graphs_give_what_the_unified_one_gives(
    tiny: dict[str, tuple[TinyDecoder, Engine]],
) -> None:
    rows = []
    for kind in ("unified", "split"):
        _, engine = tiny[kind]
        cache = engine.cache()
        prefill(engine, cache, random_ids(33), chunk=10)
        decoder = Decoder(engine, cache)
        rows.append([decoder.step([5], [length])[0].copy() for length in range(34, 40)])
    np.testing.assert_array_equal(rows[0], rows[1])


def test_prefill_asks_for_cancellation_before_every_chunk_and_keeps_what_was_done(
    tiny: dict[str, tuple[TinyDecoder, Engine]],
) -> None:
    _, engine = tiny["unified"]
    cache, asked = engine.cache(), [False, False, True]
    assert prefill(engine, cache, random_ids(50), chunk=20, cancelled=lambda: asked.pop(0)) is None
    assert cache.lengths == [40]
    assert asked == []


def test_prefill_beyond_the_context_changes_nothing(
    tiny: dict[str, tuple[TinyDecoder, Engine]],
) -> None:
    _, engine = tiny["unified"]
    cache = engine.cache()
    prefill(engine, cache, random_ids(10))
    with pytest.raises(ContextLengthError, match=f"at most {CONTEXT} tokens, got {CONTEXT + 1}"):
        prefill(engine, cache, random_ids(CONTEXT - 9))
    assert (cache.lengths, cache.capacity) == ([10], 256)


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_that_begins_again_gives_what_a_new_one_gives(
    tiny: dict[str, tuple[TinyDecoder, Engine]], kind: str
) -> None:
    _, engine = tiny[kind]
    tokens, used = random_ids(20), Decoder(engine, engine.cache())
    for begun in (0, 300):
        for length in range(1, 260):
            used.step([length % VOCABULARY], [length])
        used.begin(begun)
        assert used.cache.lengths == [0]
        new = Decoder(engine, engine.cache())
        for length, token in enumerate(tokens, start=1):
            got, expected = (decoder.step([token], [length]) for decoder in (used, new))
            np.testing.assert_array_equal(got, expected)


def test_beginning_again_with_more_room_lets_go_of_the_buffers_before(
    tiny: dict[str, tuple[TinyDecoder, Engine]],
) -> None:
    _, engine = tiny["unified"]
    decoder = Decoder(engine, engine.cache())
    decoder.step([1], [1])
    before = weakref.ref(decoder.cache.buffers()[0])
    decoder.begin(256)
    assert before() is not None
    decoder.begin(257)
    assert before() is None
    assert decoder.cache.capacity >= 257


def test_a_step_allocates_nothing_and_binds_once(
    tiny: dict[str, tuple[TinyDecoder, Engine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine = tiny["unified"]
    bound: list[Step] = []
    bind: Callable[..., None] = Step.bind

    def count(step: Step, buffers: list[NDArray[np.float32]]) -> None:
        bound.append(step)
        bind(step, buffers)

    monkeypatch.setattr(Step, "bind", count)
    decoder = Decoder(engine, engine.cache())
    rows = [decoder.step([1], [length]) for length in range(1, 200)]
    assert len(bound) == 1
    assert len({row.ctypes.data for row in rows}) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", [False, True])
def test_a_text_written_at_once_is_that_of_its_steps(
    tiny: dict[str, tuple[TinyDecoder, Engine]], kind: str, ends: bool
) -> None:
    _, engine = tiny[kind]
    stepped, written = (Decoder(engine, engine.cache()) for _ in range(2))
    expected = [7]
    for length in range(1, 300):  # beyond the first capacity
        expected.append(int(stepped.step(expected[-1:], [length])[0].argmin()))
    eos = {expected[120]} if ends else set()
    last = expected.index(expected[120], 1) if ends else 299
    tokens = [7]
    written.write(tokens, lambda logits_V: int(logits_V.argmin()), most=300, eos=eos)
    assert tokens == expected[: last + 1]
    assert written.cache.lengths == [last]
    np.testing.assert_array_equal(
        written.step([5], [last + 1]), engine_step(engine, [*tokens[:-1], 5])
    )


def engine_step(engine: Engine, tokens: list[int]) -> NDArray[np.float32]:
    """Logits behind the last of some tokens, computed one by one."""
    decoder = Decoder(engine, engine.cache())
    for length, token in enumerate(tokens, start=1):
        logits = decoder.step([token], [length])
    return logits


def test_a_text_written_at_once_stops_short_of_the_context(
    tiny: dict[str, tuple[TinyDecoder, Engine]],
) -> None:
    _, engine = tiny["unified"]
    decoder, tokens = Decoder(engine, engine.cache()), [7]
    decoder.write(tokens, lambda _: 3, most=CONTEXT + 1, eos=())
    with pytest.raises(ContextLengthError):
        decoder.write(tokens, lambda _: 3, most=CONTEXT + 2, eos=())
    assert decoder.cache.lengths == [CONTEXT]
    decoder.write(tokens, lambda _: 3, most=1, eos=())  # there are more than that
    assert len(tokens) == CONTEXT + 1
