from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

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


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("def name(größe):\n%\n    return größe % 2\n", encoding="utf-8")
    second.write_text("import os\n" * 20, encoding="utf-8")
    return [first, second]


def test_windows_are_spread_from_the_first_token_to_the_last(files: list[Path]) -> None:
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    whole = "def name(größe):\n    return größe % 2\n" + "import os\n" * 20
    ids = tuple(tokenizer.encode(whole, add_special_tokens=False).ids)
    text = texts.spread(CHECKPOINT, files, windows=3, window=8)
    first, middle, last = text.documents
    assert first == ids[:9]
    assert last == ids[-9:]
    start = round((len(ids) - 9) / 2)
    assert middle == ids[start : start + 9]
    assert [len(piece.targets) for piece in texts.cut(text)] == [8, 8, 8]
    spoken = [tokenizer.decode(list(document[1:])) for document in text.documents]
    assert text.size_bytes == sum(len(part.encode()) for part in spoken)


def test_text_shorter_than_a_window_is_refused(files: list[Path]) -> None:
    with pytest.raises(
        ValueError, match=r"--text: at least 1001 tokens are needed, but there are \d+"
    ):
        texts.spread(CHECKPOINT, files, windows=3, window=1000)
