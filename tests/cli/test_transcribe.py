"""`ortolan transcribe` on files and on a sound that comes through a pipe."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from tests.runtime import tiny_decoder
from tests.runtime.transcription.tiny_moonshine import write_moonshine
from tests.runtime.transcription.tiny_wav2vec2 import write_wav2vec2
from tests.runtime.transcription.tiny_whisper import RATE, sound, write_whisper

import ortolan
from ortolan.cli import cli
from ortolan.runtime import BundleKindError, Encoder, InputError, Seq2Seq, Transcript


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    write_whisper(folder / "source")
    options = ortolan.ExportOptions(proof="quick")
    ortolan.export(folder / "source", folder / "bundle", options=options)
    soundfile.write(folder / "bundle.wav", sound(2.7), RATE, subtype="FLOAT")
    return folder / "bundle"


@pytest.fixture(scope="module")
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.wav", "--srt", "--json"), "exclude each other"),
        (("-", "--srt"), "need a file"),
        (("a.wav", "--rate", "8000"), "--rate is for -"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    bundle: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = CliRunner().invoke(cli, ["transcribe", str(bundle), *arguments])
    assert result.exit_code == 2
    assert message in result.output


@pytest.fixture(scope="module")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with CTC."""
    folder = tmp_path_factory.mktemp("wav2vec2")
    write_wav2vec2(folder / "source")
    ortolan.export(folder / "source", folder / "bundle")
    soundfile.write(folder / "bundle.wav", sound(1.7), RATE, subtype="FLOAT")
    return folder / "bundle"


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.wav", "--language", "de"), "--language and --translate are for models that write"),
        (("a.wav", "--translate"), "--language and --translate are for models that write"),
        (("-",), "save the sound first"),
    ],
)
def test_what_ctc_cannot_do_is_refused(
    spelling: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = CliRunner().invoke(cli, ["transcribe", str(spelling), *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.fixture(scope="module")
def moonshine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of waves and a decoder."""
    folder = tmp_path_factory.mktemp("moonshine")
    write_moonshine(folder / "source")
    options = ortolan.ExportOptions(proof="quick")
    ortolan.export(folder / "source", folder / "bundle", options=options)
    soundfile.write(folder / "bundle.wav", sound(3.7), RATE, subtype="FLOAT")
    return folder / "bundle"


def test_a_bundle_of_waves_transcribes_a_file_and_a_pipe(moonshine: Path) -> None:
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


def test_a_decoder_is_refused(tmp_path: Path) -> None:
    tiny_decoder.write_bundle(tmp_path / "decoder")
    result = CliRunner().invoke(cli, ["transcribe", str(tmp_path / "decoder"), "a.wav"])
    assert isinstance(result.exception, BundleKindError)
    assert "expected a bundle that reads sounds" in str(result.exception)
