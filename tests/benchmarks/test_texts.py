from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import texts
from texts import Text

CHECKPOINT = Path(__file__).parents[2] / "models" / "pythonic"


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    size=st.integers(1, 12),
)
def test_windows_predict_every_token_but_the_first_once(lengths: list[int], size: int) -> None:
    documents = tuple(tuple(range(100 * n, 100 * n + length)) for n, length in enumerate(lengths))
    text = Text(source="", documents=documents, size_bytes=1, window=size)
    pieces = list(texts.cut(text))
    predicted = [target for piece in pieces for target in piece.targets]
    assert predicted == [token for ids in documents for token in ids[1:]]
    assert len(predicted) == text.predictions
    for piece in pieces:
        assert len(piece.targets) <= len(piece.ids) <= size
        assert piece.targets[-1] == piece.ids[-1] + 1
