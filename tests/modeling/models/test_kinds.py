"""Every kind of positions, placement, values and MLP: steps, chunks and padding change nothing."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.modeling.kinds import (
    BLOCK,
    BLOCKS,
    FEW,
    LAYERS,
    MIXERS,
    POSITIONS,
    VOCAB,
    Blocks,
    decoder,
    decoder_config,
    encoder,
    encoder_config,
    hybrid,
    seq2seq,
    seq2seq_config,
)
from tests.modeling.steps import after, garbage, in_steps
from torch import Tensor

from ortolan.modeling.config import AlibiPositions, NoPositions, Positions
from ortolan.modeling.layers.cache import Memory, empty_cache

CHUNKS = (3, 1, 2, 1, 1, 4)

MIXED = {
    # Features that interact: capped scores with biases, grouped heads with distances.
    f"{positions}-{block}": (POSITIONS[positions], BLOCKS[block])
    for positions in ("relative-bias", "alibi", "rotary")
    for block in (
        "grouped",
        "softcap",
        "wide-values",
        "pre-residual",
        "window-softcap",
    )
}

CASES: dict[str, tuple[Positions, Blocks]] = {
    **{f"positions-{name}": (kind, BLOCKS["pre"]) for name, kind in POSITIONS.items()},
    **{f"block-{name}": (POSITIONS["learned"], block) for name, block in BLOCKS.items()},
    **{f"layers-{name}": (POSITIONS["rotary"], blocks) for name, blocks in LAYERS.items()},
    "layers-own-alone": (POSITIONS["none"], LAYERS["own-and-none"]),
    "layers-own-and-a-table": (POSITIONS["learned"], LAYERS["own-and-none"]),
    **{
        f"rotary-{name}": (POSITIONS["rotary-partial"], block)
        for name, block in BLOCKS.items()
        if name.startswith("query-key-norm")
    },
    **MIXED,
}


def text(length: int, *, batch: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (batch, length), generator=generator)


def assert_close(actual: Tensor, expected: object, tolerance: float = 5e-5) -> None:
    reference = torch.as_tensor(expected).double()
    torch.testing.assert_close(actual.double(), reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_chunks_equal_the_whole_sequence(name: str) -> None:
    module, ids = decoder(decoder_config(*CASES[name])), text(12)
    with torch.inference_mode():
        cache = garbage(module.config, batch=1, capacity=14)
        assert_close(in_steps(module, ids, CHUNKS, cache), module(ids))


@pytest.mark.parametrize("name", CASES)
def test_selected_logits_equal_those_of_all_tokens(name: str) -> None:
    # The last layer computes the selected tokens only, but all tokens enter the cache.
    module, ids = decoder(decoder_config(*CASES[name])), text(9)
    selected = torch.tensor([[8, 0, 5]])
    with torch.inference_mode():
        empty = garbage(module.config, batch=1, capacity=12)
        every, cache = module.step(ids, after(9), empty)
        some, same = module.step(ids, after(9), empty, selected)
        assert_close(some, every[:, selected[0]])
        for whole, part in zip(cache, same, strict=True):
            for tensor, same_tensor in zip(part, whole, strict=True):
                assert_close(tensor, same_tensor)
        for before, untouched in zip(
            empty, garbage(module.config, batch=1, capacity=12), strict=True
        ):
            assert all(map(torch.equal, before, untouched))


@pytest.mark.parametrize("name", CASES)
def test_slots_beyond_the_longest_row_may_be_skipped(name: str) -> None:
    module, ids = decoder(decoder_config(*CASES[name])), text(8, batch=2)
    with torch.inference_mode():
        cache = garbage(module.config, batch=2, capacity=12)
        _, cache = module.step(ids[:, :7], after(7, 4), cache)
        step = after(8, 5)
        whole, _ = module.step(ids[:, 7:], step, cache)
        bounded, _ = module.step(ids[:, 7:], replace(step, seen=8), cache)
    assert_close(bounded, whole)


def test_half_precision_stays_half_precision() -> None:
    for block in ("grouped", "softcap"):
        module, ids = decoder(decoder_config(POSITIONS["rotary"], BLOCKS[block])), text(9)
        with torch.inference_mode():
            exact, half = module(ids), module.half()(ids)
        assert half.dtype == torch.float16
        assert_close(half, exact, tolerance=5e-2)


@pytest.mark.parametrize("name", CASES)
def test_a_padded_encoder_equals_its_rows_alone(name: str) -> None:
    module = encoder(encoder_config(*CASES[name]))
    lengths, ids = (8, 1, 5), text(8, batch=3)
    with torch.inference_mode():
        batch = module(ids, torch.tensor(lengths))
        for row, length in enumerate(lengths):
            assert_close(batch[row, :length], module(ids[row : row + 1, :length])[0])


def test_logits_are_scaled_and_capped() -> None:
    config, ids = decoder_config(POSITIONS["rotary"]), text(9)
    plain = decoder(config)
    capped = decoder(replace(config, head_scale=0.5, final_softcap=2.0))
    with torch.inference_mode():
        assert_close(capped(ids), 2.0 * torch.tanh(0.5 * plain(ids) / 2.0))


@pytest.mark.parametrize("kinds", ["blocks", "positions"])
def test_no_two_kinds_have_the_same_outputs(kinds: str) -> None:
    """Otherwise the comparisons above would also pass with a kind that does nothing."""
    if kinds == "blocks":
        configs = {
            name: encoder_config(POSITIONS["rotary-partial"], block)
            for name, block in BLOCKS.items()
        }
    else:
        configs = {name: encoder_config(positions) for name, positions in POSITIONS.items()}
    tolerance = 2e-5 if kinds == "blocks" else 1e-3
    with torch.inference_mode():
        outputs = {name: encoder(config)(text(8)) for name, config in configs.items()}
    for one, other in itertools.combinations(outputs, 2):
        assert not torch.allclose(outputs[one], outputs[other], atol=tolerance), (one, other)


# --- the cache ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_ragged_batch_equals_its_rows_alone(name: str) -> None:
    module, ids = decoder(decoder_config(*CASES[name])), text(9, batch=3)
    lengths = (4, 6, 1)
    with torch.inference_mode():
        cache = garbage(module.config, batch=3, capacity=12)
        prompt, cache = module.step(ids[:, :6], after(*lengths), cache)
        decoded = []
        for i in range(3):
            new = ids.gather(1, torch.tensor(lengths)[:, None] + i)
            grown = after(*(length + i + 1 for length in lengths))
            logits, cache = module.step(new, grown, cache, torch.zeros(3, 1, dtype=torch.int64))
            decoded.append(logits)
        for row, length in enumerate(lengths):
            alone = module(ids[row : row + 1, : length + 3])[0]
            together = torch.cat([prompt[row, :length], torch.cat(decoded, 1)[row]])
            assert_close(together, alone)


@pytest.mark.parametrize("name", [*(f"positions-{name}" for name in POSITIONS), *MIXED])
def test_an_encoder_decoder_in_steps_equals_the_whole_sequence(name: str) -> None:
    module = seq2seq(seq2seq_config(*CASES[name]))
    ids, sources, lengths = text(7, batch=3, seed=1), text(6, batch=3), torch.tensor([6, 2, 4])
    with torch.inference_mode():
        whole = module(sources, ids, lengths)
        source = module.source(sources, lengths)
        cache = garbage(module.config.decoder, batch=3, capacity=9)
        stepped = in_steps(module, ids, (3, 1, 1, 1, 1), cache, source)
    assert_close(stepped, whole)


def test_a_source_is_required_by_cross_attention_only() -> None:
    module, plain = (
        seq2seq(seq2seq_config(AlibiPositions())),
        decoder(decoder_config(NoPositions())),
    )
    with pytest.raises(TypeError, match="source"):
        module.decoder(text(3))
    with pytest.raises(TypeError, match="source"):
        plain.with_source(module.source(text(3)), text(3))


# --- other mixers and mixtures; for the formulas see families/test_parity.py ---------------------

OTHERS = {name: hybrid(mixer, depth=1) for name, mixer in MIXERS.items()} | {
    "mixture": decoder_config(POSITIONS["rotary"], replace(BLOCK, feed_forward=FEW))
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_hybrid_in_steps_equals_the_whole_sequence(name: str) -> None:
    module, ids = decoder(OTHERS[name]), text(12)
    cache: Sequence[Memory] = empty_cache(module.config, batch=1, capacity=16)
    results = []
    with torch.inference_mode():
        whole = module(ids)
        for start, size in ((0, 5), (5, 1), (6, 1)):
            part = ids[:, start : start + size]
            logits, cache = module.step(part, after(start + size), cache)
            results.append(logits)
        some, _ = module.step(ids[:, 7:], after(12), cache, torch.tensor([[4, 0]]))
    torch.testing.assert_close(torch.cat(results, 1), whole[:, :7], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(some, whole[:, [11, 7]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OTHERS)
def test_gradients_reach_every_weight(name: str) -> None:
    module = decoder(OTHERS[name])
    module(text(12)).square().sum().backward()
    unreached = [n for n, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert unreached == []
