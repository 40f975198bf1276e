"""How well a model predicts text, in units that do not depend on its tokenizer."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ortolan.modeling.models.transformer import DecoderModel


def bits_per_byte(
    module: DecoderModel, documents: Sequence[Sequence[int]], text_bytes: int, *, window: int
) -> float:
    """Bits that the model needs for each byte of some documents.

    Windows overlap by half, so that every token but the first of a document is predicted once,
    from at least `window / 2` tokens, or from all there are.

    Args:
        module: the model.
        documents: ids of each document, the first one given and not predicted.
        text_bytes: UTF-8 bytes of all documents.
        window: tokens the model sees at once, at most its context.
    """
    stride = max(window // 2, 1)
    nats = 0.0
    with torch.inference_mode():
        for ids in documents:
            for start in range(0, max(len(ids) - 1, 0), stride):
                piece = torch.tensor(ids[start : start + window + 1])
                skip = 0 if start == 0 else window - stride
                if len(piece) - 1 <= skip:
                    break
                logits = module(piece[None, :-1])[0, skip:]
                nats += float(F.cross_entropy(logits, piece[1 + skip :], reduction="sum"))
    return nats / math.log(2) / text_bytes
