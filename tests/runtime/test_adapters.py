"""Adapters at run time: what rows compute with them, and what is refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.runtime import packed_bundles, tiny_encoder
from tests.runtime.chat.tiny_chat import TEMPLATE
from tests.runtime.tiny_adapters import merged, random_factors, write_adapter
from tests.runtime.tiny_decoder import (
    VOCABULARY,
    assert_close,
    reference_logits,
    tokenizer_json,
    write_bundle,
)

from ortolan.runtime import limits
from ortolan.runtime.bundle.adapter_folder import BLOB, NAME, Factors
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import (
    AdapterError,
    BundleKindError,
    InputError,
    MemoryPlanError,
    StateFileError,
)
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.drafts import PromptLookup
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.loading import load
from ortolan.runtime.serving.ticket import Ticket

KINDS = ("fp32", "split", "int4", "int8-prefill", "recurrent", "by-token")

NAMES = (None, "a", "b", "c")

IDS = [int(i) for i in np.random.default_rng(7).integers(0, VOCABULARY - 2, 300)]


class Pair:
    """A bundle, loaded without and with three adapters."""

    def __init__(self, folder: Path, kind: str) -> None:
        others = {"chat_template.jinja": TEMPLATE.encode()}
        self.bundle = packed_bundles.write(
            folder / "bundle", kind, group=64, has_text=True, others=others
        )
        kinds: dict[str, dict[str, Any]] = {
            "a": dict(rank=2),
            "b": dict(rank=3, weights=("0.q", "1.o")),
            "c": dict(rank=1),
        }
        self.paths = {
            name: write_adapter(
                folder / name, self.bundle, random_factors(self.bundle, seed=seed, **options)
            )
            for seed, (name, options) in enumerate(kinds.items())
        }
        self.plain = load(self.bundle.path, Decoder, threads=1)
        self.adapted = load(self.bundle.path, Decoder, threads=1, adapters=self.paths)


class Pairs(dict[str, Pair]):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, kind: str) -> Pair:
        self[kind] = Pair(self._folder / kind, kind)
        return self[kind]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(tmp_path_factory.mktemp("adapters"))


def outcome(done: Completion) -> tuple[Any, ...]:
    return done.tokens, done.logprobs


# --- what is computed -----------------------------------------------------------------------------


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("recurrent", [False, True])
def test_logits_are_those_of_merged_weights(tmp_path: Path, split: bool, recurrent: bool) -> None:
    tiny = write_bundle(tmp_path / "bundle", split=split, recurrent=recurrent)
    bundle = open_bundle(tiny.path)
    of_all, of_some = random_factors(bundle), random_factors(bundle, seed=1, weights=("0.k", "1.v"))
    paths = {
        "all": write_adapter(tmp_path / "all", bundle, of_all),
        "some": write_adapter(tmp_path / "some", bundle, of_some),
    }
    model = load(tiny.path, Decoder, adapters=paths)
    assert model.adapters == ("all", "some")
    for name, factors in (("all", of_all), ("some", of_some)):
        expected = reference_logits(merged(tiny.weights, factors), IDS[:20], recurrent=recurrent)
        assert_close(model.logits(IDS[:20], adapter=name), expected)
        with model.session(adapter=name) as session:  # by decode steps
            session.append(IDS[:10])
            for token in IDS[10:20]:
                last = session.append([token])
        assert_close(last, expected[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_requests_without_an_adapter_are_the_same_to_the_bit(pairs: Pairs, kind: str) -> None:
    plain, adapted = pairs[kind].plain, pairs[kind].adapted
    np.testing.assert_array_equal(plain.logits(IDS[:60]), adapted.logits(IDS[:60]))
    for n in (None, 3):
        options: dict[str, Any] = dict(n=n, max_new_tokens=20, logprobs=3, ignore_eos=True)
        expected, got = plain.generate([IDS[:9]], **options), adapted.generate([IDS[:9]], **options)
        assert list(map(outcome, got)) == list(map(outcome, expected))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_different_adapters_in_one_batch_equal_each_alone_to_the_bit(
    pairs: Pairs, kind: str
) -> None:
    model = pairs[kind].adapted
    options: dict[str, Any] = dict(max_new_tokens=12, logprobs=2, ignore_eos=True)
    prompts = [IDS[number : 9 + 3 * number] for number in range(8)]
    with model.serve(slots=2, cache_bytes=0) as service:
        alone = [
            service.submit(prompt, adapter=NAMES[number % 4], **options).completion()
            for number, prompt in enumerate(prompts)
        ]
    with model.serve(slots=8) as service:
        tickets = [
            service.submit(prompt, adapter=NAMES[number % 4], **options)
            for number, prompt in enumerate(prompts)
        ]
        together = [ticket.completion() for ticket in tickets]
    assert list(map(outcome, together)) == list(map(outcome, alone))
    different = {
        str(model.generate([IDS[:9]], adapter=name, **options)[0].logprobs) for name in NAMES
    }
    assert len(different) == len(NAMES)


@pytest.mark.parametrize("kind", ["fp32", "int4", "recurrent"])
def test_requests_with_adapters_at_any_time_equal_themselves_alone(pairs: Pairs, kind: str) -> None:
    model, alone = pairs[kind].adapted, dict[tuple[Any, ...], Completion]()

    def options(limit: int, seed: int, adapter: str | None) -> dict[str, Any]:
        sampling = Sampling(temperature=1.0, seed=seed)
        return dict(max_new_tokens=limit, sampling=sampling, adapter=adapter)

    class Requests(RuleBasedStateMachine):
        @initialize(slots=st.sampled_from([2, 8]), cache_bytes=st.sampled_from([0, 1 << 20]))
        def start(self, slots: int, cache_bytes: int) -> None:
            self.service = model.serve(slots=slots, cache_bytes=cache_bytes)
            self.tickets: dict[Ticket, tuple[int, int, int, str | None]] = {}

        @rule(
            length=st.integers(1, 30) | st.sampled_from([128, 140]),
            limit=st.integers(1, 12),
            seed=st.integers(0, 3),
            adapter=st.sampled_from(NAMES),
            priority=st.integers(0, 2),
        )
        def submit(
            self, length: int, limit: int, seed: int, adapter: str | None, priority: int
        ) -> None:
            ticket = self.service.submit(
                IDS[:length], priority=priority, **options(limit, seed, adapter)
            )
            self.tickets[ticket] = length, limit, seed, adapter

        @precondition(lambda self: self.tickets)
        @rule(data=st.data())
        def cancel(self, data: st.DataObject) -> None:
            data.draw(st.sampled_from(list(self.tickets))).cancel()

        def teardown(self) -> None:
            if not hasattr(self, "service"):
                return
            self.service.close()
            for finished, key in self.tickets.items():
                length, limit, seed, adapter = key
                if key not in alone:
                    with model.serve(slots=2, cache_bytes=0) as service:
                        alone[key] = service.submit(
                            IDS[:length], **options(limit, seed, adapter)
                        ).completion()
                done = finished.completion(timeout=60)
                assert done.tokens == alone[key].tokens[: len(done.tokens)]
                assert done.finish_reason in ("cancelled", alone[key].finish_reason)

    machine = Requests.TestCase
    machine.settings = settings(max_examples=8, stateful_step_count=15, deadline=None)
    machine().runTest()


def test_a_prefix_is_cached_for_its_adapter_alone(pairs: Pairs, tmp_path: Path) -> None:
    model = pairs["fp32"].adapted
    options: dict[str, Any] = dict(max_new_tokens=3, logprobs=1)
    expected = [model.generate([IDS[:200]], adapter=name, **options)[0] for name in ("a", "b")]
    for _ in range(2):  # the second service reads files
        with model.serve(slots=2, cache_folder=tmp_path) as service:
            done = [
                service.submit(IDS[:200], adapter=name, **options).completion()
                for name in ("a", "b", "a", "b", None)
            ]
        assert list(map(outcome, done[:4])) == list(map(outcome, 2 * expected))
    assert [one.timings.cached_tokens for one in done] == [128] * 5


@pytest.mark.parametrize("kind", ["fp32", "int4"])
def test_a_draft_changes_nothing(pairs: Pairs, kind: str) -> None:
    model = pairs[kind].adapted
    prompt, options = (IDS[:12] * 4), dict[str, Any](max_new_tokens=24, ignore_eos=True)
    for name in NAMES:
        drafted = model.generate(prompt, draft=PromptLookup(), adapter=name, **options)
        chunks = model.logits([*prompt, *drafted.tokens], adapter=name)
        assert drafted.timings.drafted_tokens > 0
        assert drafted.tokens == tuple(chunks[len(prompt) - 1 : -1].argmax(-1).tolist())


@pytest.mark.parametrize("kind", ["fp32", "int4", "recurrent"])
def test_turns_of_a_conversation_may_use_different_adapters(pairs: Pairs, kind: str) -> None:
    model = pairs[kind].adapted
    with model.serve(slots=2) as service:
        conversations = (
            model.conversation(), model.conversation(reuse=False), service.conversation()
        )  # fmt: skip
        for turn, adapter in enumerate(("a", "a", "b", None, "a")):
            replies = [
                conversation.ask(
                    "Hello! " * (turn + 20), max_new_tokens=8, logprobs=2, adapter=adapter
                )
                for conversation in conversations
            ]
            assert len({str(outcome(reply.completion)) for reply in replies}) == 1
            cached = replies[0].completion.timings.cached_tokens
            assert (cached > 0) == (turn == 1)


def test_sessions_fork_save_and_restore_with_their_adapter(pairs: Pairs, tmp_path: Path) -> None:
    model = pairs["fp32"].adapted
    with model.session(adapter="a") as session, model.session() as other:
        session.append(IDS[:20])
        expected = model.logits(IDS[:22], adapter="a")[-1]
        snapshot = session.snapshot()
        session.save(tmp_path / "session")
        np.testing.assert_array_equal(session.fork().append(IDS[20:22]), expected)
        loaded = model.load_session(tmp_path / "session", adapter="a")
        np.testing.assert_array_equal(loaded.append(IDS[20:22]), expected)
        with pytest.raises(InputError, match="another bundle or adapter"):
            other.restore(snapshot)
    with pytest.raises(StateFileError, match="states of the bundle and adapter"):
        model.load_session(tmp_path / "session")
    with pytest.raises(StateFileError, match="states of the bundle and adapter"):
        pairs["fp32"].plain.load_session(tmp_path / "session")


# --- what is refused ------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_bundle(write_bundle(tmp_path / "bundle", tokenizer=tokenizer_json()).path)


def refused(bundle: Bundle, folder: Path) -> str:
    with pytest.raises(AdapterError) as caught:
        load(bundle.path, adapters={"mine": folder})
    return str(caught.value)


def test_unknown_name_names_the_loaded_ones(pairs: Pairs) -> None:
    with pytest.raises(InputError, match=r"adapter 'x' is not loaded \(loaded: a, b, c\)"):
        pairs["fp32"].adapted.generate(IDS[:3], adapter="x")
    with pytest.raises(InputError, match=r"adapter 'a' is not loaded \(loaded: none\)"):
        pairs["fp32"].plain.stream("abc", adapter="a")
    with pytest.raises(InputError, match="adapter 3 is not loaded"):
        pairs["fp32"].adapted.logits(IDS[:3], adapter=3)  # type: ignore[arg-type]
    with pairs["fp32"].adapted.serve() as service, pytest.raises(InputError, match="not loaded"):
        service.submit(IDS[:3], adapter="x")


def test_adapter_of_another_bundle_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    other = open_bundle(write_bundle(tmp_path / "other", seed=1).path)
    folder = write_adapter(tmp_path / "adapter", other, random_factors(other))
    assert "made for another bundle" in refused(bundle, folder)


def damage(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return apply


def described(**changes: Any) -> Callable[[Path], object]:
    def change(data: bytes) -> bytes:
        return json.dumps(json.loads(data) | changes).encode()

    return damage(NAME, change)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda folder: (folder / NAME).unlink(), "not an adapter"),
    "empty": (damage(NAME, lambda data: b""), "adapter.json is invalid"),
    "cut": (damage(NAME, lambda data: data[:-20]), "adapter.json is invalid"),
    "deep": (damage(NAME, lambda data: b"[" * 100_000), "adapter.json is invalid"),
    "long": (damage(NAME, lambda data: data + b" " * limits.MAX_MANIFEST_BYTES), "more than"),
    "newer": (described(schema=2), "expected an adapter of schema 1, got 2"),
    "unknown field": (described(more=1), "adapter.json is invalid"),
    "no updates": (described(updates=[]), "adapter.json is invalid"),
    "no blob": (lambda folder: (folder / BLOB).unlink(), "adapter.bin is missing"),
    "cut blob": (damage(BLOB, lambda data: data[:-4]), "adapter.bin: expected"),
    "other bytes": (damage(BLOB, lambda data: bytes(len(data))), "expected sha256"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_adapter_is_refused(bundle: Bundle, tmp_path: Path, kind: str) -> None:
    apply, message = DAMAGE[kind]
    folder = write_adapter(tmp_path / "adapter", bundle, random_factors(bundle))
    apply(folder)
    text = refused(bundle, folder)
    assert message in text
    assert "ortolan adapter" in text


def test_changed_bytes_raise_a_typed_error_or_change_nothing(
    bundle: Bundle, tmp_path: Path
) -> None:
    factors = random_factors(bundle, weights=("0.q",))
    folder = write_adapter(tmp_path / "adapter", bundle, factors)
    expected = load(bundle.path, Decoder, adapters={"a": folder}).logits(IDS[:4], adapter="a")
    random, loaded = np.random.default_rng(0), 0
    for name in 60 * [NAME] + 10 * [BLOB]:
        content = (folder / name).read_bytes()
        changed = bytearray(content)
        changed[random.integers(len(content))] ^= random.integers(1, 256)
        (folder / name).write_bytes(changed)
        try:
            model = load(bundle.path, Decoder, adapters={"a": folder})
        except AdapterError:
            pass
        else:  # a field about where the adapter comes from
            np.testing.assert_array_equal(model.logits(IDS[:4], adapter="a"), expected)
            loaded += 1
        (folder / name).write_bytes(content)
    assert loaded < 40


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(
    bundle: Bundle, tmp_path: Path, value: float
) -> None:
    factors = random_factors(bundle)
    factors["0.v"].second[1, 3] = value
    folder = write_adapter(tmp_path / "adapter", bundle, factors)
    assert "the update of 0.v has numbers that are not finite" in refused(bundle, folder)


def test_weights_that_the_bundle_does_not_multiply_by_are_refused(
    bundle: Bundle, tmp_path: Path
) -> None:
    ones = np.ones((32, 1), np.float32)
    cases = {
        "embedding": (Factors(np.ones((VOCABULARY, 1), np.float32), ones.T), "in no product"),
        "7.q": (Factors(ones, np.ones((1, 64), np.float32)), "in no product"),
        "0.q": (Factors(ones, np.ones((1, 63), np.float32)), r"as (64, 32)"),
    }
    for name, (factors, message) in cases.items():
        folder = write_adapter(tmp_path / name, bundle, {name: factors})
        assert f"updates {name} as a float32 matrix" in refused(bundle, folder)
        assert message in refused(bundle, folder)


def test_too_many_or_too_large_adapters_are_refused(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_adapter(tmp_path / "adapter", bundle, random_factors(bundle))
    most = limits.MAX_ADAPTERS
    with pytest.raises(InputError, match="at most 64 per model"):
        load(bundle.path, adapters=dict.fromkeys(map(str, range(most + 1)), folder))
    size = (folder / BLOB).stat().st_size
    monkeypatch.setattr(limits, "MAX_ADAPTER_BYTES", size)
    load(bundle.path, adapters={"a": folder})
    with pytest.raises(AdapterError, match="All adapters together"):
        load(bundle.path, adapters={"a": folder, "b": folder})
    monkeypatch.setattr(limits, "MAX_ADAPTER_BYTES", size - 1)
    assert "an adapter may have at most" in refused(bundle, folder)


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        ("adapter/", "must be a mapping"),
        ({1: "adapter/"}, "a name must have 1 to 128 characters"),
        ({"": "adapter/"}, "a name must have"),
        ({"a": None}, "adapters must be a path"),
    ],
)
def test_wrong_types_are_refused(bundle: Bundle, adapters: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(bundle.path, adapters=adapters)


def test_a_link_instead_of_a_file_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", bundle, random_factors(bundle))
    (folder / NAME).rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", folder / NAME)
    assert "a symbolic link" in refused(bundle, folder)


def test_other_kinds_of_bundle_are_refused(tmp_path: Path) -> None:
    path = tiny_encoder.write_bundle(tmp_path / "encoder").path
    with pytest.raises(BundleKindError, match="adapters: expected a decoder"):
        load(path, adapters={"a": tmp_path})


def test_memory_plan_counts_adapters(
    bundle: Bundle, tmp_path: Path, memory_left: Callable[[int], None]
) -> None:
    folder = write_adapter(tmp_path / "adapter", bundle, random_factors(bundle, rank=8))
    size = (folder / BLOB).stat().st_size
    for free in range(0, 10 * size, size // 4):
        memory_left(free)
        try:
            load(bundle.path)
            break
        except MemoryPlanError:
            pass
    with pytest.raises(MemoryPlanError):
        load(bundle.path, adapters={"a": folder})
    memory_left(free + 2 * size)
    load(bundle.path, adapters={"a": folder})
