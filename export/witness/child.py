"""The subprocess of a witness: `python -m ortolan.export.witness.child BRIEF`.

Prints one JSON object per topic as soon as it is answered, so that what was asked before the time
ran out counts. Whatever the publisher's libraries print goes to stderr.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ortolan.export.witness.brief import Brief, Finding

NO_MEMORY = "not enough memory"


def main(argument: str) -> None:
    """Answer a brief."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    brief = msgspec.json.decode(argument, type=Brief)
    for finding in answers(brief):
        results.write(msgspec.json.encode(finding) + b"\n")
        results.flush()


def answers(brief: Brief) -> Iterator[Finding]:
    """The findings of a brief; the first, without a topic, says that the libraries are loaded."""
    warnings.simplefilter("ignore")
    import torch

    from ortolan.export.witness.bundled import Bundled

    try:
        from ortolan.export.witness.floats import NAME, unread_key
        from ortolan.export.witness.publisher import Publisher, quiet
        from ortolan.export.witness.topics import TOPICS
    except Exception as error:  # it needs another version of a package
        reason = f"transformers cannot be imported ({' '.join(str(error).split())[:120]})"
        yield Finding(topic="rest", by="transformers", unasked=reason)
        return
    quiet()
    if brief.threads is not None:
        torch.set_num_threads(brief.threads)
    bundled = Bundled(Path(brief.bundle), has_own_tokenizer=brief.has_own_tokenizer)
    publisher = Publisher(
        Path(brief.checkpoint),
        kind=bundled.manifest.kind,
        adapter=None if brief.adapter is None else Path(brief.adapter),
        most=brief.max_context,
    )
    publisher.import_libraries()
    yield Finding(topic="", by=publisher.name)
    _limit(None if brief.memory is None else brief.memory + brief.mapped)
    publisher.unasked = brief.unlike
    if (key := unread_key(brief.gguf_keys)) is not None:
        publisher.unasked = f"{NAME} does not read {key} of this GGUF file"
    plan = tuple(topic.name for topic in TOPICS if _has_questions(topic, bundled))
    _fit(brief, bundled, publisher)
    yield Finding(topic="", by=publisher.name, plan=plan, layers=publisher.layers)
    for topic in TOPICS:
        finding = _ask(topic, bundled, publisher)
        if finding is not None:
            yield finding


def _fit(brief: Brief, bundled: Any, publisher: Any) -> None:
    """Load fewer layers of the publisher's model, or none, where memory is short."""
    from ortolan.export.witness.floats import UnansweredError

    if brief.memory is None or publisher.unasked is not None:
        return
    own = bundled.weight_bytes if bundled.has_exact_numbers else 0
    with suppress(UnansweredError):  # a topic says so
        publisher.fit(brief.memory, least_layers=brief.least_layers, other=own)
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


def _ask(topic: Any, bundled: Any, publisher: Any) -> Finding | None:
    """Ask every question of a topic; None where it does not apply."""
    from ortolan.errors import OrtolanError
    from ortolan.export.witness.compare import UNKNOWN, Comparison
    from ortolan.export.witness.floats import UnansweredError, is_out_of_memory
    from ortolan.runtime.errors import MissingExtraError

    finding = Finding(topic=topic.name, by=publisher.name)
    try:
        questions = topic.questions(bundled)
    except UnansweredError as error:
        return msgspec.structs.replace(finding, unasked=f"{error}")
    except OrtolanError as error:
        if is_out_of_memory(error):
            return msgspec.structs.replace(finding, unasked=NO_MEMORY)
        return msgspec.structs.replace(finding, questions=1, first=_failure(error))
    if not questions:
        return None
    tolerance = bundled.tolerance if topic.tolerance is None else topic.tolerance
    agreed, asked, largest, first, unasked = 0, 0, None, None, None
    for name, question in questions.items():
        try:
            theirs = topic.theirs(publisher, question)
        except UnansweredError as error:
            unasked = f"{error}"
            break
        except Exception as error:
            if is_out_of_memory(error):
                unasked = NO_MEMORY
                break
            # a question that the publisher's code itself fails on
            unasked = f"{publisher.name} fails on {name}: {type(error).__name__}"
            continue
        if theirs is UNKNOWN:
            continue
        comparison = Comparison(max(tolerance, publisher.rounding))
        try:
            answer = topic.ours(bundled, question)
            if answer is None and theirs is None:
                continue  # neither has such a thing
            comparison.compare(answer, theirs)
            problem = None if comparison.first is None else f"{comparison.first}"
        except MissingExtraError as error:
            unasked = f"{error}"
            break
        except OrtolanError as error:
            if is_out_of_memory(error):
                unasked = NO_MEMORY
                break
            problem = _failure(error)
        asked += 1
        agreed += problem is None
        if problem is not None and first is None:
            first = f"{name}: {problem}{_reason(topic, bundled, publisher, question)}"
        if comparison.largest is not None:
            largest = max(comparison.largest, largest or 0.0)
    return msgspec.structs.replace(
        finding, questions=asked, agreed=agreed, largest=largest, first=first, unasked=unasked
    )


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
    main(sys.argv[1])
