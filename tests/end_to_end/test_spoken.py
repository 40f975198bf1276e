"""models/spoken transcribes speech, in bundles as in PyTorch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

import ortolan
import spoken.quality
from ortolan.runtime import Seq2Seq

pytestmark = pytest.mark.slow

MODEL = Path(__file__).parents[2] / "models" / "spoken"

TALK = MODEL / "talk.flac"

SAID = {
    (0.60, 2.28): "nine green cows jump on the hill",
    (3.00, 4.71): "five yellow frogs jump in the garden",
    (5.05, 6.78): "one black horse runs on the hill",
    (6.88, 8.45): "nine red cows jump here",
    (9.18, 11.10): "two blue birds run under the tree",
    (11.44, 13.00): "eight blue ducks run at home",
}
"""Times and phrases that `python -m spoken.phrases` prints."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("spoken") / "bundle"
    ortolan.export(MODEL, out)
    return out


@pytest.fixture(scope="module")
def samples() -> NDArray[np.float32]:
    read: NDArray[np.float32] = soundfile.read(TALK, dtype="float32")[0]
    return read


def test_a_talk_is_written_down_with_its_times(bundle: Path) -> None:
    heard = ortolan.load(bundle, Seq2Seq).transcribe(TALK).segments
    assert [segment.text for segment in heard] == list(SAID.values())
    for segment, (start, end) in zip(heard, SAID, strict=True):
        assert segment.start == pytest.approx(start, abs=0.1)
        assert segment.end == pytest.approx(end, abs=0.1)


def test_the_text_is_that_of_pytorch(bundle: Path, samples: NDArray[np.float32]) -> None:
    sounds = [samples, samples[16_000:], samples[:100_000]]
    expected = spoken.quality.by_pytorch(MODEL)(sounds)
    heard = spoken.quality.by_bundle(str(bundle))(sounds)
    assert [[own.text for own in one] for one in heard] == [
        [own.text for own in one] for one in expected
    ]


def test_a_talk_is_heard_while_it_is_spoken(bundle: Path, samples: NDArray[np.float32]) -> None:
    model = ortolan.load(bundle, Seq2Seq)
    heard = [segment.text for segment in model.listen(np.array_split(samples, 50)) if segment.text]
    wrong = spoken.quality.word_errors(" ".join(SAID.values()).split(), " ".join(heard).split())
    assert wrong <= 2


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_few_bits_hear_the_same(precision: Any, tmp_path: Path) -> None:
    ortolan.export(MODEL, tmp_path / "bundle", precision=precision)
    heard = ortolan.load(tmp_path / "bundle", Seq2Seq).transcribe(TALK)
    wrong = spoken.quality.word_errors(" ".join(SAID.values()).split(), heard.text.split())
    assert wrong <= 2
