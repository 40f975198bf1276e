"""Embeddings and heads of encoders, against plain formulas."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.modeling.kinds import (
    BLOCKS,
    LAYER,
    POSITIONS,
    VOCAB,
    WIDTH,
    encoder,
    encoder_config,
)
from tests.modeling.plain_transformer import Array
from torch import Tensor

from ortolan.modeling import ConfigError, EncoderModel
from ortolan.modeling.config import (
    ClassifierHead,
    Head,
    LanguageModelHead,
    PatchInput,
    TokenInput,
)
from ortolan.modeling.layers.embeddings import PatchEmbedding

LENGTHS = (6, 1, 4)

IDS = torch.randint(VOCAB, (3, 6), generator=torch.Generator().manual_seed(0))


def with_head(head: Head, **fields: Any) -> EncoderModel:
    return encoder(encoder_config(POSITIONS["learned"], head=head, **fields))


def states(module: EncoderModel) -> list[Array]:
    """Output of the blocks for each text alone, `(length, E)`."""
    with torch.inference_mode():
        return [
            module.states(IDS[row : row + 1, :length])[0].double().numpy()
            for row, length in enumerate(LENGTHS)
        ]


def outputs(module: EncoderModel) -> Tensor:
    with torch.inference_mode():
        out: Tensor = module(IDS, torch.tensor(LENGTHS))
    return out


def assert_close(actual: Tensor, expected: Array) -> None:
    reference = torch.as_tensor(expected)
    torch.testing.assert_close(actual.double(), reference, rtol=2e-5, atol=2e-5)


def weight(module: EncoderModel, name: str) -> Array:
    return module.get_parameter(name).detach().double().numpy()


@pytest.mark.parametrize("activation", [None, "tanh", "relu"])
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_a_classifier_equals_the_formula(pooling: Any, activation: Any) -> None:
    head = ClassifierHead(labels=("a", "b", "c"), pooling=pooling, activation=activation)
    module = with_head(head)
    rows = []
    for text in states(module):
        pooled = text[0] if pooling == "first" else text.mean(0)
        if activation is not None:
            hidden = weight(module, "head.dense.weight") @ pooled
            hidden = hidden + weight(module, "head.dense.bias")
            pooled = np.tanh(hidden) if activation == "tanh" else np.maximum(hidden, 0)
        out = weight(module, "head.out.weight") @ pooled + weight(module, "head.out.bias")
        rows.append(out)
    assert_close(outputs(module), np.stack(rows))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transformed", [True, False])
def test_a_language_model_head_equals_the_formula(
    tied: bool, bias: bool, transformed: bool
) -> None:
    head = LanguageModelHead(
        tied=tied,
        bias=bias,
        activation="relu" if transformed else None,
        norm=LAYER if transformed else None,
    )
    module = with_head(head)
    logits = outputs(module)
    table = weight(module, "embedding.weight" if tied else "head.weight")
    for row, text in enumerate(states(module)):
        expected = []
        for x in text:
            if transformed:
                hidden = weight(module, "head.transform.weight") @ x
                x = np.maximum(hidden + weight(module, "head.transform.bias"), 0)
                x = (x - x.mean()) / np.sqrt(x.var() + LAYER.eps)
                x = x * weight(module, "head.norm.weight") + weight(module, "head.norm.bias")
            expected.append(table @ x + (weight(module, "head.bias") if bias else 0.0))
        assert_close(logits[row, : len(text)], np.stack(expected))


def test_token_types_are_added_before_the_norm() -> None:
    config = encoder_config(
        POSITIONS["learned"],
        BLOCKS["post"],
        input=TokenInput(vocab_size=VOCAB, types=3),
        embedding_norm=LAYER,
        embedding_scale=2.0,
    )
    module, types = encoder(config), torch.tensor([[0, 2, 1, 1, 0, 2]])
    with torch.inference_mode():
        stream = module.embed(IDS[:1], torch.arange(6)[None], module.type_embedding(types))  # type: ignore[misc]
    for position in range(6):
        x = 2.0 * weight(module, "embedding.weight")[int(IDS[0, position])]
        x = x + weight(module, "position_embedding.weight")[position]
        x = x + weight(module, "type_embedding.weight")[int(types[0, position])]
        x = (x - x.mean()) / np.sqrt(x.var() + LAYER.eps)
        x = x * weight(module, "embedding_norm.weight") + weight(module, "embedding_norm.bias")
        assert_close(stream[0, position], x)


# --- images -------------------------------------------------------------------------------------


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
            vectors.insert(0, module.class_token.detach().double().numpy()[0])
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


def test_invalid_inputs_are_an_error() -> None:
    for vocab_size, types in ((0, 0), (WIDTH, -1)):
        with pytest.raises(ConfigError, match="vocab_size must be at least 1"):
            TokenInput(vocab_size=vocab_size, types=types)
