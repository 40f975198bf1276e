"""From image files to outputs as transformers computes them, by a bundle without PyTorch."""

import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.export import tiny_dinov3
from tests.modeling.tiny_encoders import IMAGES, EncoderCase
from tests.tiny.encoders import CLIP, CLIP_VISION, DEIT, DINOV2, DINOV2_REGISTERS

import ortolan
from ortolan.runtime.verification.replay import verify

pytestmark = pytest.mark.slow

SQUARE = {"height": 8, "width": 8}
EDGE = {"size": {"shortest_edge": 8}, "crop_size": SQUARE}

CASES: dict[str, tuple[EncoderCase, str, dict[str, Any]]] = {
    "deit": (
        EncoderCase("DeiTForImageClassificationWithTeacher", DEIT),
        "DeiT",
        {"size": {"height": 10, "width": 10}, "crop_size": SQUARE},
    ),
    "dinov2": (EncoderCase("Dinov2Model", DINOV2), "Bit", EDGE),
    "dinov2-gated": (IMAGES["dinov2-gated"], "Bit", EDGE),
    "dinov2-registers": (EncoderCase("Dinov2WithRegistersModel", DINOV2_REGISTERS), "Bit", EDGE),
    "dinov2-registers-classifier": (IMAGES["dinov2-registers-classifier"], "Bit", EDGE),
    "clip": (EncoderCase("CLIPModel", CLIP), "CLIP", EDGE),
    "clip-projected": (EncoderCase("CLIPVisionModelWithProjection", CLIP_VISION), "CLIP", EDGE),
    "siglip": (IMAGES["siglip-classifier"], "Siglip", {"size": SQUARE}),
}


def pictures() -> list[bytes]:
    files = []
    for size in ((31, 17), (9, 12), (8, 8)):
        values = np.random.default_rng(size[0]).integers(0, 256, (*size, 3)).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(values).save(stream, "PNG")
        files.append(stream.getvalue())
    return files


def expected_output(name: str, reference: Any, pixels: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        if name == "clip":
            features = reference.get_image_features(pixel_values=pixels)
            features = getattr(features, "pooler_output", features)
            return torch.nn.functional.normalize(features, dim=-1)
        output = reference(pixel_values=pixels)
    key = next(k for k in ("logits", "image_embeds", "last_hidden_state") if k in output)
    tensor: torch.Tensor = output[key]
    return tensor.softmax(-1) if key == "logits" else tensor


def scores_of(encoder: ortolan.Encoder, files: list[bytes]) -> NDArray[np.float64]:
    """Scores of the labels in the order of the model, one row per image."""
    labels = encoder.manifest.output.labels if encoder.manifest.output else ()
    results = [result.scores for result in encoder.classify(files)]
    return np.array([[scores[label] for label in labels] for scores in results])


@pytest.mark.parametrize("name", CASES)
def test_files_become_the_outputs_of_transformers(name: str, tmp_path: Path) -> None:
    case, processor, values = CASES[name]
    reference = case.write(tmp_path / "checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        theirs = getattr(transformers, f"{processor}ImageProcessorPil")(**values)
    theirs.save_pretrained(str(tmp_path / "checkpoint"))
    files = pictures()
    images = [Image.open(io.BytesIO(file)) for file in files]
    pixels = torch.tensor(theirs(images=images, return_tensors="np")["pixel_values"])
    expected = expected_output(name, reference, pixels).numpy()

    ortolan.export(tmp_path / "checkpoint", tmp_path / "bundle")
    encoder = ortolan.load(tmp_path / "bundle", ortolan.Encoder)
    got: NDArray[Any]
    match encoder.manifest.output_kind.name:
        case "labels":
            got = scores_of(encoder, files)
        case "embedding":
            got = encoder.embed(files)
        case _:
            got = np.stack(encoder.states(files))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))
    report = verify(tmp_path / "bundle", exact=False, isolate=False)
    assert report.verdict == "PASS"
    assert report.surroundings is not None
    assert report.surroundings.pixels > 0


def test_files_become_the_states_of_dinov3(tmp_path: Path) -> None:
    reference = tiny_dinov3.write(tmp_path / "checkpoint")
    files = pictures()
    with torch.inference_mode():
        output = reference(pixel_values=torch.stack([tiny_dinov3.pixels(file) for file in files]))
    expected = output.last_hidden_state.numpy()
    ortolan.export(tmp_path / "checkpoint", tmp_path / "bundle")
    encoder = ortolan.load(tmp_path / "bundle", ortolan.Encoder)
    together = np.stack(encoder.states(files))
    np.testing.assert_allclose(together, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))
    for states, file in zip(together, files, strict=True):
        np.testing.assert_allclose(encoder.states(file)[0], states, atol=1e-5)
    pooled = output.pooler_output.numpy()
    np.testing.assert_allclose(together[:, 0], pooled, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_dinov3_embeds_at_every_precision(precision: Any, tmp_path: Path) -> None:
    reference = tiny_dinov3.write(tmp_path / "checkpoint", pooled=True)
    files = pictures()
    with torch.inference_mode():
        output = reference(pixel_values=torch.stack([tiny_dinov3.pixels(file) for file in files]))
    expected = torch.nn.functional.normalize(output.pooler_output, dim=-1).numpy()
    ortolan.export(
        tmp_path / "checkpoint",
        tmp_path / "bundle",
        precision=precision,
        options=ortolan.ExportOptions(allow_poor=True),
    )
    got = ortolan.load(tmp_path / "bundle", ortolan.Encoder).embed(files)
    least = {"fp32": 1 - 1e-5, "int8": 0.99, "int4": 0.7}[precision]
    assert (got * expected).sum(-1).min() > least
    report = verify(tmp_path / "bundle", exact=False, isolate=False)
    assert report.verdict == "PASS"
    assert report.surroundings is not None
    assert report.surroundings.pixels > 0


@pytest.mark.parametrize("side", [6, 12])
@pytest.mark.parametrize("name", ["dinov2", "dinov2-registers-classifier", "dinov3"])
def test_images_have_the_size_of_the_processor(name: str, side: int, tmp_path: Path) -> None:
    reference = IMAGES[name].write(tmp_path / "checkpoint")
    size = {"height": side, "width": side}
    kinds = {"dinov3": {"image_processor_type": "DINOv3ViTImageProcessor", "size": size}}
    cropped = {"image_processor_type": "BitImageProcessor", "size": side, "crop_size": size}
    processor = json.dumps(kinds.get(name, cropped))
    (tmp_path / "checkpoint" / "preprocessor_config.json").write_text(processor)
    ortolan.export(tmp_path / "checkpoint", tmp_path / "bundle")
    encoder = ortolan.load(tmp_path / "bundle", ortolan.Encoder)
    files = pictures()
    pixels = torch.from_numpy(np.stack([encoder.pixels(file) for file in files]))
    assert pixels.shape == (3, 3, side, side)
    expected = expected_output(name, reference, pixels).numpy()
    got = scores_of(encoder, files) if "classifier" in name else np.stack(encoder.states(files))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))
