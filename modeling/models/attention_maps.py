"""What each token attends to: the weights of every attention layer of a model."""

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
    """The weights of each attention, `(B, H, queries, keys)` in float32, in the order of layers.

    Of an encoder-decoder: those of the encoder, then each layer's of the decoder, to its own
    text and to the source. Rows of padding have no meaning; no token attends to padding. Attention
    of a recurrent network has one head.

    Args:
        model: of any kind.
        inputs: ids `(B, T)`, or images.
        lengths: int `(B,)`; valid tokens of each row, where the model takes lengths.
        target_ids: the input of the decoder of an encoder-decoder, `(B, S)`.
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
