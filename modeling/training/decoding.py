"""Greedy decoding of an encoder-decoder, for measuring it while it is trained."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ortolan.modeling.layers.cache import Memory, StepLengths, empty_cache
from ortolan.modeling.models.transformer import EncoderDecoderModel
from ortolan.modeling.training.tokenizer import padded

BATCH_SIZE = 100


def greedy(
    module: EncoderDecoderModel,
    sources: Sequence[Sequence[int]],
    *,
    suppressed: Sequence[int] = (),
    max_tokens: int,
) -> list[list[int]]:
    """Ids of each translation: the likeliest token at each step, until one that ends the text.

    Ids in `suppressed` are never chosen. The tokens that start and end a text are left out.
    """
    order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    translations: dict[int, list[int]] = {}
    for start in range(0, len(order), BATCH_SIZE):
        rows = order[start : start + BATCH_SIZE]
        texts = _greedy_batch(module, [sources[row] for row in rows], suppressed, max_tokens)
        translations.update(zip(rows, texts, strict=True))
    return [translations[row] for row in range(len(sources))]


@torch.inference_mode()
def _greedy_batch(
    module: EncoderDecoderModel,
    sources: Sequence[Sequence[int]],
    suppressed: Sequence[int],
    max_tokens: int,
) -> list[list[int]]:
    config = module.config
    ends = torch.tensor(config.eos_token_ids)
    source_ids, lengths = padded(sources, 0)
    source = module.source(source_ids, lengths)
    cache: Sequence[Memory] = empty_cache(config.decoder, batch=len(sources), capacity=max_tokens)
    next_B = torch.full((len(sources),), config.decoder_start_token_id)
    done_B = torch.zeros(len(sources), dtype=torch.bool)
    chosen: list[Tensor] = []
    for seen in range(max_tokens):
        step = StepLengths(
            torch.full((len(sources),), seen, dtype=torch.int32), torch.tensor(seen + 1)
        )
        logits_BSV, cache = module.step(next_B[:, None], step, cache, source)
        logits_BSV[..., list(suppressed)] = -torch.inf
        next_B = logits_BSV[:, 0].argmax(-1)
        chosen.append(next_B)
        done_B |= torch.isin(next_B, ends)
        if done_B.all():
            break
    return [_until(row, config.eos_token_ids) for row in torch.stack(chosen, 1).tolist()]


def _until(ids: list[int], ends: Sequence[int]) -> list[int]:
    """The ids before the first token that ends a text."""
    stop = next((index for index, token in enumerate(ids) if token in ends), len(ids))
    return ids[:stop]
