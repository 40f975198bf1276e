import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.tiny_decoder import (
    BOS,
    EOS,
    TinyDecoder,
    tokenizer_json,
    write_bundle,
)

from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.errors import (
    InputError,
)
from ortolan.runtime.loading import load


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDecoder:
    return write_bundle(
        tmp_path_factory.mktemp("stream") / "bundle",
        tokenizer=tokenizer_json(),
        tokens=Tokens(bos=BOS, eos=(EOS,)),
    )


@pytest.fixture(scope="module")
def model(tiny: TinyDecoder) -> Decoder:
    return load(tiny.path, Decoder)


@settings(max_examples=8, deadline=None)
@given(text=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20))
def test_a_stream_gives_what_generate_gives(model: Decoder, text: str) -> None:
    whole = model.generate(text, max_new_tokens=25, stop=["H>", "zz"])
    stream = model.stream(text, max_new_tokens=25, stop=["H>", "zz"])
    pieces = list(stream)
    assert "".join(pieces) == whole.text
    assert all(pieces)
    assert stream.completion.tokens == whole.tokens
    assert stream.completion.finish_reason == whole.finish_reason


def test_a_held_back_piece_of_a_stop_text_comes_out_at_the_end(model: Decoder) -> None:
    whole = model.generate("hello", max_new_tokens=10, ignore_eos=True)
    held = whole.text[-2:] + "never"
    stream = model.stream("hello", max_new_tokens=10, ignore_eos=True, stop=[held])
    assert "".join(stream) == whole.text
    answers = iter([False] * 10 + [True])
    cancelled = model.stream("hello", ignore_eos=True, stop=[held], cancel=lambda: next(answers))
    assert "".join(cancelled) == whole.text


def test_a_stream_gives_its_first_piece_before_the_last_step(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    run: Callable[[Runner, Any], None] = Runner.step

    def count(runner: Runner, tokens: Any) -> None:
        runs.append("step")
        run(runner, tokens)

    def count_chunk(runner: Runner, *given: Any, **options: Any) -> Any:
        runs.append("chunk")
        return chunk(runner, *given, **options)

    chunk = Runner.chunk
    monkeypatch.setattr(Runner, "step", count)
    monkeypatch.setattr(Runner, "chunk", count_chunk)
    stream = model.stream("hello", max_new_tokens=10)
    assert runs == []
    next(stream)
    assert runs == ["chunk"]
    next(stream)
    assert runs == ["chunk", "step"]


@pytest.mark.parametrize("steps", [0, 3])
def test_a_closed_stream_is_cancelled(model: Decoder, steps: int) -> None:
    with model.stream("hello", ignore_eos=True) as stream:
        pieces = [next(stream) for _ in range(steps)]
        with pytest.raises(InputError, match="not ended"):
            _ = stream.completion
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.text == "".join(pieces)
    assert list(stream) == []


@pytest.mark.parametrize("way", ["close", "drop"])
def test_the_memory_of_a_stream_comes_back(
    tiny: TinyDecoder, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    made: list[weakref.ref[Slots]] = []
    make = Slots.__init__

    def note(slots: Slots, *args: Any, **options: Any) -> None:
        made.append(weakref.ref(slots))
        make(slots, *args, **options)

    monkeypatch.setattr(Slots, "__init__", note)
    model = load(tiny.path)
    stream: Iterator[str] | None = model.stream("hello", max_new_tokens=9)
    assert stream is not None
    next(stream)
    assert made[0]() is not None
    gc.disable()
    try:
        if way == "close":
            stream.close()  # type: ignore[attr-defined]
        else:
            stream = None
        assert made[0]() is None
    finally:
        gc.enable()


def test_streams_that_take_turns_share_nothing(model: Decoder) -> None:
    texts = ["hello", "worlds"]
    expected = [model.generate(text, max_new_tokens=30, ignore_eos=True).text for text in texts]
    streams = [model.stream(text, max_new_tokens=30, ignore_eos=True) for text in texts]
    written = ["", ""]
    for pieces in zip(*streams, strict=True):
        written = [text + piece for text, piece in zip(written, pieces, strict=True)]
    assert written == expected
