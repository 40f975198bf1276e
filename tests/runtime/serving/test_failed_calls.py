"""Calls of the model that fail: which requests end, and that the service goes on."""

import threading
from itertools import count
from typing import Any

import pytest
from tests.runtime.chat.tiny_chat import packed_chat_models
from tests.runtime.serving.faults import failing
from tests.runtime.serving.served import Spec, alone_in, settle

from ortolan.runtime import Completion, Decoder, PromptLookup, Sampling
from ortolan.runtime.engine.attention_kernels import GRID
from ortolan.runtime.engine.host_states import Snapshot
from ortolan.runtime.engine.prefix_cache import PrefixCache
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.errors import ComputeError, ServiceError
from ortolan.runtime.generation.options import Options
from ortolan.runtime.generation.sampling import Sampler
from ortolan.runtime.serving.ticket import Ticket

SPECS = [
    Spec(prompt=length, limit=limit, seed=seed, temperature=float(seed % 2), pattern=pattern)
    for length, limit, seed, pattern in (
        (3, 9, 0, None),
        (GRID + 20, 6, 1, None),
        (GRID + 30, 5, 1, None),
        (70, 7, 2, "[a-z]{2,9}"),
        (1, 4, 3, None),
    )
]


def test_requests_survive_a_call_that_fails_wherever_it_is(model: Decoder) -> None:
    alone = alone_in(model)
    expected = [alone(spec) for spec in SPECS]
    for number in range(15):
        with (
            model.serve(slots=4, cache_bytes=1 << 20) as service,
            failing(lambda call, at=number: call == at),  # type: ignore[misc]
        ):
            tickets = [spec.submit(service, priority=n % 2) for n, spec in enumerate(SPECS)]
            texts = ["".join(piece.content for piece in ticket) for ticket in tickets]
            completions = [ticket.result(60) for ticket in tickets]
            settle(service)
            stats = service.stats()
        assert [one.tokens for one in completions] == [one.tokens for one in expected], number
        assert texts == [one.text for one in expected]
        assert (stats.failed_calls, stats.failed, stats.refused) == (1, {}, {})


@pytest.mark.parametrize(
    ("place", "error", "slots"),
    [
        ((Slots, "move"), ZeroDivisionError, 3),
        ((Slots, "release"), OSError, 3),
        ((Runner, "rewind_to_cut"), MemoryError, 3),
        ((PrefixCache, "fetch"), KeyError, 3),
        ((Snapshot, "copy"), MemoryError, 3),
        ((Slots, "snapshot"), MemoryError, 1),
        ((Runner, "restore"), KeyError, 1),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else None,
)
def test_sequences_are_computed_again_after_an_error_between_calls(
    models: dict[str, Decoder],
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    error: type[Exception],
    slots: int,
) -> None:
    model = models["fp32"]
    prompts = [[5 + n, *(k % 80 for k in range(70 * n))] for n in range(3)]
    limits, drafts = [24, 12, 6], [None, PromptLookup(), None]
    expected = [
        model.generate([prompt], draft=draft, max_new_tokens=limit, ignore_eos=True, logprobs=1)[0]
        for prompt, limit, draft in zip(prompts, limits, drafts, strict=True)
    ]
    owner, name = place
    method, tries, raised = getattr(owner, name), iter([True, False, True]), list[Any]()
    polls, has_begun, others_wait = count(), threading.Event(), threading.Event()

    def fail_sometimes(*args: Any, **kwargs: Any) -> Any:
        if next(tries, False):
            raised.append(error)
            raise error()
        return method(*args, **kwargs)

    def hold() -> bool:
        if next(polls) == 5:
            has_begun.set()
            others_wait.wait(60)
        return False

    monkeypatch.setattr(owner, name, fail_sometimes)
    with model.serve(slots=slots) as service:
        tickets: list[Ticket[Completion]] = []
        for n, (prompt, limit, draft) in enumerate(zip(prompts, limits, drafts, strict=True)):
            options: Options = {
                "max_new_tokens": limit,
                "ignore_eos": True,
                "logprobs": 1,
                "cancel": hold,
                "draft": draft,
            }
            tickets.append(service.submit(prompt, priority=n, **options))
            assert has_begun.wait(60)
        others_wait.set()
        got = [ticket.result(60) for ticket in tickets]
        assert not service.is_failing
        assert service.stats().failed == {}
    assert raised
    assert [one.tokens for one in got] == [one.tokens for one in expected]
    assert [one.logprobs for one in got] == [one.logprobs for one in expected]


def test_a_request_that_always_fails_ends_alone(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk, choose = Runner.chunk, Sampler.next

    def poisoned_chunk(self: Runner, row: int, ids: Any, **options: Any) -> Any:
        if 13 in ids:
            raise ComputeError("bad prompt")
        return chunk(self, row, ids, **options)

    def poisoned_choice(self: Sampler, logits_V: Any) -> int:
        if self._sampling.top_k == 77:
            raise KeyError("bad choice")
        return choose(self, logits_V)

    monkeypatch.setattr(Runner, "chunk", poisoned_chunk)
    monkeypatch.setattr(Sampler, "next", poisoned_choice)
    expected = [model.generate([[5, n]], max_new_tokens=30, ignore_eos=True)[0] for n in range(3)]
    with model.serve(slots=4) as service:
        tickets = [service.submit([5, n], max_new_tokens=30, ignore_eos=True) for n in range(3)]
        with pytest.raises(ComputeError, match="bad prompt"):
            service.submit([5, 13, 7]).result(60)
        bad = service.submit([5, 6], sampling=Sampling(temperature=1.0, top_k=77))
        with pytest.raises(
            ServiceError, match=r"KeyError: 'bad choice'.*report this bug"
        ) as caught:
            bad.result(60)
        assert isinstance(caught.value.__cause__, KeyError)
        assert [t.result(60).tokens for t in tickets] == [one.tokens for one in expected]
        settle(service)
        stats = service.stats()
        assert (stats.failed, stats.refused) == ({"compute": 1, "service": 1}, {})


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{% endfor %}a:"
    return packed_chat_models(tmp_path_factory.mktemp("chat"), ("fp32",), template)["fp32"]


@pytest.mark.parametrize("number", [0, 1, 3, 8])
def test_a_conversation_goes_on_after_a_call_that_failed(chat_model: Decoder, number: int) -> None:
    options: Any = {"max_new_tokens": 5, "ignore_eos": True}
    questions = ["Hi. " * 30, "More."]
    whole = chat_model.conversation()
    expected = [whole.ask(question, **options).content for question in questions]
    conversation, failures = chat_model.conversation(), 0
    with failing(lambda call: call == number):
        for question, answer in zip(questions, expected, strict=True):
            try:
                got = conversation.ask(question, **options)
            except ComputeError:
                failures += 1
                got = conversation.ask(question, **options)
            assert got.content == answer
    assert failures == 1
