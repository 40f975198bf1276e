import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.errors import InputError


@settings(max_examples=8, deadline=None)
@given(text=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20))
def test_a_stream_equals_generate(model: Decoder, text: str) -> None:
    whole = model.generate(text, max_new_tokens=25, stop=["H>", "zz"])
    stream = model.stream(text, max_new_tokens=25, stop=["H>", "zz"])
    pieces = list(stream)
    assert "".join(pieces) == whole.text
    assert all(pieces)
    assert stream.completion.tokens == whole.tokens
    assert stream.completion.finish_reason == whole.finish_reason


def test_text_held_back_for_a_stop_text_comes_out_at_the_end(model: Decoder) -> None:
    whole = model.generate("hello", max_new_tokens=10, ignore_eos=True)
    held = whole.text[-2:] + "never"
    stream = model.stream("hello", max_new_tokens=10, ignore_eos=True, stop=[held])
    assert "".join(stream) == whole.text
    answers = iter([False] * 10 + [True])
    cancelled = model.stream("hello", ignore_eos=True, stop=[held], cancel=lambda: next(answers))
    assert "".join(cancelled) == whole.text


def test_each_piece_takes_one_call_of_the_model(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def count(name: str) -> None:
        method = getattr(Runner, name)

        def counted(*args: Any, **options: Any) -> Any:
            calls.append(name)
            return method(*args, **options)

        monkeypatch.setattr(Runner, name, counted)

    count("chunk")
    count("step")
    stream = model.stream("hello", max_new_tokens=10)
    assert calls == []
    next(stream)
    assert calls == ["chunk"]
    next(stream)
    assert calls == ["chunk", "step"]
    assert stream.prompt_progress == (5, 5)


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
def test_the_memory_of_a_stream_is_released(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    created: list[weakref.ref[Slots]] = []
    make = Slots.__init__

    def note(slots: Slots, *args: Any, **options: Any) -> None:
        created.append(weakref.ref(slots))
        make(slots, *args, **options)

    monkeypatch.setattr(Slots, "__init__", note)
    stream: Iterator[str] | None = model.stream("hello", max_new_tokens=9)
    assert stream is not None
    next(stream)
    assert created[0]() is not None
    gc.disable()
    try:
        if way == "close":
            stream.close()  # type: ignore[attr-defined]
        else:
            stream = None
        assert created[0]() is None
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
