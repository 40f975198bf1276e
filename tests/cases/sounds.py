"""A decoder that reads sounds, against transformers."""

import base64
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from tests.cases import FP32, Case, Chat, low_bit
from tests.cases.images import in_words
from tests.export import tiny_qwen3_asr
from tests.runtime.damaged_bundles import put
from tests.tiny.media import answer_of
from tokenizers import Tokenizer
from transformers import Qwen3ASRFeatureExtractor, Qwen3ASRForConditionalGeneration

Samples = NDArray[np.float32]


@cache
def sound(seconds: float, seed: int = 0) -> Samples:
    """Noise that swells."""
    generator = np.random.default_rng(seed)
    count = round(seconds * tiny_qwen3_asr.RATE)
    swell = 0.2 + 0.5 * np.abs(np.sin(np.arange(count) / 4000))
    return (swell * generator.standard_normal(count) / 4).clip(-1, 1).astype(np.float32)


def wav(samples: Samples, rate: int = tiny_qwen3_asr.RATE) -> bytes:
    """The file of a sound."""
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format="WAV", subtype="FLOAT")
    return stream.getvalue()


def spectrogram(checkpoint: Path, samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    """The spectrogram of transformers, and which frames are of the sound."""
    extractor: Any = Qwen3ASRFeatureExtractor.from_pretrained(checkpoint)
    options = {"sampling_rate": tiny_qwen3_asr.RATE, "return_attention_mask": True}
    given = extractor(samples, padding=True, **options)
    return given["input_features"], given["attention_mask"]


def vectors(model: Any, checkpoint: Path, samples: Samples) -> torch.Tensor:
    """The vectors of transformers."""
    with torch.inference_mode():
        found: torch.Tensor = model.get_audio_features(
            *spectrogram(checkpoint, samples)
        ).pooler_output
    return found


def by_transformers(checkpoint: Path, prompts: Sequence[Any]) -> list[Any]:
    """Answers where the vectors of sounds stand in place of placeholders."""
    model: Any = Qwen3ASRForConditionalGeneration.from_pretrained(checkpoint)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    pad = tokenizer.token_to_id("<|audio_pad|>")
    found = []
    for prompt in prompts:
        sounds = [part["audio"] for part in prompt if not isinstance(part, str)]
        read = [vectors(model, checkpoint, samples) for samples in sounds]
        text = in_words(prompt, "@")
        for rows in read:
            text = text.replace("@", "<|audio_pad|>" * len(rows), 1)
        ids_BS = torch.tensor([tokenizer.encode(text).ids])
        with torch.inference_mode():
            embedded = model.get_input_embeddings()(ids_BS)
            embedded[ids_BS == pad] = torch.cat(read)
        given = {"input_ids": ids_BS, "inputs_embeds": embedded}
        found.append((ids_BS.shape[1], answer_of(model, given)))
    return found


FIRST, SECOND = sound(1.2, 1), sound(3.4, 2)


def _file(**values: Any) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": values}


_WAV = _file(data=base64.b64encode(wav(FIRST)).decode(), format="wav")


def _said(part: Any) -> Any:
    return lambda model: model.chat([{"role": "user", "content": [part]}])


def _asked(*parts: Any) -> Any:
    return lambda model: model.generate([*parts])


OF_QWEN = Case(
    name="qwen3_asr",
    family="qwen3_asr",
    write=tiny_qwen3_asr.write,
    reference=by_transformers,
    features=frozenset({"generates", "drafts", "exact", "rewinds", "every role"}),
    part="sound",
    variants=(FP32, low_bit("int8")),
    inputs={
        "a sound": [{"audio": FIRST}, "what is this"],
        "a long sound at the end": ["what is ", {"audio": SECOND}],
        "two sounds": ["a ", {"audio": FIRST}, " and ", {"audio": SECOND}, " say"],
        "a sound twice": [{"audio": FIRST}, {"audio": FIRST}, "say"],
    },
    chat=Chat(
        prompt=[
            "user:<|audio_start|>",
            {"audio": FIRST},
            "<|audio_end|>say<|im_end|>assistant:",
        ],
        text="say",
        parts={
            "base64": _WAV,
            "array": {"type": "audio", "audio": FIRST},
            "bytes": {"type": "audio", "audio": wav(FIRST)},
        },
        served=_WAV,
    ),
    refusals={
        "no base64": _said(_file(data="???", format="wav")),
        "no data": _said(_file(format="wav")),
        "a key too many": _said(_file(data="", path="x")),
        "no file": _said({"type": "input_audio"}),
        "a path as text": _said({"type": "audio", "audio": "/etc/passwd"}),
        "a video": _said({"type": "video", "video": b""}),
        "another file": _asked({"audio": b"no sound"}),
        "no numbers": _asked({"audio": np.full(16_000, np.nan, np.float32)}),
        "no samples": _asked({"audio": np.zeros(0, np.float32)}),
        "a rate as text": _asked({"audio": FIRST, "rate": "8000"}),
        "a further key": _asked({"audio": b"", "format": "wav"}),
        "a placeholder too many": _asked({"audio": FIRST}, "<|audio_pad|>"),
        "a long sound": _asked({"audio": np.zeros(16_000 * 640, np.float32)}),
        "an image": _asked({"image": np.zeros((8, 8, 3), np.uint8)}),
        "a transcript of another file": lambda model: model.transcribe(b"no sound"),
        "a transcript in an unknown language": lambda model: model.transcribe(FIRST, language="xx"),
        "a translation": lambda model: model.transcribe(FIRST, translate=True),
    },
    refused={
        "other bins": {"feature_size": 12},
        "other chunks": {"n_window": 40},
        "noise": {"dither": 0.1},
        "an unknown key": {"gain": 2},
        "no hop": {"hop_length": 0},
    },
    edits={
        "sound: frames": put("source", "frames", value=250),
        "sound: stride": put("source", "stride", value=4),
        "sound: chunk": put("source", "chunk", value=0),
    },
)

CASES = (OF_QWEN,)
