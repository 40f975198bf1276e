"""A module that has no weights, run over several inputs at once: each weight is read as it is used.

The module's parameters lie on the device `meta`. What reads one gets its values from `Weights`, in
float32, and frees them again: a product reads a large one a few rows at a time, an embedding reads
the rows that it looks up. The inputs run side by side and wait for each other at every product, so
that a weight is read once for all of them, and whoever calibrates sees what enters it for every
input. They wait for each other at a single row of a weight too, such as one expert of many: of
rows, the first is served first.

An input may read some weights elsewhere, such as one that is rounded. Inputs that are still alike
then share their products.

This asks nothing of the module: any control flow between its products will do.

Shape letters: N rows of a weight, K its columns.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from ortolan.export.products import linear
from ortolan.modeling.weights import Replaced, Weights, read_weight
from ortolan.runtime.machine.memory import return_free_memory

READ_BYTES = 16 << 20
"""Of the rows of a weight, in float32, that are multiplied together; oneDNN copies them. Of a large
weight, that are read together, by each input anew."""

WHOLE_READS = 8
"""Of a weight that is still read whole, once for all inputs."""

_PROPERTIES = ("__get__",)
"""What asks about a tensor and not for its values, such as `weight.shape`."""


@dataclass(frozen=True, slots=True)
class Product:
    """Some inputs have come to a product.

    Attributes:
        name: of its weight.
        inputs: what enters it, `(..., K)` for each of them.
        indices: which inputs of the run these are.
    """

    name: str
    inputs: Sequence[Tensor]
    indices: Sequence[int]


@dataclass(frozen=True, slots=True)
class Result:
    """An input has come to the end.

    Attributes:
        index: of the input.
        value: what its call returned.
    """

    index: int
    value: Any


def run(
    module: nn.Module,
    weights: Weights,
    calls: Sequence[Callable[[], Any]],
    *,
    instead: Sequence[Mapping[str, Weights]] = (),
) -> Generator[Product | Result, None, None]:
    """Run a module over several inputs, product by product.

    Args:
        module: its parameters lie on `meta` and carry the names of `weights`; a weight that has two
            names goes by the first.
        weights: their values.
        calls: each calls the module with one input. It runs in a thread of its own, while no other
            one does.
        instead: for each call, where it reads some weights instead; by default, nowhere.

    Yields:
        Every product that some inputs wait at together, and the result of each input. An input
        goes on when the next one is asked for.

    Raises:
        Exception: what a call raises.
    """
    own = [Replaced(weights, each) if each else weights for each in instead or [{}] * len(calls)]
    texts = [
        _Text(index, call, LazyWeights(module, each))
        for index, (call, each) in enumerate(zip(calls, own, strict=True))
    ]
    try:
        for text in texts:
            yield from _resume(text, None)
        while waiting := [text for text in texts if not text.is_done]:
            yield from _serve(waiting)
    finally:
        for text in texts:
            text.abandon()


def _serve(waiting: Sequence["_Text"]) -> Iterator[Product | Result]:
    """Compute what is waited at first, for all that wait at it."""
    reading = [text for text in waiting if isinstance(text.request, Row)]
    if reading:
        # Before products, at which others may wait until these have had their rows.
        row = min(cast(Row, text.request) for text in reading)
        served = [text for text in reading if text.request == row]
        for source, texts in _by_source(row.name, served):
            values = source.rows(row.name, row.number, row.number + 1)[0].float()
            for text in texts:
                yield from _resume(text, values)
        return
    name = waiting[0].request.name
    served = [text for text in waiting if text.request.name == name]
    entering = [cast(Request, text.request).entering for text in served]
    yield Product(name, entering, [text.index for text in served])
    del entering
    for source, texts in _by_source(name, served):
        is_small = bytes_of(source, name) <= WHOLE_READS * READ_BYTES
        given = read_weight(source, name) if is_small else None
        # Without weights of their own, inputs are as different as they were given.
        has_alike = any(isinstance(text.weights, Replaced) for text in texts)
        for alike in _alike(texts) if has_alike else [[text] for text in texts]:
            request = cast(Request, alike[0].request)
            if isinstance(source, RoundsInputs):
                request = replace(request, entering=source.rounded(request.entering))
            answer = product(source, request, given)
            for text in alike[1:]:
                yield from _resume(text, answer.clone())  # who has it may overwrite it
            yield from _resume(alike[0], answer)
            del answer
    return_free_memory()


def _by_source(name: str, texts: Iterable["_Text"]) -> Iterable[tuple[Weights, list["_Text"]]]:
    """The inputs that read a weight at the same place."""
    found: dict[int, tuple[Weights, list[_Text]]] = {}
    for text in texts:
        weights = text.weights
        source = weights.source(name) if isinstance(weights, Replaced) else weights
        found.setdefault(id(source), (source, []))[1].append(text)
    return found.values()


def _alike(texts: Iterable["_Text"]) -> list[list["_Text"]]:
    """Those that wait at one product with the same numbers, together."""
    groups: list[list[_Text]] = []
    for text in texts:
        request = cast(Request, text.request)
        for group in groups:
            if request.is_like(cast(Request, group[0].request)):
                group.append(text)
                break
        else:
            groups.append([text])
    return groups


def _resume(text: "_Text", answer: Tensor | None) -> Iterator[Result]:
    text.resume(answer)
    if text.is_done:
        yield Result(text.index, text.take())


@dataclass(frozen=True, slots=True)
class Request:
    """A product to compute."""

    name: str
    entering: Tensor
    bias: Tensor | None
    is_transposed: bool

    def is_like(self, other: "Request") -> bool:
        """Whether both give the same numbers, with the same weight."""
        biases = [each for each in (self.bias, other.bias) if each is not None]
        return (
            self.is_transposed == other.is_transposed
            and torch.equal(self.entering, other.entering)
            and (not biases or (len(biases) == 2 and torch.equal(*biases)))
        )


class Row(NamedTuple):
    """A row of a weight to read; those of lower numbers come first."""

    number: int
    name: str


_Ask = Callable[[Request | Row], Tensor]


@runtime_checkable
class RoundsInputs(Protocol):
    """Weights of a kernel that rounds what it multiplies."""

    def rounded(self, entering: Tensor) -> Tensor:
        """What enters a product `(..., K)`, as the kernel multiplies it."""
        ...


class LazyWeights(TorchFunctionMode):
    """Parameters on `meta` whose values are read where PyTorch needs them.

    As a context manager it applies to its own thread. Products are computed at once, or by
    `ask`, where one is set.
    """

    def __init__(
        self,
        module: nn.Module,
        weights: Weights,
        ask: _Ask | None = None,
    ) -> None:
        super().__init__()
        self.weights = weights
        self.names: dict[int, str] = {id(p): name for name, p in module.named_parameters()}
        self._module = module  # keeps the parameters, and so their ids
        self._ask = ask or self.answer

    def asking(self, ask: _Ask) -> "LazyWeights":
        """The same weights for another thread."""
        return LazyWeights(self._module, self.weights, ask)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute with the values of parameters."""
        given = dict(kwargs or {})
        if func == Tensor.device.__get__ and self._name(args[0]):
            return torch.device("cpu")  # where its values are used
        if getattr(func, "__name__", "") in _PROPERTIES and not _gives_values(func):
            return func(*args, **given)
        match func, args:
            case F.linear, (x, Tensor() as weight, *rest) if self._name(weight):
                bias = rest[0] if rest else given.get("bias")
                return self._ask(self._request(x, weight, bias, is_transposed=False))
            case torch.addmm, (bias, x, Tensor() as weight) if self._name(weight) and not given:
                return self._ask(self._request(x, weight, bias, is_transposed=True))
            case F.embedding, (ids, Tensor() as weight, *_) if self._name(weight):
                used, places = torch.unique(ids, return_inverse=True)
                rows = gather_rows(self.weights, self.names[id(weight)], used)
                return F.embedding(places, rows)
            case Tensor.__getitem__, (Tensor() as weight, int(row)) if self._name(weight):
                return self._ask(Row(row, self.names[id(weight)]))
            case Tensor.__getitem__, (Tensor() as weight, Tensor() as place) if (
                self._name(weight) and not place.dim() and place.dtype == torch.int64
            ):
                return self._ask(Row(int(place), self.names[id(weight)]))
        read = tree_map_only(Tensor, self._values, (args, given))
        return func(*read[0], **read[1])

    def answer(self, request: Request | Row) -> Tensor:
        """What is asked for, computed at once."""
        if isinstance(request, Row):
            return self.weights.rows(request.name, request.number, request.number + 1)[0].float()
        return product(self.weights, request, None)

    def _request(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, is_transposed: bool
    ) -> Request:
        bias = None if bias is None else self._values(bias)
        return Request(self.names[id(weight)], x, bias, is_transposed)

    def _name(self, tensor: Tensor) -> str | None:
        return self.names.get(id(tensor))

    def _values(self, tensor: Tensor) -> Tensor:
        name = self._name(tensor)
        return tensor if name is None else read_weight(self.weights, name)


