"""Prefixes that services keep, in memory and in files: results stay bit-identical."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.conftest import Models
from tests.runtime.engine.test_state_file import DAMAGES
from tests.runtime.serving.served import KINDS, outcome, wait_until
from tests.runtime.tiny_decoder import CONTEXT, write_bundle
from tests.tiny.numbers import random_ids

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine import prefix_cache, prefix_files
from ortolan.runtime.engine.attention_kernels import GRID
from ortolan.runtime.engine.prefix_cache import PrefixCounts
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.loading import load

LIMIT = 4


def served(
    model: Decoder, prompts: Sequence[list[int]], **options: Any
) -> tuple[list[Completion], PrefixCounts]:
    """Completions of a new service, one after the other, and what its cache counted."""
    with model.serve(slots=2, **options) as service:
        done = [
            service.submit(prompt, max_new_tokens=LIMIT, ignore_eos=True, logprobs=1).result()
            for prompt in prompts
        ]
        counts = service.stats().cache
    return done, counts


def without_cache(model: Decoder, prompts: Sequence[list[int]]) -> list[Any]:
    done, counts = served(model, prompts, cache_bytes=0)
    assert counts == PrefixCounts()
    return [outcome(one) for one in done]


def cached_tokens(done: Sequence[Completion]) -> list[int]:
    return [one.timings.cached_tokens for one in done]


def block_bytes(model: Decoder) -> int:
    states = model.manifest
    return GRID * (states.state_bytes("append") + 4) + states.state_bytes("replace")


def blocks(*seeds: int) -> list[int]:
    """A prompt of whole blocks, and three more tokens."""
    return [*(token for seed in seeds for token in random_ids(GRID, seed=seed)), 5, 6, 7]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 127, 128, 129, 256, 600, CONTEXT - LIMIT])
def test_cached_prompts_read_from_memory_and_from_files_are_those_computed(
    models: Models, tmp_path: Path, kind: str, length: int
) -> None:
    prompt, shared = random_ids(length), GRID * ((length - 1) // GRID)
    (cold,) = without_cache(models[kind], [prompt])
    in_memory, _ = served(models[kind], [prompt, prompt], cache_folder=tmp_path)
    in_files, counts = served(models[kind], [prompt], cache_folder=tmp_path)
    assert [outcome(one) for one in (*in_memory, *in_files)] == [cold] * 3
    assert cached_tokens([*in_memory, *in_files]) == [0, shared, shared]
    assert (counts.read, counts.blocks) == (shared // GRID, length // GRID)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_share_whole_blocks_of_their_common_prefix(models: Models, kind: str) -> None:
    system = random_ids(300)
    prompts = [[*system, *random_ids(length, seed=length)] for length in (1, 20, 100, 400)]
    done, counts = served(models[kind], prompts)
    assert [outcome(one) for one in done] == without_cache(models[kind], prompts)
    assert cached_tokens(done) == [0, 256, 256, 256]
    assert counts == PrefixCounts(
        prompts=4,
        hits=3,
        tokens=3 * 256,
        blocks=2 + 1 + 3,  # of 400 and of 700 tokens the rest
        bytes=6 * block_bytes(models[kind]),
    )


def test_concurrent_prompts_share_what_the_first_computes(models: Models) -> None:
    prompts = [[*random_ids(256), token] for token in range(2)]
    with models["fp32"].serve(slots=2) as service:
        tickets = [service.submit(prompt, max_new_tokens=1) for prompt in prompts]
        assert cached_tokens([ticket.result() for ticket in tickets]) == [0, 256]


@pytest.mark.parametrize("kind", KINDS)
def test_the_ends_of_chains_are_evicted_first_within_the_limit(models: Models, kind: str) -> None:
    model, size = models[kind], block_bytes(models[kind])
    prompts = [blocks(0, 1, 2), blocks(1, 1), blocks(0, 1, 2)]
    done, counts = served(model, prompts, cache_bytes=4 * size)
    assert cached_tokens(done) == [0, 0, 2 * GRID]
    assert [outcome(one) for one in done] == without_cache(model, prompts)
    assert (counts.blocks, counts.bytes, counts.evicted) == (4, 4 * size, 2)
    _, counts = served(model, prompts, cache_bytes=size - 1)
    assert counts == PrefixCounts(prompts=3)


def test_files_are_used_when_memory_is_full(models: Models, tmp_path: Path) -> None:
    model, prompt = models["fp32"], random_ids(600)
    limits: Any = {"cache_folder": tmp_path, "cache_bytes": 2 * block_bytes(model)}
    served(model, [prompt], **limits)
    done, counts = served(model, [prompt, prompt], **limits)
    assert [outcome(one) for one in done] == without_cache(model, [prompt, prompt])
    assert cached_tokens(done) == [512, 512]
    assert counts.read == 4 + 2


def test_completions_are_not_cached_in_exact_mode(models: Models) -> None:
    prompt = random_ids(GRID - 2)  # the second new token completes a block
    _, counts = served(models["fp32"], [prompt, prompt])
    assert counts == PrefixCounts(prompts=2)


def test_blocks_of_other_bundles_and_modes_are_not_used(models: Models, tmp_path: Path) -> None:
    prompt, folder = random_ids(300), tmp_path / "cache"
    other = load(write_bundle(tmp_path / "other", seed=1).path, Decoder, threads=1)
    for model, mode in ((models["fp32"], "exact"), (other, "exact"), (models["fp32"], "fast")):
        done, counts = served(model, [prompt], cache_folder=folder, mode=mode)
        assert (cached_tokens(done), counts.read) == ([0], 0)
    assert len(list(folder.iterdir())) == 2 + 2 + 2


def test_prompts_with_colliding_hashes_are_told_apart(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_cache, "_hash", lambda data: bytes(32))
    prompts = [random_ids(200, seed=seed) for seed in (0, 1, 0, 1)]
    cold = without_cache(models["fp32"], prompts)
    for folder in (None, tmp_path, tmp_path):
        done, counts = served(models["fp32"], prompts, cache_folder=folder)
        assert [outcome(one) for one in done] == cold
        assert counts.blocks == 1


# --- files ------------------------------------------------------------------------------------


def test_least_recent_files_and_ends_of_chains_are_removed_within_the_limit(
    models: Models, tmp_path: Path
) -> None:
    model = models["fp32"]
    served(model, [blocks(0, 1)], cache_folder=tmp_path)
    (size,) = {path.stat().st_size for path in tmp_path.iterdir()}
    limits: Any = {"cache_folder": tmp_path, "cache_folder_bytes": 4 * size}
    for prompt, expected in (
        (blocks(2, 3), 0),
        (blocks(0, 1), 2 * GRID),  # recent again
        (blocks(4), 0),  # the end of 2, 3 leaves
        (blocks(2, 3), GRID),
        (blocks(0, 1), GRID),
    ):
        done, _ = served(model, [prompt], **limits)
        assert cached_tokens(done) == [expected]
        assert len(list(tmp_path.iterdir())) <= 4
    for limit in (0, size - 1):
        folder = tmp_path / f"{limit}"
        served(model, [blocks(0)], cache_folder=folder, cache_folder_bytes=limit)
        assert not list(folder.iterdir())


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_removed_with_the_reason_and_written_again(
    models: Models, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    prompt = blocks(0)
    served(models["fp32"], [prompt], cache_folder=tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(DAMAGES[name](content))
    done, _ = served(models["fp32"], [prompt], cache_folder=tmp_path)
    assert cached_tokens(done) == [0]
    assert f"removed a file from {tmp_path}. {path.name}: expected" in caplog.text
    assert path.read_bytes() == content


def test_other_files_stay_and_leftovers_of_killed_processes_go(
    models: Models, tmp_path: Path
) -> None:
    served(models["fp32"], [blocks(0)], cache_folder=tmp_path)
    (block,) = tmp_path.iterdir()
    size = block.stat().st_size
    (tmp_path / "notes.block").write_bytes(bytes(10 * size))
    leftover = tmp_path / f".{'0' * 64}.block.{'0' * 16}"
    leftover.write_bytes(bytes(size))
    os.utime(leftover, (0, 0))
    served(models["fp32"], [blocks(1)], cache_folder=tmp_path, cache_folder_bytes=2 * size)
    assert block.exists()
    assert (tmp_path / "notes.block").exists()
    assert not leftover.exists()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_missing_damaged_or_unwritten_block_is_written_when_next_used(
    models: Models,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    def files() -> list[Path]:
        return list(tmp_path.glob("*.block"))

    with models["fp32"].serve(slots=2, cache_bytes=0, cache_folder=tmp_path) as service:

        def use() -> None:
            service.submit(blocks(0), max_new_tokens=1).result()

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", fail)
            use()
            wait_until(lambda: "was not written: no space left" in caplog.text)
        with monkeypatch.context() as patched:
            patched.setattr(prefix_files, "PENDING_BYTES", 1)
            use()
        assert not files()
        use()
        wait_until(lambda: len(files()) == 1)
        files()[0].unlink()
        use()
        wait_until(lambda: len(files()) == 1)
        (block,) = files()
        block.write_bytes(b"")
        use()
    assert block.stat().st_size > 0


PROGRAM = """
import sys
from ortolan.runtime import load
model, folder, limit = load(sys.argv[1], threads=1), sys.argv[2], int(sys.argv[3])
for start in range(9):
    limits = {"cache_bytes": 0, "cache_folder": folder, "cache_folder_bytes": limit}
    with model.serve(slots=2, **limits) as service:
        for number in range(start, start + 6):
            prompt = [*[number % 9] * 128, 1, 2]
            service.submit(prompt, max_new_tokens=1).result()
"""


def test_two_processes_at_once_read_no_damaged_file_and_stay_near_the_limit(
    models: Models, tmp_path: Path
) -> None:
    served(models["fp32"], [blocks(0)], cache_folder=tmp_path)
    (size,) = (path.stat().st_size for path in tmp_path.iterdir())
    arguments = [f"{models['fp32'].bundle.path}", f"{tmp_path}", f"{4 * size}"]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, b"")
    served(models["fp32"], [blocks(1)], cache_folder=tmp_path, cache_folder_bytes=4 * size)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * size


def test_a_folder_that_cannot_be_created_is_refused(
    models: Models, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "file").touch()
    texts = [
        refusal(lambda place=place: models["fp32"].serve(cache_folder=tmp_path / place), tmp_path)  # type: ignore[misc]
        for place in ("file", "file/below")
    ]
    assert texts == snapshot
