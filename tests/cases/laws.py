"""Laws: what holds for every bundle with the features that a law asks for."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cases import NEW, Case, Variant
from tests.cases.comparison import assert_alike, compare
from tests.cases.run import Run
from tests.cli.conftest import run_here
from tests.refusals import refusal
from tests.runtime.damaged_bundles import damage, edit_json
from tests.server.live import live_server
from tests.tiny.numbers import random_ids

import ortolan
from ortolan.errors import OrtolanError
from ortolan.export.coverage import BOUND
from ortolan.runtime import BundleError, InputError, PromptLookup, Sampling, open_bundle, verify
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.server import Settings

Law = Callable[[Run], None]

Applies = Callable[[Case, Variant], object]

LAWS: dict[Law, tuple[Applies, bool]] = {}
"""Each law, whether it applies, and whether it is slow in quick variants too."""


def law(applies: Applies, *, is_slow: bool = False) -> Callable[[Law], Law]:
    """Add a law to `LAWS`."""

    def add(function: Law) -> Law:
        LAWS[function] = applies, is_slow
        return function

    return add


def once(case: Case, variant: Variant) -> bool:
    """For laws that hold in all variants if they hold in one."""
    return variant == case.variants[0]


def applicable(cases: Iterable[Case]) -> list[Any]:
    """Parameters of a test: each case in each variant with each law that applies."""
    found = []
    for case in cases:
        for variant in case.variants:
            for each, (applies, is_slow) in LAWS.items():
                if applies(case, variant):
                    marks = () if variant.is_quick and not is_slow else pytest.mark.slow
                    name = f"{case.name}-{variant.name}-{each.__name__}"
                    found.append(pytest.param(case, variant, each, id=name, marks=marks))
    return found


# --- answers --------------------------------------------------------------------------------------


def _is_compared(case: Case, variant: Variant) -> bool:
    """Whether answers must equal those of the reference; rounded weights may give others."""
    if case.reference is None or variant.tolerance is None:
        return False
    return "generates" not in case.features or variant.tolerance <= 1e-3


@law(_is_compared)
def answers_are_those_of_another_library(run: Run) -> None:
    assert run.variant.tolerance is not None
    for name, got, wanted in zip(run.case.inputs, run.answers, run.expected, strict=True):
        print(f"input: {name}")
        assert_alike(got, wanted, run.variant.tolerance)


@law(lambda case, variant: "compared" in case.features and variant.tolerance is not None)
def numbers_and_tokens_are_those_of_transformers(run: Run) -> None:
    found = compare(run.checkpoint, run.bundle)
    assert found.error <= BOUND
    assert found.tokens_equal is not False


@law(lambda case, variant: case.logits is not None and variant.tolerance is not None)
def logits_at_once_in_parts_in_steps_and_after_snapshots_are_those_of_the_reference(
    run: Run,
) -> None:
    assert run.case.logits is not None
    assert run.variant.tolerance is not None
    sizes = run.model.manifest.vocab_size, run.model.manifest.context_length
    for length in (min(90, sizes[1]) - 1, 2, 1):
        ids = [each % sizes[0] for each in random_ids(length)]
        wanted = run.case.logits(run.checkpoint, ids)
        assert wanted.std() > 0.1  # not a constant model
        assert_alike(run.model.logits(ids), wanted, run.variant.tolerance)
        with run.model.session() as session:
            for start, end in pairwise((0, 1, 2, 20, 25)):
                if end <= len(ids):
                    got = session.append(ids[start:end])
                    assert_alike(got, wanted[end - 1], run.variant.tolerance)
            kept = session.snapshot()
            session.append([3])
            session.restore(kept)
            with session.fork() as other:
                for place in range(len(session), len(ids)):
                    for each in (session, other):
                        got = each.append(ids[place : place + 1])
                        assert_alike(got, wanted[place], run.variant.tolerance)


@law(lambda case, _: len(case.inputs) > 1)
def inputs_are_told_apart_and_a_batch_gives_the_answers_of_each_alone(run: Run) -> None:
    assert len({repr(answer) for answer in run.answers}) > 1
    bound = 0.0 if "generates" in run.case.features else 1e-5
    assert_alike(run.case.call(run.model, run.inputs), run.answers, bound)


class Served:
    """A service that is called as the model is."""

    def __init__(self, model: Any, service: Any) -> None:
        self.manifest, self._service = model.manifest, service

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *inputs, **options: getattr(self._service, name)(*inputs, **options).result()


@law(lambda case, _: "encodes" in case.features)
def a_service_of_an_encoder_gives_the_same(run: Run) -> None:
    with run.model.serve() as service:
        assert_alike(run.case.call(Served(run.model, service), run.inputs), run.answers, 1e-5)


@law(lambda case, _: "generates" in case.features)
def a_stream_a_service_and_chunks_give_the_same(run: Run) -> None:
    options: Any = {"max_new_tokens": NEW, "ignore_eos": True}
    alone = [run.model.generate([each], **options, logprobs=2)[0] for each in run.inputs]
    if run.model.tokenizer is not None:
        with run.model.stream(run.inputs[-1], **options) as stream:
            assert "".join(stream) == stream.completion.text
    # Products of integers and states that are replaced need whole chunks.
    small = 16 if run.variant.tolerance and "rewinds" in run.case.features else 128
    for slots, chunk in ((3, small), (1, 128)):
        with run.model.serve(slots=slots, chunk=chunk, cache_bytes=0) as service:
            tickets = [service.submit(each, **options, logprobs=2) for each in run.inputs]
            done = [ticket.result() for ticket in tickets]
        assert [one.tokens for one in done] == [one.tokens for one in alone]
        if "exact" in run.case.features:  # to the bit
            assert [one.logprobs for one in done] == [one.logprobs for one in alone]


@law(lambda case, _: {"generates", "drafts"} <= case.features)
def drafts_change_nothing(run: Run) -> None:
    for each, answer in zip(run.inputs, run.answers, strict=True):
        options: Any = {"max_new_tokens": NEW, "ignore_eos": True, "draft": PromptLookup()}
        (done,) = run.model.generate([each], **options)
        assert list(done.tokens) == answer[1]


def _numbers(runner: Runner, ids: Sequence[int]) -> list[Any]:
    """The logits after the last tokens of a text, and the states."""
    return [runner.prefill(1, ids), *runner.slots.snapshot(row=1).buffers]


@law(lambda case, variant: "rewinds" in case.features and variant.tolerance, is_slow=True)
def cuts_and_rewinding_change_no_bit(run: Run) -> None:
    engine = run.model._engine
    for prompt in run.inputs:
        (request,) = run.model._reader(run.model.tokenizer).prompts([prompt], {})
        ids = request.prompt
        whole = Runner(engine, engine.slots(2), exact=True, chunk=128)
        wanted = _numbers(whole, ids)
        for chunk in (16, 32):
            cut = Runner(engine, engine.slots(2), exact=True, chunk=chunk)
            assert all(map(np.array_equal, _numbers(cut, ids), wanted))
        for length in (len(ids) - 1, len(ids) - 9, len(ids) // 2, len(ids) // 4, 1):
            if 0 < length < len(ids):
                try:
                    whole.slots.rewind(length, row=1)
                except InputError:  # layers keep the last tokens only
                    assert length < len(ids) - 9
                    break
                start = whole.rewind_to_cut(1, ids)
                assert start <= length
                assert all(map(np.array_equal, _numbers(whole, ids[start:]), wanted))


@law(lambda case, _: case.prefixes)
def a_prefix_cache_changes_nothing(run: Run) -> None:
    for group in run.case.prefixes:
        prompts = [prompt for prompt, _ in group]
        alone = [run.case.call(run.model, [prompt])[0][1] for prompt in prompts]
        with run.model.serve(slots=1) as service:
            options: Any = {"max_new_tokens": NEW, "ignore_eos": True}
            done = [service.submit(prompt, **options).result() for prompt in prompts]
        assert [list(completion.tokens) for completion in done] == alone
        cached = [completion.timings.cached_tokens for completion in done]
        if run.variant.tolerance:  # products of integers need whole chunks
            assert cached == [count for _, count in group]


# --- proof ----------------------------------------------------------------------------------------


PHASES = {
    "decoder": {"prefill", "decode", "chunked", "batch"},
    "encoder": {"single", "batch"},
    "encoder-decoder": {"prefill", "decode", "chunked"},
}
"""Ways to compute the probes, by kind."""


@law(lambda *_: True)
def verification_passes(run: Run) -> None:
    report = verify(run.bundle, device="cpu", threads=1, isolate=False)
    assert report.verdict == "PASS" if run.variant.tolerance else report.verdict != "FAIL"
    stored = read_certificate(open_bundle(run.bundle)).measured
    assert stored is not None
    ways = PHASES[report.kind] - ({"batch"} if "one by one" in run.case.features else set())
    assert set(report.phases) == set(stored.phases) == ways
    assert ((report.media or report.texts) is not None) == (run.case.part is not None)


def roles(bundle: Path) -> dict[str, str]:
    """A weight of each role: names that differ in the number of the layer only are of one."""
    graphs = open_bundle(bundle).graphs.values()
    names = [tensor.name for graph in graphs for tensor in graph.external]
    return {re.sub(r"\d+", "#", name): name for name in names}


def _change(values: NDArray[Any]) -> None:
    """Make weights larger; reverse a table of integers."""
    values[...] = values[::-1].copy() if values.dtype.kind == "i" else values * 1.5


def _assert_damage_is_found(run: Run, is_tested: Callable[[int], bool]) -> None:
    bundle = run.copied(run.folder)
    for part in (bundle, *([bundle / run.case.part] if run.case.part else [])):
        before = {path: path.read_bytes() for path in part.iterdir() if path.is_file()}
        for place, (role, name) in enumerate(roles(part).items()):
            if not is_tested(place):
                continue
            damage(part, name, _change)
            assert verify(part, device="cpu", threads=1, isolate=False).verdict == "FAIL", role
            if part != bundle:
                with pytest.raises(BundleError, match="expected the encoder of"):
                    ortolan.load(bundle, isolate=False)
            for path, data in before.items():
                path.write_bytes(data)


@law(lambda case, variant: "compared" not in case.features and once(case, variant))
def a_damaged_weight_is_found(run: Run) -> None:
    _assert_damage_is_found(run, lambda place: place == 3)


@law(lambda case, variant: case.part and once(case, variant))
def a_bundle_without_its_encoder_is_refused(run: Run) -> None:
    bundle = run.copied(run.folder)
    rmtree(bundle / (run.case.part or ""))
    with pytest.raises(BundleError):
        ortolan.load(bundle, isolate=False)


@law(lambda case, variant: "every role" in case.features and once(case, variant), is_slow=True)
def a_damaged_weight_of_every_role_is_found(run: Run) -> None:
    _assert_damage_is_found(run, lambda place: True)


def _text(call: Callable[[], object], *hidden: object) -> str:
    """The error of a call, without what other versions of PyTorch change."""
    return re.sub(r"[0-9a-f]{64}", "...", refusal(call, *hidden))


def _verified(bundle: Path) -> str:
    """The verdict; a failure is an error, as if the bundle were refused."""
    verdict = verify(bundle, device="cpu", threads=1, isolate=False).verdict
    if verdict == "FAIL":
        raise OrtolanError("FAIL")
    return verdict


@law(lambda case, variant: case.edits and once(case, variant))
def another_manifest_is_found(run: Run) -> None:
    found = {}
    for place, (name, edit) in enumerate(run.case.edits.items()):
        (run.folder / str(place)).mkdir()
        bundle = run.copied(run.folder / str(place))
        part, _, _ = name.rpartition(": ")
        edit_json(bundle / part, "manifest.json", edit)
        found[name] = _text(partial(_verified, bundle), bundle)
    assert found == run.snapshot


# --- what is refused ------------------------------------------------------------------------------


@law(lambda case, variant: case.refusals and once(case, variant))
def calls_are_refused(run: Run) -> None:
    calls = run.case.refusals.items()
    found = {name: _text(partial(call, run.model), run.bundle) for name, call in calls}
    assert found == run.snapshot


@law(lambda case, variant: case.refused and once(case, variant))
def checkpoints_are_refused(run: Run) -> None:
    found = {}
    for place, (name, changes) in enumerate(run.case.refused.items()):
        folder = run.folder / str(place)
        folder.mkdir()
        run.case.write(folder, **changes)
        found[name] = _text(partial(run.export, folder, folder / "bundle"), folder)
        assert not (folder / "bundle").exists()
    assert found == run.snapshot


# --- commands, chats and HTTP ---------------------------------------------------------------------


@law(lambda case, variant: case.commands and once(case, variant))
def commands_print_what_calls_return(run: Run) -> None:
    for name, command in run.case.commands.items():
        words, stdin = command.words, command.stdin
        done = run_here(words[0], run.bundle, *words[1:], stdin=stdin)
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode() == command.written(run.model), name


def _question(part: Any, text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [dict(part), {"type": "text", "text": text}]}]


@law(lambda case, _: case.chat)
def a_chat_in_any_form_is_the_prompt_that_its_template_writes(run: Run) -> None:
    chat = run.case.chat
    assert chat is not None
    options: Any = {"max_new_tokens": NEW, "ignore_eos": True, "sampling": Sampling()}
    wanted = run.case.call(run.model, [chat.prompt])[0]
    parts = dict(chat.parts)
    for part in chat.parts.values():
        for key, value in part.items():
            if isinstance(value, bytes):
                (run.folder / "file").write_bytes(value)
                parts["path"] = {**part, key: run.folder / "file"}
    with run.model.serve(slots=1) as service:
        for name, part in parts.items():
            question = _question(part, chat.text)
            for reply in (
                run.model.chat(question, n=1, **options)[0],
                service.chat(question, **options).result(),
            ):
                done = reply.completion
                assert (done.timings.prompt_tokens, list(done.tokens)) == wanted, name


@law(lambda case, variant: case.chat and once(case, variant))
def a_conversation_continues_after_it(run: Run) -> None:
    chat = run.case.chat
    assert chat is not None
    options: Any = {"max_new_tokens": 4, "sampling": Sampling()}
    conversation = run.model.conversation()
    said = [*_question(chat.served, chat.text), {"role": "assistant", "content": "yes"}]
    conversation.messages += said
    for question in ("and?", "where?"):
        asked = [*conversation.messages, {"role": "user", "content": question}]
        fresh = run.model.chat(asked, **options)
        reply = conversation.ask(question, **options)
        assert reply.completion.tokens == fresh.completion.tokens
    is_kept = reply.completion.timings.cached_tokens > len(chat.text)
    assert is_kept == ("rewinds" in run.case.features)


@law(lambda case, variant: case.chat and once(case, variant))
def a_chat_over_http_gives_the_same(run: Run) -> None:
    chat = run.case.chat
    assert chat is not None
    question = _question(chat.served, chat.text)
    wanted = run.model.chat(question, max_new_tokens=NEW, ignore_eos=True, sampling=Sampling())
    body: Any = {"messages": question, "max_tokens": NEW, "ignore_eos": True, "temperature": 0}
    settings = Settings(bundles={"tiny": run.bundle}, load={"threads": 1}, serve={"slots": 1})
    with live_server(settings) as server:
        answer = server.call("POST", "/v1/chat/completions", json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    (choice,) = json.loads(answer.text)["choices"]
    assert choice["message"]["content"] == wanted.content
    usage = json.loads(answer.text)["usage"]
    assert usage["prompt_tokens"] == wanted.completion.timings.prompt_tokens
