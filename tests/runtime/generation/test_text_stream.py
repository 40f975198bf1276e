import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.serving.faults import failing

from ortolan.runtime.decoder import Decoder
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


def test_each_piece_takes_one_call_of_the_model(model: Decoder) -> None:
    with failing(lambda _: False) as calls:
        stream = model.stream("hello", max_new_tokens=10)
        next(stream)
        assert calls() == 1
        next(stream)
        assert calls() == 2
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
