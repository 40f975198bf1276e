"""Adapters at run time: what rows compute with them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.serving.served import outcome
from tests.runtime.tiny_adapters import (
    Pair,
    Pairs,
    merged,
    random_factors,
    write_adapter,
)
from tests.runtime.tiny_decoder import VOCABULARY, assert_close, reference_logits, write_bundle

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import StateFileError
from ortolan.runtime.loading import load
from ortolan.runtime.pack.write import pack

KINDS = ("fp32", "split", "int4", "int8-prefill", "recurrent", "by-token")

IDS = [int(i) for i in np.random.default_rng(7).integers(0, VOCABULARY - 2, 300)]


@pytest.mark.parametrize(
    "form", [(), ("split",), ("recurrent",), ("split", "recurrent"), ("recurrent", "takes_one")]
)
def test_logits_are_those_of_merged_weights(tmp_path: Path, form: tuple[str, ...]) -> None:
    tiny = write_bundle(tmp_path / "bundle", **dict.fromkeys(form, True))  # type: ignore[arg-type]
    bundle = open_bundle(tiny.path)
    of_all, of_some = random_factors(bundle), random_factors(bundle, seed=1, weights=("0.k", "1.v"))
    paths = {
        "all": write_adapter(tmp_path / "all", bundle, of_all),
        "some": write_adapter(tmp_path / "some", bundle, of_some),
    }
    model = load(tiny.path, Decoder, adapters=paths)
    assert model.adapters == ("all", "some")
    for name, factors in ((None, {}), ("all", of_all), ("some", of_some)):
        expected = reference_logits(
            merged(tiny.weights, factors), IDS[:20], recurrent=tiny.recurrent
        )
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


def test_a_prefix_is_cached_for_its_adapter_alone(pairs: Pairs, tmp_path: Path) -> None:
    model = pairs["fp32"].adapted
    options: dict[str, Any] = dict(max_new_tokens=3, logprobs=1)
    expected = [model.generate([IDS[:200]], adapter=name, **options)[0] for name in ("a", "b")]
    for _ in range(2):  # the second service reads files
        with model.serve(slots=2, cache_folder=tmp_path) as service:
            done = [
                service.submit(IDS[:200], adapter=name, **options).result()
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


def test_a_saved_session_needs_its_adapter(pairs: Pairs, tmp_path: Path) -> None:
    model, plain = pairs["fp32"].adapted, pairs["fp32"].plain
    with model.session(adapter="a") as session:
        session.append(IDS[:20])
        session.save(tmp_path / "session")
    for other in (model, plain):
        with pytest.raises(StateFileError, match="states of the bundle and adapter"):
            other.load_session(tmp_path / "session")


UNKNOWN: dict[str, Callable[[Pair], object]] = {
    "generate": lambda pair: pair.adapted.generate(IDS[:3], adapter="x"),
    "stream": lambda pair: pair.plain.stream("abc", adapter="a"),
    "logits": lambda pair: pair.adapted.logits(IDS[:3], adapter=cast(Any, 3)),
    "session": lambda pair: pair.plain.session(adapter="a"),
    "service": lambda pair: pair.adapted.serve().submit(IDS[:3], adapter="x"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_name_is_refused_with_the_loaded_ones(
    pairs: Pairs, name: str, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: UNKNOWN[name](pairs["fp32"])) == snapshot
