"""Results with cached prefixes are bit-identical to results without."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.runtime import packed_bundles
from tests.runtime.tiny_decoder import CONTEXT, VOCABULARY, write_bundle
from tests.tiny.numbers import random_ids

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine import prefix_cache
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.prefix_cache import PrefixCache, PrefixCounts
from ortolan.runtime.engine.runner import GRID
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.loading import load

KINDS = ("fp32", "int4", "int8-prefill", "recurrent", "by-token")
PLENTY = 1 << 30
LIMIT = 4


class RecordedText(SampledSequence):
    """A sequence that records the logits of each of its tokens."""

    def __init__(self, prompt: list[int]) -> None:
        request = Request(prompt=prompt, prompt_tokens=len(prompt), limit=LIMIT)
        super().__init__(request, vocab_size=VOCABULARY, tokenizer=None)
        self.logits: list[NDArray[np.float32]] = []

    def advance(self, logits_V: NDArray[np.float32]) -> None:
        self.logits.append(logits_V.copy())
        super().advance(logits_V)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    folder = tmp_path_factory.mktemp("prefixes")
    bundles = {
        "fp32": write_bundle(folder / "fp32").path,
        "other": write_bundle(folder / "other", seed=1).path,
        "recurrent": write_bundle(folder / "recurrent", recurrent=True).path,
        "by-token": packed_bundles.write(folder / "by-token", "by-token").path,
        # its kernel takes rows in pairs
        "int4": packed_bundles.write(folder / "int4", "int4", group=64).path,
        "int8-prefill": packed_bundles.write(folder / "int8", "int8-prefill", group=64).path,
    }
    return {kind: Engine(open_bundle(path), threads=1) for kind, path in bundles.items()}


@pytest.fixture
def new_cache(engines: dict[str, Engine]) -> Iterator[Callable[..., PrefixCache]]:
    caches: list[PrefixCache] = []

    def new(
        kind: str = "fp32",
        *,
        exact: bool = True,
        blocks: float | None = None,
        folder: Path | None = None,
        file_blocks: float = 1000,
    ) -> PrefixCache:
        size = block_bytes(engines[kind])
        cache = PrefixCache(
            engines[kind],
            exact=exact,
            most_bytes=PLENTY if blocks is None else int(blocks * size),
            folder=folder,
            most_file_bytes=int(file_blocks * (size + 2048)),
        )
        caches.append(cache)
        return cache

    yield new
    for cache in caches:
        cache.close()


def block_bytes(engine: Engine) -> int:
    states = engine.manifest
    return GRID * (states.state_bytes("append") + 4) + states.state_bytes("replace")


def generated(
    engine: Engine, prompts: Sequence[list[int]], cache: PrefixCache | None, *, exact: bool = True
) -> list[RecordedText]:
    generator = Generator(engine, slots=2, exact=exact, prefixes=cache)
    texts = [RecordedText(prompt) for prompt in prompts]
    for text in texts:
        generator.submit(text)
    generator.run()
    return texts


def assert_same(texts: Sequence[RecordedText], expected: Sequence[RecordedText]) -> None:
    """Compare bit by bit."""
    for text, wanted in zip(texts, expected, strict=True):
        assert text.tokens == wanted.tokens
        for got, want in zip(text.logits, wanted.logits, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 127, 128, 129, 256, 300, 600, CONTEXT - LIMIT])
def test_cold_cached_read_and_evicted_prefixes_are_bit_identical(
    engines: dict[str, Engine],
    new_cache: Callable[..., PrefixCache],
    tmp_path: Path,
    kind: str,
    length: int,
) -> None:
    engine, prompt = engines[kind], random_ids(length)
    cold = generated(engine, [prompt], None)
    cache, shared = new_cache(kind, folder=tmp_path), GRID * ((length - 1) // GRID)
    filled = generated(engine, [prompt], cache)
    cached = generated(engine, [prompt], cache)
    cache.close()
    later = new_cache(kind, folder=tmp_path)
    from_files = generated(engine, [prompt], later)
    for entry in tmp_path.iterdir():
        entry.unlink()
    later.clear()
    evicted = generated(engine, [prompt], later)
    for texts, tokens in ((filled, 0), (cached, shared), (from_files, shared), (evicted, 0)):
        assert_same(texts, cold)
        assert texts[0].cached_tokens == tokens


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_share_whole_blocks_of_their_common_prefix(
    engines: dict[str, Engine], new_cache: Callable[..., PrefixCache], kind: str
) -> None:
    system, cache = random_ids(300), new_cache(kind)
    prompts = [[*system, *random_ids(length, seed=length)] for length in (1, 20, 100, 400)]
    cold = generated(engines[kind], prompts, None)
    for prompt, wanted in zip(prompts, cold, strict=True):
        (text,) = generated(engines[kind], [prompt], cache)
        assert_same([text], [wanted])
        assert text.cached_tokens == (0 if prompt is prompts[0] else 256)
    assert cache.counts == PrefixCounts(
        prompts=4,
        hits=3,
        tokens=3 * 256,
        blocks=2 + 1 + 3,  # of 400 and of 700 tokens the rest
        bytes=6 * block_bytes(engines[kind]),
    )


def test_concurrent_prompts_share_what_the_first_computes(
    engines: dict[str, Engine], new_cache: Callable[..., PrefixCache]
) -> None:
    prompts = [[*random_ids(256), token] for token in range(2)]
    texts = generated(engines["fp32"], prompts, new_cache())
    assert [text.cached_tokens for text in texts] == [0, 256]
    assert_same(texts, generated(engines["fp32"], prompts, None))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_any_prompts_match_cold_results_within_any_memory_limit(
    engines: dict[str, Engine],
    alone: Callable[[str, tuple[int, ...]], RecordedText],
    kind: str,
    data: st.DataObject,
) -> None:
    blocks = data.draw(st.floats(0, 6), "blocks")
    most_bytes = int(blocks * block_bytes(engines[kind]))
    cache = PrefixCache(engines[kind], exact=True, most_bytes=most_bytes)
    parts = st.lists(st.integers(0, 2), min_size=1, max_size=4)
    together = st.lists(parts, min_size=1, max_size=3)  # more than there are slots
    for prompts in data.draw(st.lists(together, min_size=1, max_size=4), "prompts"):
        texts = generated(engines[kind], [ids_of(prompt) for prompt in prompts], cache)
        assert_same(texts, [alone(kind, tuple(prompt)) for prompt in prompts])
        assert cache.counts.bytes <= most_bytes
        assert_chains_are_whole(cache)


@pytest.fixture(scope="module")
def alone(engines: dict[str, Engine]) -> Callable[[str, tuple[int, ...]], RecordedText]:
    """The result of a prompt without a cache, computed once."""

    @functools.cache
    def run(kind: str, parts: tuple[int, ...]) -> RecordedText:
        (text,) = generated(engines[kind], [ids_of(parts)], None)
        return text

    return run


def ids_of(parts: Sequence[int]) -> list[int]:
    """A prompt of whole blocks of three kinds, and three more tokens."""
    return [*(token for part in parts for token in random_ids(GRID, seed=part)), 5, 6, 7]


def assert_chains_are_whole(cache: PrefixCache) -> None:
    """Every block in memory is a first one, or follows one in memory that is more recent."""
    order = {key: index for index, key in enumerate(cache._blocks)}
    sizes = [block.size for block in cache._blocks.values()]
    assert (cache.counts.blocks, cache.counts.bytes) == (len(sizes), sum(sizes))
    for key, block in cache._blocks.items():
        parents = [
            other
            for other in (*cache._roots, *cache._blocks)
            if prefix_cache._hash(other + block.ids) == key
        ]
        assert len(parents) == 1
        assert parents[0] in cache._roots or order[parents[0]] > order[key]


def test_the_end_of_a_chain_is_evicted_before_its_beginning(
    engines: dict[str, Engine], new_cache: Callable[..., PrefixCache]
) -> None:
    cache = new_cache(blocks=4)
    generated(engines["fp32"], [ids_of([0, 1, 2])], cache)
    generated(engines["fp32"], [ids_of([1, 1])], cache)
    assert cache.counts.evicted == 1
    (text,) = generated(engines["fp32"], [ids_of([0, 1, 2])], cache)
    assert text.cached_tokens == 2 * GRID


def test_completions_are_not_cached_in_exact_mode(
    engines: dict[str, Engine], new_cache: Callable[..., PrefixCache]
) -> None:
    cache, prompt = new_cache(), random_ids(GRID - 2)
    for _ in range(2):
        (text,) = generated(engines["fp32"], [prompt], cache)
        assert len(text.tokens) == LIMIT  # the second of them completes a block
    assert cache.counts == PrefixCounts(prompts=2)


def test_a_cache_without_memory_and_folder_caches_nothing(
    engines: dict[str, Engine], new_cache: Callable[..., PrefixCache]
) -> None:
    cache = new_cache(blocks=0)
    for _ in range(2):
        generated(engines["fp32"], [random_ids(300)], cache)
    assert cache.counts == PrefixCounts(prompts=2)


def test_blocks_of_other_bundles_and_modes_are_not_used(
    engines: dict[str, Engine], new_cache: Callable[..., PrefixCache], tmp_path: Path
) -> None:
    prompt = random_ids(300)
    generated(engines["fp32"], [prompt], cache := new_cache(folder=tmp_path))
    cache.close()
    for kind, exact in (("other", True), ("fp32", False)):
        other = new_cache(kind, exact=exact, folder=tmp_path)
        assert other.fetch(prompt, engines[kind].slots(), 0) == 0
        other.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_prompts_with_colliding_hashes_are_told_apart(
    engines: dict[str, Engine],
    new_cache: Callable[..., PrefixCache],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefix_cache, "_hash", lambda data: bytes(32))
    prompts = [random_ids(200, seed=seed) for seed in range(2)]
    cold = generated(engines["fp32"], prompts, None)
    for folder in (None, tmp_path):
        cache = new_cache(folder=folder)
        for _ in range(2):
            for prompt, wanted in zip(prompts, cold, strict=True):
                assert_same(generated(engines["fp32"], [prompt], cache), [wanted])
        assert cache.counts.blocks == 1


def test_files_are_used_when_memory_is_full(
    engines: dict[str, Engine], new_cache: Callable[..., PrefixCache], tmp_path: Path
) -> None:
    prompt, cache = random_ids(600), new_cache(blocks=2, folder=tmp_path)
    cold = generated(engines["fp32"], [prompt], cache)
    cache._files._writer.submit(lambda: None).result()  # type: ignore[union-attr]
    text = generated(engines["fp32"], [prompt], cache)
    assert_same(text, cold)
    assert text[0].cached_tokens == 512
    counts = replace(cache.counts, bytes=0)
    assert counts == PrefixCounts(prompts=2, hits=1, tokens=512, blocks=2, read=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_service_uses_the_files_of_an_earlier_one(
    engines: dict[str, Engine], tmp_path: Path, kind: str
) -> None:
    model, prompt = load(engines[kind]._bundle.path, Decoder, threads=1), random_ids(300)
    with model.serve(cache_bytes=0) as service:
        cold = service.submit(prompt, max_new_tokens=9).completion()
    for expected in ((0, 0), (256, 2)):
        with model.serve(cache_folder=tmp_path / "cache") as service:
            completion = service.submit(prompt, max_new_tokens=9).completion()
            assert (completion.timings.cached_tokens, service.stats().cache.read) == expected
        assert completion.tokens == cold.tokens


def test_a_service_with_a_file_limit_of_0_writes_no_files(
    engines: dict[str, Engine], tmp_path: Path
) -> None:
    model = load(engines["fp32"]._bundle.path, Decoder, threads=1)
    with model.serve(cache_folder=tmp_path, cache_folder_bytes=0) as service:
        service.submit(random_ids(300), max_new_tokens=1).completion()
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="cache_folder_bytes"):
        model.serve(cache_folder_bytes=-1)
