"""Transcriptions: the text of the model in this process, in every format of OpenAI."""

import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import soundfile
from syrupy.assertion import SnapshotAssertion
from tests.export import tiny_qwen3_asr
from tests.runtime import tiny_encoder
from tests.runtime.transcription.tiny_moonshine import write_moonshine
from tests.runtime.transcription.tiny_wav2vec2 import write_wav2vec2
from tests.runtime.transcription.tiny_whisper import RATE, sound, write_whisper
from tests.server.api.test_refusals import described
from tests.server.live import LiveServer, held, live_server, stats, wait_until

import ortolan
from ortolan.runtime import Decoder, Encoder, Seq2Seq, Transcript
from ortolan.server import Settings

pytestmark = pytest.mark.slow

PATH = "/v1/audio/transcriptions"

SPEECH: dict[str, Callable[[Path], Any]] = {
    "whisper": write_whisper,
    "moonshine": write_moonshine,
    "wav2vec2": write_wav2vec2,
    "qwen3-asr": tiny_qwen3_asr.write,
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("speech")
    options = ortolan.ExportOptions(proof="quick")
    for name, write in SPEECH.items():
        write(folder / f"{name}-source")
        ortolan.export(folder / f"{name}-source", folder / name, options=options)
    embedder = tiny_encoder.write_bundle(folder / "embedder", kind="embedding")
    return {name: folder / name for name in SPEECH} | {"embedder": embedder.path}


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path]) -> Iterator[LiveServer]:
    settings = Settings(bundles=bundles, load={"threads": 1}, max_form_bytes=300_000)
    with live_server(settings) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def transcript(bundles: dict[str, Path]) -> Transcript:
    return ortolan.load(bundles["whisper"], Seq2Seq).transcribe(wave(2.7), language="de")


def wave(seconds: float) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, sound(seconds), RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def post(client: httpx2.Client, path: str = PATH, **fields: Any) -> httpx2.Response:
    data = fields.pop("data", wave(2.7))
    fields = {"model": "whisper", "language": "de"} | fields
    fields = {name: value for name, value in fields.items() if value is not None}
    return client.post(path, data=fields, files={"file": ("sound.wav", data, "audio/wav")})


def test_the_text_is_that_of_the_model(client: httpx2.Client, transcript: Transcript) -> None:
    assert post(client).json() == {"text": transcript.text}
    assert len(transcript.text) > 20


def test_texts_and_subtitles(client: httpx2.Client, transcript: Transcript) -> None:
    expected = {"text": f"{transcript.text}\n", "srt": transcript.srt, "vtt": transcript.vtt}
    for form, text in expected.items():
        response = post(client, response_format=form)
        assert response.text == text
        kind = "vtt" if form == "vtt" else "plain"
        assert response.headers["content-type"].startswith(f"text/{kind}")


def test_segments_have_times(client: httpx2.Client, transcript: Transcript) -> None:
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "segment"}
    answer = post(client, **fields).json()
    assert (answer["task"], answer["language"]) == ("transcribe", "de")
    assert answer["duration"] == pytest.approx(2.7)
    assert [(own["start"], own["end"], own["text"]) for own in answer["segments"]] == [
        (own.start, own.end, own.text) for own in transcript.segments
    ]


def test_translations_are_another_task(client: httpx2.Client, bundles: dict[str, Path]) -> None:
    answer = post(client, "/v1/audio/translations", language=None).json()
    model = ortolan.load(bundles["whisper"], Seq2Seq)
    assert answer["text"] == model.transcribe(wave(2.7), translate=True).text


def test_many_transcriptions_do_not_block_other_models(
    server: LiveServer, client: httpx2.Client
) -> None:
    few = min(32, (os.cpu_count() or 1) + 4)  # threads of asyncio
    with ThreadPoolExecutor(few + 4) as threads:
        with held(server):
            done = [threads.submit(post, client) for _ in range(few + 4)]
            wait_until(lambda: stats(server).waiting + stats(server).running == few + 4)
            body = {"model": "embedder", "input": "a b"}
            assert client.post("/v1/embeddings", json=body, timeout=20).status_code == 200
        assert {future.result().status_code for future in done} == {200}


REFUSED: dict[str, dict[str, Any]] = {
    "an unknown language": {"language": "fr"},
    "a language of a model of one": {"model": "moonshine"},
    "a language without choice": {"model": "wav2vec2"},
    "no sound": {"data": b"RIFF"},
    "another model": {"model": "embedder"},
    "times of words": {
        "response_format": "verbose_json",
        "timestamp_granularities[]": "word",
    },
    "a temperature": {"temperature": "hot"},
    "a prompt": {"prompt": "a"},
    "an unknown format": {"response_format": "xml"},
    "too many bytes": {"data": bytes(300_001)},
    "a translation": {"path": "/v1/audio/translations", "model": "qwen3-asr", "language": None},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_form_is_refused_with_its_field(
    client: httpx2.Client, name: str, snapshot: SnapshotAssertion
) -> None:
    assert described(post(client, **REFUSED[name])) == snapshot


HEAD = b'--a\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n'

BODIES = {
    "no boundary": ("multipart/form-data", b"x"),
    "another boundary": ("multipart/form-data; boundary=a", b"--b\r\n"),
    "no name": ("multipart/form-data; boundary=a", HEAD.replace(b'; name="x"', b"") + b"--a--"),
    "too many fields": ("multipart/form-data; boundary=a", 40 * HEAD),
    "nothing": ("multipart/form-data; boundary=a", b""),
    "JSON": ("application/json", b'{"file": ""}'),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_form_is_refused(
    client: httpx2.Client, name: str, snapshot: SnapshotAssertion
) -> None:
    kind, data = BODIES[name]
    response = client.post(PATH, content=data, headers={"content-type": kind})
    assert described(response) == snapshot


def test_models_of_one_language_and_with_ctc_transcribe(
    client: httpx2.Client, bundles: dict[str, Path]
) -> None:
    found = post(client, model="moonshine", language=None).json()
    assert found["text"] == ortolan.load(bundles["moonshine"], Seq2Seq).transcribe(wave(2.7)).text
    expected = ortolan.load(bundles["wav2vec2"], Encoder).transcribe(wave(2.7))
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    answer = post(client, model="wav2vec2", language=None, **fields).json()
    words = [word for segment in expected.segments for word in segment.words]
    assert words
    assert answer["words"] == [
        {"word": word.text, "start": word.start, "end": word.end} for word in words
    ]
    assert answer["text"] == expected.text


def test_a_chat_model_that_reads_sounds_transcribes(
    client: httpx2.Client, bundles: dict[str, Path]
) -> None:
    model = ortolan.load(bundles["qwen3-asr"], Decoder)
    for language in (None, "en"):
        expected = model.transcribe(wave(0.7), language=language)
        answer = post(
            client,
            model="qwen3-asr",
            language=language,
            data=wave(0.7),
            response_format="verbose_json",
        ).json()
        assert answer["text"] == expected.text
        assert answer["segments"][0]["tokens"] == list(expected.segments[0].tokens)
