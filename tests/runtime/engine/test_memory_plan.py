from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from tests.runtime import tiny_bundle
from tests.runtime.machine.fake_root import write_root
from tests.runtime.tiny_bundle import HEAD_WIDTH, KV_HEADS, VOCABULARY, WEIGHTS

from ortolan.runtime import Bundle, MemoryPlanError, open_bundle
from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.bundle.sound_sources import AudioSource
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.engine import memory_plan
from ortolan.runtime.engine.memory_plan import RequestMemory, check_load, plan_memory

GIB = 1 << 30

PER_TOKEN = 2 * 4 * KV_HEADS * HEAD_WIDTH


def matrix_bytes(*names: str) -> int:
    return sum(4 * WEIGHTS[name][0] * WEIGHTS[name][1] for name in names)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    tiny_bundle.write(tmp_path / "bundle")
    return open_bundle(tmp_path / "bundle")


def machine(folder: Path, *, available: int, swap: int = 0, group: int | None = None) -> Path:
    """A root with this much available memory, and this limit of its control group."""
    lines = f"MemAvailable: {available >> 10} kB\nSwapFree: {swap >> 10} kB"
    files = {"proc/meminfo": lines, "proc/self/cgroup": "0::/g"}
    if group is not None:
        files |= {"sys/fs/cgroup/g/memory.max": f"{group}", "sys/fs/cgroup/g/memory.current": "0"}
    return write_root(folder / "root", files)


def test_a_plan_counts_each_part_once(bundle: Bundle) -> None:
    plan = plan_memory(bundle.manifest, bundle.graphs, context=10, batch=3)
    assert plan.weights == plan.packed == matrix_bytes(*WEIGHTS)
    # the table is looked up, and not packed
    assert plan.copied == matrix_bytes("qkv", "head")
    assert plan.cache == 3 * 10 * PER_TOKEN
    assert plan.logits == 3 * 4 * VOCABULARY
    assert plan.total == plan.weights + plan.packed + plan.cache + plan.logits + plan.workspace


def test_packed_weights_are_mapped_and_copied_ones_are_copied_again_to_be_packed(
    bundle: Bundle,
) -> None:
    plan = plan_memory(bundle.manifest, bundle.graphs, context=10, is_packed=True)
    assert plan.packed == plan.copied == 0
    plan = plan_memory(bundle.manifest, bundle.graphs, context=10, is_copied=True)
    mapped = plan_memory(bundle.manifest, bundle.graphs, context=10)
    assert plan.packed == 2 * mapped.packed
    assert plan.certain == plan.weights + mapped.packed + plan.cache + plan.logits
    graph = bundle.graphs["decoder"]
    halves = tuple(replace(tensor, dtype="float16") for tensor in graph.external)
    graphs = {"decoder": replace(graph, external=halves)}
    wide = plan_memory(bundle.manifest, graphs, context=10)
    assert wide.packed == 2 * mapped.packed, "16-bit floats count as float32"


def test_weights_count_once_on_a_gpu(bundle: Bundle) -> None:
    states = tuple(
        msgspec.structs.replace(state, dtype="bfloat16") for state in bundle.manifest.states
    )
    manifest = msgspec.structs.replace(bundle.manifest, states=states)
    plan = plan_memory(manifest, bundle.graphs, context=10, batch=3, device="cuda")
    mapped = plan_memory(manifest, bundle.graphs, context=10, batch=3)
    assert plan.packed == plan.copied == 0
    assert plan.cache == mapped.cache == 3 * 10 * PER_TOKEN // 2
    # the CPU holds the scores of attention, of 4 heads here
    assert plan.workspace == (mapped.workspace - 4 * 4 * 10 * 10) // 2
    assert plan.certain == plan.weights + plan.cache + plan.logits
    assert mapped.certain == mapped.copied + plan.cache + plan.logits


def state(shape: tuple[int | str, ...], update: Literal["replace", "source"]) -> State:
    return State(name="s", input="s", output="t", shape=shape, dtype="float16", update=update)


def test_replaced_states_count_per_row_and_sources_by_length(bundle: Bundle) -> None:
    fixed = state(("batch", 7), "replace")
    read = state(("batch", 2, "source", 5), "source")
    manifest = msgspec.structs.replace(
        bundle.manifest, states=(fixed, read), source=TextSource(max_tokens=40)
    )
    plan = plan_memory(manifest, {}, context=10, batch=3)
    assert plan.cache == 3 * 7 * 2
    assert plan.source == 3 * 2 * 40 * 5 * 2

    sounds = AudioSource(rate=16000, window=400, hop=160, bins=80, frames=3000, vectors=1500)
    manifest = msgspec.structs.replace(manifest, source=sounds)
    plan = plan_memory(manifest, {}, context=10, batch=3)
    assert plan.source == 3 * 2 * 1500 * 5 * 2


def check_request(bundle: Bundle, gib: float, root: Path) -> None:
    """Check a request whose states need this many GiB."""
    memory = RequestMemory(bundle.manifest)
    memory.check(tokens=int(gib * GIB) // PER_TOKEN, rows=2, root=root)


def test_a_request_that_does_not_fit_gives_the_figures(tmp_path: Path, bundle: Bundle) -> None:
    root = machine(tmp_path, available=2 * GIB)
    check_request(bundle, 1.9, root)
    with pytest.raises(MemoryError, match=r"2\.25 GB .* 2\.15 GB"):
        check_request(bundle, 2.1, root)


def test_free_swap_counts_and_a_control_group_bounds(tmp_path: Path, bundle: Bundle) -> None:
    swapping = machine(tmp_path / "a", available=2 * GIB, swap=GIB)
    check_request(bundle, 2.1, swapping)
    bounded = machine(tmp_path / "b", available=2 * GIB, group=GIB)
    with pytest.raises(MemoryPlanError):
        check_request(bundle, 1.9, bounded)


def test_small_requests_and_unknown_memory_reject_nothing(tmp_path: Path, bundle: Bundle) -> None:
    check_request(bundle, 0.01, machine(tmp_path, available=0))
    check_request(bundle, 1000, tmp_path / "no such root")


def test_replaced_states_count_for_every_row_of_a_request(tmp_path: Path, bundle: Bundle) -> None:
    manifest = msgspec.structs.replace(bundle.manifest, states=(state(("batch", GIB), "replace"),))
    memory, root = RequestMemory(manifest), machine(tmp_path, available=5 * GIB)
    memory.check(tokens=1, rows=2, root=root)
    with pytest.raises(MemoryPlanError):
        memory.check(tokens=1, rows=3, root=root)


def test_loading_needs_memory_for_copied_weights_only(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plan, "SMALL_BYTES", 0)
    needed = matrix_bytes("qkv", "head") + PER_TOKEN + 4 * VOCABULARY
    check_load(bundle, is_packed=False, root=machine(tmp_path / "a", available=needed + 1024))
    small = machine(tmp_path / "b", available=needed - 1024)
    with pytest.raises(MemoryPlanError, match="ortolan pack"):
        check_load(bundle, is_packed=False, root=small)
    check_load(bundle, is_packed=True, root=small)
