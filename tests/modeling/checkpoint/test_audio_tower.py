"""The encoder of sounds of a multimodal checkpoint, and the decoder that reads it, as published."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modeling.tiny_models import assert_same_logits, reference_logits, reference_model
from tests.tiny.encoders import QWEN3_ASR

from ortolan.modeling import EncoderModel, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.config import ChunkedAudioInput
from ortolan.modeling.layers.embeddings import Features

TOKEN, BINS, CHUNK, WINDOW = QWEN3_ASR["audio_token_id"], 10, 100, 300


def written(folder: Path, **changes: Any) -> Any:
    model = reference_model(
        QWEN3_ASR | changes, architecture="Qwen3ASRForConditionalGeneration", attention="eager"
    )
    model.save_pretrained(folder)
    return model


def spectrogram(frames: int) -> torch.Tensor:
    return torch.randn(BINS, frames, generator=torch.Generator().manual_seed(frames))


def padded(mel: torch.Tensor, multiple: int) -> torch.Tensor:
    return torch.nn.functional.pad(mel, (0, -mel.shape[1] % multiple))


def chunks(mel: torch.Tensor) -> torch.Tensor:
    return padded(mel, CHUNK).reshape(len(mel), -1, CHUNK).transpose(0, 1)


def theirs(model: Any, mel: torch.Tensor) -> torch.Tensor:
    """Vectors of a whole sound."""
    whole, mask = padded(mel, CHUNK)[None], padded(torch.ones(1, mel.shape[1]), CHUNK).long()
    out: torch.Tensor = model.get_audio_features(whole, mask).pooler_output
    return out


def ours(encoder: EncoderModel, mel: torch.Tensor) -> torch.Tensor:
    """Vectors of the windows of a sound, one after the other."""
    source = encoder.config.input
    assert isinstance(source, ChunkedAudioInput)
    vectors = []
    for window in torch.split(mel, WINDOW, 1):
        count = source.vectors(window.shape[1])
        out = encoder(chunks(window), torch.tensor([count]))
        vectors.append(out[0, :count])
    return torch.cat(vectors)


@pytest.mark.parametrize("frames", [1, 8, 9, 99, 100, 101, 255, 300, 301, 450, 640])
def test_vectors_and_logits_are_those_of_transformers(frames: int, tmp_path: Path) -> None:
    model = written(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.media is not None
    assert checkpoint.left_out == ()
    encoder, decoder = load(checkpoint.media, EncoderModel), load(checkpoint)
    assert decoder.config.feature_token_id == TOKEN
    mel = spectrogram(frames)
    with torch.inference_mode():
        expected, vectors = theirs(model, mel), ours(encoder, mel)
        assert vectors.shape == expected.shape
        assert (vectors - expected).abs().max() <= 1e-4 * expected.abs().max()
        ids = torch.tensor([[7, *[TOKEN] * len(vectors), 9, 11]])
        logits = decoder(ids, Features.of(vectors, ids, TOKEN))
        mask = padded(torch.ones(1, frames), CHUNK).long()
        whole = model(
            input_ids=ids,
            input_features=padded(mel, CHUNK)[None],
            input_features_mask=mask,
        ).logits
        assert_same_logits(logits, whole)
        text = torch.tensor([[7, 9, 11]])
        assert_same_logits(decoder(text), reference_logits(model, text))


def test_padding_changes_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    images = open_checkpoint(tmp_path).media
    assert images is not None
    encoder = load(images, EncoderModel)
    mel = chunks(spectrogram(120))
    with torch.inference_mode():
        short = encoder(mel, torch.tensor([16]))
        more = torch.cat((mel, torch.full_like(mel[:1], 7.0)))
        long = encoder(more, torch.tensor([16]))
    torch.testing.assert_close(short[:, :16], long[:, :16])
