"""Attention weights of every attention layer of a model."""

from torch import Tensor, nn

from ortolan.modeling.layers.additive_attention import AdditiveAttention
from ortolan.modeling.layers.attention import CrossAttention, SelfAttention
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.transformer import EncoderDecoderModel


def attention_maps(
    model: TransformerModel,
    inputs: Tensor,
    lengths: Tensor | None = None,
    target_ids: Tensor | None = None,
) -> list[Tensor]:
    """Attention weights of all layers, float32 `(B, H, queries, keys)`, in the order of layers.

    For an encoder-decoder: the encoder's, then per layer of the decoder self-attention and
    cross-attention. Attention of a recurrent network has one head. Rows of padding are
    undefined; no token attends to padding.

    Args:
        model: a model of any kind.
        inputs: ids `(B, T)`, or images.
        lengths: int `(B,)`; valid tokens per row, for models that use lengths.
        target_ids: decoder input of an encoder-decoder, `(B, S)`.
    """
    maps: list[Tensor] = []

    def record(module: nn.Module, arguments: tuple[Tensor, ...], _: Tensor) -> None:
        if isinstance(module, SelfAttention | CrossAttention):
            maps.append(module.weights(*arguments))  # type: ignore[arg-type]
        elif isinstance(module, AdditiveAttention):
            query, keys, _values, mask = arguments
            maps.append(module.weights(query, keys, mask)[:, None])

    kinds = SelfAttention | CrossAttention | AdditiveAttention
    layers = [m for m in model.modules() if isinstance(m, kinds)]
    hooks = [layer.register_forward_hook(record) for layer in layers]
    try:
        if isinstance(model, EncoderDecoderModel):
            model(inputs, target_ids, lengths)
        elif lengths is None:
            model(inputs)
        else:
            model(inputs, lengths)
    finally:
        for hook in hooks:
            hook.remove()
    return maps
