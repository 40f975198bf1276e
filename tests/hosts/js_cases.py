"""Calls of a model in Python as cases for JavaScript: arguments, and the result or error."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tests.hosts.js_runs import camel, utf16

import ortolan
from ortolan.runtime.encoding.answer import Answer
from ortolan.runtime.encoding.classification import Classification
from ortolan.runtime.encoding.filling import Filling
from ortolan.runtime.encoding.token_classification import LabeledSpan, TokenClassification
from ortolan.runtime.generation.completion import Completion, Hypothesis
from ortolan.runtime.transcription.transcript import Segment, Transcript

Case = dict[str, Any]


class Calls:
    """Calls of one bundle, which JavaScript repeats.

    calls = Calls(folder, device="cpu")
    calls.add("embed", ["a text"], truncate=True)
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self._model = ortolan.load(folder, isolate=False, **options)
        self._folder = folder
        self.manifest = self._model.manifest
        self.cases: list[Case] = []

    def add(self, method: str, *arguments: Any, **options: Any) -> None:
        """Call the method, and note what JavaScript should return or throw."""
        given = [_plain(argument) for argument in arguments]
        case: Case = {"bundle": str(self._folder), "method": camel({method: 0}).popitem()[0]}
        case["arguments"] = [*given, camel(_flat(options))]
        try:
            result = getattr(self._model, method)(*map(_pythonic, arguments), **options)
            if isinstance(result, Iterator):
                result = list(result)
        except ortolan.OrtolanError as error:
            case["error"] = type(error).__name__
        else:
            case["result"] = in_javascript(result, arguments)
        self.cases.append(case)


def _flat(options: Case) -> Case:
    """Options with those of sampling among them."""
    sampling = asdict(options["sampling"]) if "sampling" in options else {}
    own = {name: value for name, value in options.items() if name != "sampling"}
    return own | {name: value for name, value in sampling.items() if value not in (None, {}, ())}


def _pythonic(argument: Any) -> Any:
    """Pairs are tuples in Python."""
    if isinstance(argument, list) and argument and isinstance(argument[0], list):
        return [tuple(i) if i and isinstance(i[0], str) else i for i in argument]
    return argument


def _plain(argument: Any) -> Any:
    if isinstance(argument, list):
        return [_plain(one) for one in argument]
    if not isinstance(argument, np.ndarray):
        return argument
    if argument.ndim == 1:  # samples
        return {"samples": b64encode(argument.tobytes()).decode(), "dtype": str(argument.dtype)}
    height, width = argument.shape[:2]
    return {"data": argument.ravel().tolist(), "width": width, "height": height}


def in_javascript(result: Any, arguments: Any) -> Any:
    """A result as JavaScript has it; places in texts are counted in UTF-16 code units."""
    texts = [text for text in arguments if isinstance(text, str)]
    match result:
        case np.ndarray():
            return result.tolist()
        case Classification(label=label, score=score, scores=scores):
            ranked = [{"label": name, "score": value} for name, value in scores.items()]
            probable = result.are_probabilities
            return {"label": label, "score": score, "scores": ranked, "areProbabilities": probable}
        case Answer():
            return _placed(asdict(result), texts[1])
        case LabeledSpan():
            return _placed(asdict(result), texts[0])
        case TokenClassification(tokens=tokens, entities=entities):
            return {
                "tokens": [in_javascript(span, texts) for span in tokens],
                "entities": [in_javascript(span, texts) for span in entities],
            }
        case Filling():
            return asdict(result)
        case Completion(text=text, tokens=tokens, finish_reason=reason):
            own: Case = {"text": text, "tokens": tokens, "finishReason": reason}
            if result.score is not None:
                own |= {
                    "score": result.score,
                    "alternatives": list(map(asdict, result.alternatives)),
                }
            return own
        case Transcript():
            return asdict(result) | {"text": result.text}
        case Segment() | Hypothesis():
            return asdict(result)
        case list() if result and isinstance(result[0], TokenClassification):
            each = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]
            pairs = zip(result, each, strict=True)
            return [in_javascript(one, [text]) for one, text in pairs]
        case list():
            return [in_javascript(one, arguments) for one in result]
    return result


def _placed(fields: Case, text: str) -> Case:
    return fields | {name: utf16(text, fields[name]) for name in ("start", "end")}
