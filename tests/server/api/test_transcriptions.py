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
from tests.export import tiny_qwen3_asr
from tests.runtime import tiny_encoder
from tests.runtime.transcription.tiny_moonshine import write_moonshine
from tests.runtime.transcription.tiny_wav2vec2 import write_wav2vec2
from tests.runtime.transcription.tiny_whisper import RATE, sound, write_whisper
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
    response = post(client)
    assert (response.status_code, response.json()) == (200, {"text": transcript.text})
    assert len(transcript.text) > 20


@pytest.mark.parametrize(
    ("form", "media_type"), [("text", "plain"), ("srt", "plain"), ("vtt", "vtt")]
)
def test_other_formats(
    client: httpx2.Client, transcript: Transcript, form: str, media_type: str
) -> None:
    response = post(client, response_format=form)
    expected = f"{transcript.text}\n" if form == "text" else getattr(transcript, form)
    assert response.text == expected
    assert response.headers["content-type"].startswith(f"text/{media_type}")


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


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"language": "fr"}, 400, "language must be one of de, en"),
        ({"model": "moonshine"}, 400, "knows only one"),
        ({"model": "wav2vec2"}, 400, "language"),
        ({"data": b"RIFF"}, 400, "damaged, or no sound file"),
        ({"model": "embedder"}, 400, "expected a bundle that turns sounds into text"),
        (
            {"response_format": "verbose_json", "timestamp_granularities[]": "word"},
            400,
            "no times of words",
        ),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"prompt": "a"}, 400, "prompt"),
        ({"response_format": "xml"}, 400, "response_format"),
        ({"data": bytes(300_001)}, 413, "at most 300000 bytes"),
    ],
)
def test_wrong_requests_are_rejected(
    client: httpx2.Client, fields: dict[str, Any], status: int, message: str
) -> None:
    response = post(client, **fields)
    assert response.status_code == status, response.text
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=a", b"--b\r\n"),
        (
            "multipart/form-data; boundary=a",
            b"--a\r\nContent-Disposition: nothing\r\n\r\nx\r\n--a--",
        ),
        (
            "multipart/form-data; boundary=a",
            40 * b'--a\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n',
        ),
        ("multipart/form-data; boundary=a", b""),
    ],
)
def test_bodies_that_are_no_form_are_rejected(
    client: httpx2.Client, content_type: str, data: bytes
) -> None:
    response = client.post(PATH, content=data, headers={"content-type": content_type})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


def test_json_is_no_form(client: httpx2.Client) -> None:
    response = client.post(PATH, json={"file": ""})
    assert response.status_code == 415
    assert "Send a form" in response.json()["error"]["message"]


def test_a_model_of_waves_transcribes_in_its_only_language(
    client: httpx2.Client, bundles: dict[str, Path]
) -> None:
    expected = ortolan.load(bundles["moonshine"], Seq2Seq).transcribe(wave(2.7))
    assert post(client, model="moonshine", language=None).json() == {"text": expected.text}


def test_a_model_with_ctc_gives_the_times_of_words(
    client: httpx2.Client, bundles: dict[str, Path]
) -> None:
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
    refused = post(client, "/v1/audio/translations", model="qwen3-asr", language=None)
    assert refused.status_code == 400
