"""Modules with random weights, against the same modules computed whole by PyTorch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.cases import FP32, NEW, QUICK, Case, Variant
from tests.export import models_of_kinds as of_kinds
from tests.export import tiny_models
from tests.export.own_module import Attentive, unusual
from tests.modeling import kinds
from tests.modeling.kinds import CHANNELS, CONV, DELTA, HEADS, LRU
from tests.tiny.numbers import random_ids
from torch import nn

from ortolan.export.options import ExportOptions
from ortolan.modeling import DecoderModel
from ortolan.modeling.config import (
    BlockConfig,
    ClassifierHead,
    EmbeddingHead,
    HeadLayer,
    LanguageModelHead,
    LatentConfig,
    MemoryConfig,
    Mixer,
    MixtureConfig,
    RecurrentConfig,
    RelativeBiasPositions,
    RotaryPositions,
)
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.modeling.state import State
from ortolan.runtime import PromptLookup

Made = Callable[[], nn.Module]


def whole(module: nn.Module, ids: Sequence[int]) -> NDArray[np.float32]:
    """Logits of a whole text."""
    is_own = not isinstance(module, (TransformerModel, RecurrentModel))
    with torch.inference_mode():
        logits: NDArray[np.float32] = module(
            torch.tensor([ids]), *([State.whole()] if is_own else [])
        )[0].numpy()
    return logits


def likeliest(module: nn.Module, prompts: Sequence[Sequence[int]]) -> list[Any]:
    """Number of tokens of each prompt, and its likeliest answer."""
    found = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(NEW):
            ids.append(int(whole(module, ids)[-1].argmax()))
        found.append((len(prompt), ids[len(prompt) :]))
    return found


def case(
    name: str, make: Made, *variants: Variant, reference: Made | None = None, **fields: Any
) -> Case:
    """A decoder of ids, by default in float32; `reference` makes the module that computes it."""
    made = cache(reference or make)
    prompts = [[1, 5, 9, 13, 44], [3], [60, 2, 7, 7, 90, 11, 12, 31, 8]]
    limit = fields.pop("vocabulary", tiny_models.VOCAB)
    return Case(
        name=name,
        write=lambda _folder: make(),
        logits=lambda _folder, ids: whole(made(), ids),
        reference=lambda _folder, given: likeliest(made(), given),
        inputs={f"{len(ids)} tokens": [each % limit for each in ids] for ids in prompts},
        variants=variants or (FP32,),
        **{"features": frozenset({"generates", "drafts", "exact", "rewinds"}), **fields},
    )


# --- every option of a decoder's config -----------------------------------------------------------


def _tiny(name: str) -> Case:
    """A row of `tiny_models.CASES`."""
    tiny = tiny_models.CASES[name]
    precision = tiny.options.get("precision", "fp32")
    variant = Variant(
        name=precision,
        tolerance=0.03 if precision == "fp16" else 1e-4,
        is_quick=True,
        **tiny.options,
    )
    context = tiny.options.get("max_context")
    make = partial(tiny_models.decoder, tiny.config(), tiny.dtype)
    features = frozenset({"generates", "drafts", "exact", "rewinds"})
    if name == "modern":
        features |= {"every role"}
    return case(
        name,
        make,
        variant,
        reference=lambda: tiny_models.reference(make(), context),
        features=features,
    )


TINY = {name: _tiny(name) for name in tiny_models.CASES}

# --- memories of fixed size -----------------------------------------------------------------------

MIXERS: tuple[Mixer, ...] = (CONV, DELTA, HEADS, CHANNELS, LRU)


def _hybrid(*blocks: BlockConfig) -> Made:
    config = kinds.decoder_config(kinds.POSITIONS["none"], blocks)
    return partial(kinds.decoder, config)


def _every_mixer() -> tuple[BlockConfig, ...]:
    """A layer of each kind, half of them without an mlp, then gated attention."""
    blocks = [
        BlockConfig(
            mixer=mixer,
            feed_forward=None if place % 2 else kinds.BLOCK.feed_forward,
            norm=kinds.RMS,
        )
        for place, mixer in enumerate(MIXERS)
    ]
    attention = replace(kinds.ATTENTION, head_dim=16, gate=True)
    return (*blocks, replace(kinds.BLOCK, mixer=attention))


_CONVOLUTION = BlockConfig(mixer=CONV, feed_forward=None, norm=kinds.RMS)

_REPLACED: dict[str, Any] = {
    "features": frozenset({"generates"}),
    "vocabulary": kinds.VOCAB,
}
"""States that are replaced at every step cannot go back."""

HYBRID = case(
    "every mixer",
    _hybrid(*_every_mixer()),
    **_REPLACED | {"features": frozenset({"generates", "every role"})},
)

CONVOLUTIONS = case("convolutions alone", _hybrid(*[_CONVOLUTION] * 3), **_REPLACED)

PORTABLE = Variant(name="portable", options=ExportOptions(attention="portable"), tolerance=1e-4)

PORTABLE_CONVOLUTION = case(
    "a convolution and attention",
    _hybrid(_CONVOLUTION, replace(kinds.BLOCK, norm=kinds.RMS)),
    PORTABLE,
    **_REPLACED,
)

_PLAIN = RecurrentConfig(
    model_type="recurrent",
    hidden_size=24,
    vocab_size=tiny_models.VOCAB,
    context_length=400,
    cell="lstm",
    num_layers=2,
)
MEMORY = MemoryConfig(slots=9, width=8, read_heads=2)

RECURRENT = {
    "rnn": replace(_PLAIN, cell="rnn", tied_head=True),
    "lstm": _PLAIN,
    "attentive": replace(_PLAIN, cell="gru", attention_size=12),
    "machine": replace(_PLAIN, num_layers=1, memory=MEMORY),
    "feed-forward machine": replace(_PLAIN, cell="feed_forward", num_layers=1, memory=MEMORY),
}


@cache
def recurrent(name: str) -> RecurrentModel:
    """A model whose weights are large enough to matter."""
    torch.manual_seed(0)
    model = RecurrentModel(RECURRENT[name]).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.4)
    return model


SPLIT = Variant(name="split", options=ExportOptions(graphs="split"), tolerance=1e-4)

_SHARED = random_ids(256, seed=9)


def _recurrent(name: str, *variants: Variant) -> Case:
    lengths = ((1, 0), (9, 256), (20, 256))
    return case(
        name,
        partial(recurrent, name),
        *variants,
        features=frozenset({"generates"}),
        prefixes=([([*_SHARED, *random_ids(n, seed=n)], cached) for n, cached in lengths],),
        refusals={} if name != "lstm" else {"drafts": _drafted},
    )


def _drafted(model: Any) -> object:
    return model.generate([1, 2], draft=PromptLookup())


OF_RECURRENT = {
    name: _recurrent(name, FP32, *((SPLIT,) if name in ("lstm", "attentive") else ()))
    for name in RECURRENT
}

# --- heads that the fused kernel does not support, and modules of users ---------------------------


def _layer(head_dim: int, rotated: int, **fields: Any) -> Made:
    rotary = RotaryPositions(dim=rotated, theta=30.0)
    mixer = replace(kinds.ATTENTION, head_dim=head_dim, rotary=rotary, **fields)
    block = replace(kinds.BLOCK, mixer=mixer, norm=kinds.RMS)
    config = kinds.decoder_config(RotaryPositions(dim=6), (block,))
    return partial(kinds.decoder, config)


_LATENT = LatentConfig(query_rank=12, rank=10, rotated=6, norm=kinds.RMS, bias=False)

UNFUSED: dict[str, Made] = {
    "heads of 12": _layer(12, 12),
    "heads of 20": _layer(20, 6, num_kv_heads=2, sliding_window=5),
    "6 rotated": _layer(16, 6, query_key_norm=kinds.RMS),
    "latent": _layer(14, 6, value_dim=10, latent=_LATENT, qkv_bias=False),
}


@cache
def attentive(*, one_by_one: bool) -> nn.Module:
    """See `Attentive`."""
    torch.manual_seed(0)
    return Attentive(one_by_one=one_by_one).eval()


@cache
def mixture() -> DecoderModel:
    """A layer whose tokens all go to four experts and a shared one."""
    experts = MixtureConfig(
        experts=4, per_token=4, intermediate_size=32, shared_size=32, shared_gate=True
    )
    config = tiny_models.llama(layers=1)
    block = replace(config.blocks[0], feed_forward=experts)
    return tiny_models.decoder(replace(config, blocks=(block,)))


_OWN: dict[str, Any] = {
    "features": frozenset({"generates", "drafts"}),
    "vocabulary": kinds.VOCAB,
}
"""Several nodes compute attention, whose sums depend on how many tokens there are."""

_OF_EXPERTS: dict[str, Any] = {"features": frozenset()}
"""Texts of a batch change each other's last bits, so no service is exact."""