def product(weights: Weights, request: Request, weight: Tensor | None) -> Tensor:
    """A product with a weight that was read, or with one read some rows at a time."""
    x, bias = request.entering, request.bias
    if request.is_transposed:
        given = read_weight(weights, request.name) if weight is None else weight
        x = linear(x, given.T)
        return x if bias is None else x + bias
    rows, columns = weights.shape(request.name)
    out = x.new_empty(*x.shape[:-1], rows)
    step = max(1, READ_BYTES // (4 * columns))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        read = weights.rows(request.name, start, stop) if weight is None else weight[start:stop]
        out[..., start:stop] = linear(x, read.float())
    return out if bias is None else out.add_(bias)


def bytes_of(weights: Weights, name: str) -> int:
    """A weight in float32."""
    return 4 * torch.Size(weights.shape(name)).numel()


def _gives_values(getter: Callable[..., Any]) -> bool:
    """Whether a getter of a property is one that gives a tensor's values, such as `.T`."""
    return getter in (Tensor.T.__get__, Tensor.mT.__get__, Tensor.data.__get__)  # type: ignore[attr-defined]


def gather_rows(weights: Weights, name: str, indices: Tensor) -> Tensor:
    """Some rows of a large table, float32; `indices` are sorted."""
    rows, width = weights.shape(name)
    gathered = torch.empty(len(indices), width)
    step = max(1, READ_BYTES // (4 * width))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        inside = (indices >= start) & (indices < stop)
        if bool(inside.any()):
            gathered[inside] = weights.rows(name, start, stop)[indices[inside] - start].float()
    return gathered


class _Abandoned(BaseException):
    """The run is over before this input came to its end."""


class _Text:
    """One input, in a thread that runs only between `resume` and its next product."""

    def __init__(self, index: int, call: Callable[[], Any], lazy: LazyWeights) -> None:
        self.index = index
        self.weights = lazy.weights
        self.request: Request | Row
        self.is_done = False
        self._is_abandoned = False
        self._answer: Tensor | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._may_run, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(
            target=self._main, args=(call, lazy.asking(self._ask)), daemon=True
        )

    def resume(self, answer: Tensor | None) -> None:
        """Run up to the next product or the end, with what the last product gave."""
        self._answer = answer
        if self._thread.ident is None:
            self._thread.start()
        self._may_run.release()
        self._has_stopped.acquire()
        if self._error is not None:
            raise self._error

    def take(self) -> Any:
        """The result, which is held no longer."""
        result, self._result = self._result, None
        return result

    def abandon(self) -> None:
        """End the thread wherever it is."""
        if self._thread.ident is not None and not self.is_done:
            self._is_abandoned = True
            self._may_run.release()
        if self._thread.ident is not None:
            self._thread.join()

    def _main(self, call: Callable[[], Any], lazy: LazyWeights) -> None:
        self._may_run.acquire()
        try:
            with torch.inference_mode(), lazy:
                self._result = call()
        except _Abandoned:
            pass
        except BaseException as error:  # the caller raises it
            self._error = error
        self.is_done = True
        self._has_stopped.release()

    def _ask(self, request: Request | Row) -> Tensor:
        self.request = request
        self._has_stopped.release()
        self._may_run.acquire()
        if self._is_abandoned:
            raise _Abandoned
        answer, self._answer = self._answer, None
        if answer is None:
            raise RuntimeError("an input was resumed without what its product gave")
        return answer
