"""`ortolan transcribe` on files and on a sound that comes through a pipe."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import error_line
from tests.runtime.transcription.tiny_moonshine import write_moonshine
from tests.runtime.transcription.tiny_wav2vec2 import write_wav2vec2
from tests.runtime.transcription.tiny_whisper import RATE, sound, write_whisper

import ortolan
from ortolan.cli import cli
from ortolan.runtime import Encoder, InputError, Seq2Seq, Transcript, open_bundle
from ortolan.runtime.inspect.card import model_card

WRITERS = {"whisper": write_whisper, "wav2vec2": write_wav2vec2, "moonshine": write_moonshine}

SECONDS = {"whisper": 2.7, "wav2vec2": 1.7, "moonshine": 3.7}
"""Length of the sound next to each bundle."""


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Export a tiny model, once, and put a sound next to the bundle."""

    @cache
    def export(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        WRITERS[name](folder / "source")
        options = ortolan.ExportOptions(proof="quick")
        ortolan.export(folder / "source", folder / "bundle", options=options)
        soundfile.write(folder / "bundle.wav", sound(SECONDS[name]), RATE, subtype="FLOAT")
        return folder / "bundle"

    return export


@pytest.fixture
def bundle(bundle_of: Callable[[str], Path]) -> Path:
    return bundle_of("whisper")


@pytest.fixture
def spelling(bundle_of: Callable[[str], Path]) -> Path:
    """A bundle with CTC."""
    return bundle_of("wav2vec2")


@pytest.fixture
def transcript(bundle: Path) -> Transcript:
    return ortolan.load(bundle, Seq2Seq).transcribe(f"{bundle}.wav", language="de")


def run(*arguments: object, data: bytes = b"") -> str:
    result = CliRunner().invoke(cli, ["transcribe", *map(str, arguments)], input=data)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_a_file_is_printed_with_times(bundle: Path, transcript: Transcript) -> None:
    lines = run(bundle, f"{bundle}.wav", "--language", "de").splitlines()
    spoken = [segment for segment in transcript.segments if segment.text]
    assert [line.split(maxsplit=2)[2] for line in lines] == [own.text for own in spoken]
    assert [float(line.split()[0]) for line in lines] == pytest.approx(
        [segment.start for segment in spoken]
    )


def test_subtitles_and_json(bundle: Path, transcript: Transcript) -> None:
    path, german = f"{bundle}.wav", ("--language", "de")
    assert run(bundle, path, *german, "--srt") == transcript.srt
    assert run(bundle, path, *german, "--vtt") == transcript.vtt
    printed = json.loads(run(bundle, path, *german, "--json"))
    assert printed["language"] == "de"
    assert [own["text"] for own in printed["segments"]] == [own.text for own in transcript.segments]
    translated = run(bundle, path, *german, "--translate")
    assert translated != run(bundle, path, *german)


def test_a_pipe_is_transcribed_while_it_is_written(bundle: Path) -> None:
    samples = (sound(2.5) * 32767).astype("<i2")
    command = [sys.executable, "-m", "ortolan", "transcribe", str(bundle), "-", "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        half = samples[: int(1.5 * RATE)].tobytes()
        process.stdin.write(half[:777])  # an odd number of bytes
        process.stdin.write(half[777:])
        process.stdin.flush()
        first = json.loads(process.stdout.readline())  # before the sound has ended
        process.stdin.write(samples[int(1.5 * RATE) :].tobytes())
        process.stdin.close()
        others = [json.loads(line) for line in process.stdout]
    model = ortolan.load(bundle, Seq2Seq)
    heard = list(model.listen([samples]))
    assert [own["tokens"] for own in (first, *others)] == [list(own.tokens) for own in heard]


def test_a_pipe_of_another_rate_is_resampled_as_a_whole(bundle: Path) -> None:
    doubled = np.repeat(sound(2.0), 2)
    model = ortolan.load(bundle, Seq2Seq)
    whole = list(model.listen([doubled], rate=2 * RATE))
    parts = list(model.listen(np.array_split(doubled, 37), rate=2 * RATE))
    assert whole == parts
    printed = run(
        bundle, "-", "--rate", 2 * RATE, "--json", data=(doubled * 32767).astype("<i2").tobytes()
    )
    assert len(printed.splitlines()) > 1


def test_a_bundle_with_ctc_transcribes_a_file(spelling: Path) -> None:
    path = f"{spelling}.wav"
    expected = ortolan.load(spelling, Encoder).transcribe(path)
    lines = run(spelling, path).splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines] == [own.text for own in expected.segments]
    assert run(spelling, path, "--srt") == expected.srt
    assert run(spelling, path, "--vtt") == expected.vtt
    printed = json.loads(run(spelling, path, "--json"))
    words = [word for segment in printed["segments"] for word in segment["words"]]
    assert [word["text"] for word in words] == expected.text.split()
    assert printed["language"] is None


@pytest.mark.parametrize("words", ["a.wav --language de", "a.wav --translate", "-"])
def test_what_ctc_cannot_do_is_refused(
    spelling: Path, words: str, snapshot: SnapshotAssertion
) -> None:
    assert error_line("transcribe", spelling, *words.split()) == snapshot


@pytest.mark.parametrize(
    "name", ["whisper", "wav2vec2", pytest.param("moonshine", marks=pytest.mark.slow)]
)
def test_the_card_of_a_model_that_transcribes_says_so(
    name: str, bundle_of: Callable[[str], Path]
) -> None:
    card = model_card([open_bundle(bundle_of(name))])
    assert '\npipeline_tag: "automatic-speech-recognition"\n' in card
    assert "ortolan transcribe bundle talk.mp3" in card


@pytest.mark.slow
def test_a_bundle_of_waves_transcribes_a_file_and_a_pipe(
    bundle_of: Callable[[str], Path],
) -> None:
    moonshine = bundle_of("moonshine")
    path = f"{moonshine}.wav"
    (segment,) = ortolan.load(moonshine, Seq2Seq).transcribe(path).segments
    (line,) = run(moonshine, path).splitlines()
    assert line.split(maxsplit=2)[1:] == ["3.70", segment.text]
    samples = (sound(3.7) * 32767).astype("<i2").tobytes()
    (heard,) = run(moonshine, "-", "--json", data=samples).splitlines()
    assert json.loads(heard)["end"] == pytest.approx(segment.end)
    for option in (("--language", "de"), ("--translate",)):
        result = CliRunner().invoke(cli, ["transcribe", str(moonshine), path, *option])
        assert isinstance(result.exception, InputError)
