"""Patches of images, and inputs of encoders."""

import numpy as np
import pytest
import torch
from tests.modeling.kinds import (
    POSITIONS,
    encoder,
    encoder_config,
)
from tests.modeling.plain_transformer import Array
from torch import Tensor

from ortolan.modeling.config import (
    ClassifierHead,
    PatchInput,
)
from ortolan.modeling.layers.embeddings import PatchEmbedding


def assert_close(actual: Tensor, expected: Array) -> None:
    reference = torch.as_tensor(expected)
    torch.testing.assert_close(actual.double(), reference, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize(("image", "patch"), [((4, 6), (2, 2)), ((5, 7), (2, 3)), ((3, 3), (3, 1))])
def test_patch_embeddings_equal_the_formula(
    image: tuple[int, int], patch: tuple[int, int], class_token: bool
) -> None:
    config = PatchInput(image_size=image, patch_size=patch, channels=2, class_token=class_token)
    module = PatchEmbedding(config, 5)
    pixels = torch.randn(3, 2, *image, generator=torch.Generator().manual_seed(0))
    if module.class_token is not None:
        torch.nn.init.normal_(module.class_token)
    with torch.inference_mode():
        out = module(pixels)
    # A row of the matrix has a number for each pixel of a patch, channel by channel.
    matrix = module.projection.weight.detach().reshape(5, -1).double().numpy()
    bias = module.projection.bias
    assert bias is not None
    expected = []
    for picture in pixels.double().numpy():
        vectors = []
        for y in range(image[0] // patch[0]):
            for x in range(image[1] // patch[1]):
                top, left = y * patch[0], x * patch[1]
                window = picture[:, top : top + patch[0], left : left + patch[1]]
                vectors.append(matrix @ window.reshape(-1) + bias.detach().double().numpy())
        if module.class_token is not None:
            vectors.insert(0, module.class_token.detach().double().numpy())
        expected.append(np.stack(vectors))
    assert out.shape[1] == config.length
    assert_close(out, np.stack(expected))


def test_mean_pooling_of_patches_ignores_their_order() -> None:
    source = PatchInput(image_size=(8, 8), patch_size=(2, 2), channels=1, class_token=False)
    head = ClassifierHead(labels=tuple("0123456789"), pooling="mean")
    config = encoder_config(
        POSITIONS["none"], input=source, head=head, context_length=source.length
    )
    generator = torch.Generator().manual_seed(0)
    module, pixels = encoder(config), torch.randn(2, 1, 8, 8, generator=generator)
    with torch.inference_mode():
        logits = module(pixels)
        # Without positions, the mean does not depend on the order of the patches.
        moved = module(pixels.roll((2, 4), dims=(2, 3)))
        shifted = module(pixels.roll(1, dims=2))
    assert logits.shape == (2, 10)
    torch.testing.assert_close(moved, logits, rtol=1e-4, atol=1e-4)
    assert float((shifted - logits).abs().max()) > 0.01