DECODERS = (
    *TINY.values(),
    HYBRID,
    CONVOLUTIONS,
    PORTABLE_CONVOLUTION,
    *OF_RECURRENT.values(),
    *(case(name, make, SPLIT, **_OWN) for name, make in UNFUSED.items()),
    case("a mixture of experts", mixture, QUICK, **_OF_EXPERTS),
    case("an own module", cache(unusual), features=frozenset({"generates"}), vocabulary=61),
    case("an own module with attention", partial(attentive, one_by_one=False), SPLIT, **_OWN),
    case("an own module token by token", partial(attentive, one_by_one=True), **_REPLACED),
)

# --- encoders and encoder-decoders, whose numbers are compared when they are verified -------------

NORM = kinds.LAYER

CONFIGS: dict[str, Callable[[], Any]] = {
    "logits": lambda: of_kinds.encoder_config(
        head=LanguageModelHead(tied=True, bias=True, layer=HeadLayer(activation="gelu", norm=NORM))
    ),
    "embedding": lambda: of_kinds.encoder_config(head=EmbeddingHead(pooling=("mean",))),
    "image labels": lambda: of_kinds.image_config(
        head=ClassifierHead(labels=("a", "b", "c"), pooling="first")
    ),
    "seq2seq": lambda: of_kinds.seq2seq_config(RelativeBiasPositions(buckets=8, max_distance=11)),
    "speech": of_kinds.speech_config,
}


def _made(name: str, _folder: Path) -> nn.Module:
    return of_kinds.module_of(of_kinds.one_layer(CONFIGS[name]()))


OF_KINDS = {
    name: Case(
        name=f"kind {name}",
        write=partial(_made, name),
        features=frozenset({"every role"}),
        variants=(QUICK if name in ("embedding", "seq2seq") else FP32,),
    )
    for name in CONFIGS
}

CASES = (*DECODERS, *OF_KINDS.values())
