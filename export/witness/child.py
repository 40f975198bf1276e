"""The subprocess of a witness: `python -m ortolan.export.witness.child < BRIEF`.

Imports what it needs before it reads the brief. Prints one JSON object per topic as soon as it is
answered, so that what was asked before the time ran out counts. Whatever the publisher's libraries
print goes to stderr.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ortolan.export.witness.brief import Brief, Finding

NO_MEMORY = "not enough memory"


def main() -> None:
    """Answer a brief."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(Exception):  # which the answers tell
        from ortolan.export.witness import bundled, topics  # noqa: F401
    brief = msgspec.json.decode(sys.stdin.buffer.read(), type=Brief)
    for finding in answers(brief):
        results.write(msgspec.json.encode(finding) + b"\n")
        results.flush()


def answers(brief: Brief) -> Iterator[Finding]:
    """The findings of a brief; the first, without a topic, says which topics follow."""
    warnings.simplefilter("ignore")
    import torch

    from ortolan.export.witness.bundled import Bundled

    try:
        from ortolan.export.witness.floats import NAME, UnansweredError, unread_key
        from ortolan.export.witness.publisher import Publisher, quiet
        from ortolan.export.witness.topics import TOPICS
        from ortolan.export.witness.topics.logits import LOGITS
    except Exception as error:  # it needs another version of a package
        reason = f"transformers cannot be imported ({' '.join(str(error).split())[:120]})"
        yield Finding(topic="rest", by="transformers", unasked=reason)
        return
    quiet()
    if brief.threads is not None:
        torch.set_num_threads(brief.threads)
    bundled = Bundled(Path(brief.bundle), has_own_tokenizer=brief.has_own_tokenizer)
    bundled.windows = brief.windows
    publisher = Publisher(
        Path(brief.checkpoint),
        kind=bundled.manifest.kind,
        adapter=None if brief.adapter is None else Path(brief.adapter),
        most=brief.max_context,
    )
    publisher.import_libraries()
    _limit(None if brief.memory is None else brief.memory + brief.mapped)
    if brief.is_long:
        try:
            publisher.use_long_positions()
        except UnansweredError as error:
            publisher.unasked = f"{error}"
    if (key := unread_key(brief.gguf_keys)) is not None:
        publisher.unasked = f"{NAME} does not read {key} of this GGUF file"
    topics = TOPICS
    if brief.run_time_adapter is not None:
        bundled.adapter, topics = Path(brief.run_time_adapter), (LOGITS,)
    plan = tuple(topic.name for topic in topics if _has_questions(topic, bundled))
    _fit(brief, bundled, publisher)
    yield Finding(topic="", by=publisher.name, plan=plan, layers=publisher.layers)
    for topic in topics:
        yield from _ask(topic, bundled, publisher)


def _fit(brief: Brief, bundled: Any, publisher: Any) -> None:
    """Load fewer layers of the publisher's model where time is short; or none, if memory is."""
    from ortolan.export.witness.floats import UnansweredError

    if publisher.unasked is not None:
        return
    own = bundled.weight_bytes if bundled.has_exact_numbers else 0
    with suppress(UnansweredError):  # a topic says so
        publisher.fit(brief.memory, brief.weights, least_layers=brief.least_layers, other=own)
    if publisher.layers is not None and brief.first_layers is not None:
        bundled.first_layers = Path(brief.first_layers)


def _has_questions(topic: Any, bundled: Any) -> bool:
    """Whether a topic applies."""
    from ortolan.errors import OrtolanError
    from ortolan.export.witness.floats import UnansweredError

    try:
        return bool(topic.questions(bundled))
    except (OrtolanError, UnansweredError):
        return True  # and says why not


def _ask(topic: Any, bundled: Any, publisher: Any) -> Iterator[Finding]:
    """Ask every question of a topic, with a finding after each; nothing where it does not apply."""
    from ortolan.errors import OrtolanError
    from ortolan.export.witness.floats import UnansweredError, is_out_of_memory

    finding = Finding(topic=topic.name, by=publisher.name)
    try:
        asked = topic.questions(bundled)
    except UnansweredError as error:
        yield replace(finding, unasked=f"{error}")
        return
    except OrtolanError as error:
        if is_out_of_memory(error):
            yield replace(finding, unasked=NO_MEMORY)
        else:
            yield replace(finding, questions=1, first=_failure(error))
        return
    for name, question in asked.items():
        try:
            answer = _answer(topic, bundled, publisher, question)
        except UnansweredError as error:
            finding = replace(finding, unasked=f"{error}")
            break
        except _PublisherError as error:
            finding = replace(finding, unasked=f"{publisher.name} fails on {name}: {error}")
            continue
        if answer is None:
            continue
        problem, largest = answer
        if problem is not None and finding.first is None:
            reason = _reason(topic, bundled, publisher, question)
            finding = replace(finding, first=f"{name}: {problem}{reason}")
        if largest is not None:
            finding = replace(finding, largest=max(largest, finding.largest or 0.0))
        questions, agreed = finding.questions + 1, finding.agreed + (problem is None)
        finding = replace(finding, questions=questions, agreed=agreed)
        yield replace(finding, is_whole=False)
    if asked:
        yield finding


class _PublisherError(Exception):
    """A question that the publisher's code itself fails on."""


def _answer(
    topic: Any, bundled: Any, publisher: Any, question: Any
) -> tuple[str | None, float | None] | None:
    """How two answers differ, in words, and by how much; None where there is none."""
    from ortolan.errors import OrtolanError
    from ortolan.export.witness.bundled import FLOAT32
    from ortolan.export.witness.compare import UNKNOWN, Comparison
    from ortolan.export.witness.floats import UnansweredError, is_out_of_memory
    from ortolan.export.witness.rounding import NEGLIGIBLE, bound_of
    from ortolan.runtime.errors import MissingExtraError

    try:
        theirs = topic.theirs(publisher, question)
    except UnansweredError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise UnansweredError(NO_MEMORY) from error
        raise _PublisherError(type(error).__name__) from error
    if theirs is UNKNOWN:
        return None
    tolerance = bundled.tolerance if topic.tolerance is None else topic.tolerance
    comparison = Comparison(max(tolerance, publisher.rounding))
    try:
        ours = topic.ours(bundled, question)
    except MissingExtraError as error:
        raise UnansweredError(f"{error}") from error
    except OrtolanError as error:
        if is_out_of_memory(error):
            raise UnansweredError(NO_MEMORY) from error
        return _failure(error), None
    if ours is None and theirs is None:
        return None  # neither has such a thing
    comparison.compare(ours, theirs)
    largest = comparison.largest or 0.0
    if NEGLIGIBLE < largest <= comparison.tolerance <= FLOAT32:
        bound = bound_of(topic, publisher, question, theirs)
        if bound is not None and largest > bound:
            comparison = Comparison(bound)
            comparison.compare(ours, theirs)
    problem = None if comparison.first is None else f"{comparison.first}"
    return problem, comparison.largest


def _failure(error: Exception) -> str:
    return f"the bundle fails with {type(error).__name__}: {error}"


def _reason(topic: Any, bundled: Any, publisher: Any, question: Any) -> str:
    """Where the two part, in brackets, if the topic can tell."""
    reason = None
    # a difference counts whether it can be explained or not
    with suppress(Exception):
        reason = topic.explain and topic.explain(bundled, publisher, question)
    return f" ({reason})" if reason else ""


def _limit(memory: int | None) -> None:
    """Fail with a MemoryError rather than push the machine into swapping."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        if memory is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


if __name__ == "__main__":
    main()
