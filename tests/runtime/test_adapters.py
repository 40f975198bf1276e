"""Adapters at run time: what rows compute with them."""

import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.runtime import packed_bundles
from tests.runtime.chat.tiny_chat import TEMPLATE
from tests.runtime.serving.faults import failing
from tests.runtime.tiny_adapters import merged, random_factors, write_adapter
from tests.runtime.tiny_decoder import (
    VOCABULARY,
    assert_close,
    reference_logits,
    write_bundle,
)

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import (
    InputError,
    StateFileError,
)
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.drafts import PromptLookup
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.loading import load
from ortolan.runtime.pack.write import pack
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
    for fails in (lambda _: False, lambda call: call % 37 == 3):
        with model.serve(slots=8) as service, failing(fails):
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


@pytest.mark.parametrize("kind", ["fp32", "int4", "split"])
def test_copied_and_packed_weights_change_nothing(
    pairs: Pairs, tmp_path: Path, attached: list[str], kind: str
) -> None:
    expected = pairs[kind].adapted.logits(IDS[:30], adapter="b")
    folder = shutil.copytree(pairs[kind].bundle.path, tmp_path / "bundle")
    pack(open_bundle(folder))
    for weights in ("map", "copy"):
        model = load(
            folder, Decoder, threads=1, adapters=pairs[kind].paths, weights=cast(Any, weights)
        )
        np.testing.assert_array_equal(model.logits(IDS[:30], adapter="b"), expected)
    assert attached


def test_fast_mode_computes_with_the_adapter(pairs: Pairs) -> None:
    model = pairs["fp32"].adapted
    options: dict[str, Any] = dict(max_new_tokens=9, logprobs=1, adapter="c")
    with model.serve(mode="fast") as service:
        done = service.submit(IDS[:11], **options).completion()
    assert outcome(done) == outcome(model.generate(IDS[:11], **options))


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


def test_unknown_name_names_the_loaded_ones(pairs: Pairs) -> None:
    with pytest.raises(InputError, match=r"adapter 'x' is not loaded \(loaded: a, b, c\)"):
        pairs["fp32"].adapted.generate(IDS[:3], adapter="x")
    with pytest.raises(InputError, match=r"adapter 'a' is not loaded \(loaded: none\)"):
        pairs["fp32"].plain.stream("abc", adapter="a")
    with pytest.raises(InputError, match="adapter 3 is not loaded"):
        pairs["fp32"].adapted.logits(IDS[:3], adapter=3)  # type: ignore[arg-type]
    with pairs["fp32"].adapted.serve() as service, pytest.raises(InputError, match="not loaded"):
        service.submit(IDS[:3], adapter="x")
