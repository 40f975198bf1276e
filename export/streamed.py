"""Run a module over several inputs at once, with each weight in memory only while it is used.

The module's parameters lie on the device `meta`. Reading one fetches its values from `Weights` in
float32 and frees them again: a product reads a large weight a few rows at a time, an embedding only
the rows it looks up.

Every input has its own thread, but only one thread runs at a time. Inputs wait for each other at
every product, so that a weight is read once for all, and calibration sees what enters it:

    input 0  ── forward ──▶ q ┐              ┌──▶ ... ──▶ k ┐
    input 1  ── forward ──▶ q ┤  read W_q,   ├──▶ ... ──▶ k ┤  read W_k, ...
    input 2  ── forward ──▶ q ┘  3 products  └──▶ ... ──▶ k ┘

They also wait at a single row of a weight, such as one expert of many; the lowest row is served
first. This makes no demands on the module: its control flow between products can be anything.

An input may read some weights elsewhere, such as a rounded one. Inputs whose activations are still
equal share their products.

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
"""Bytes of rows, in float32, that are read and multiplied together; oneDNN copies them."""

WHOLE_READS = 8
"""Weights of up to this many reads are read whole, once for all inputs."""

_PROPERTIES = ("__get__",)
"""Getters that ask about a tensor rather than for its values, such as `weight.shape`."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product that inputs wait at.

    Attributes:
        inputs: what enters it, `(..., K)` per waiting input.
    """

    name: str
    inputs: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of the call for the input at a place of the run."""

    index: int
    value: Any


def run(
    module: nn.Module,
    weights: Weights,
    calls: Sequence[Callable[[], Any]],
    *,
    instead: Sequence[Mapping[str, Weights]] = (),
) -> Generator[Product | Result, None, None]:
    """Run a module over several inputs, product by product."""
    sources = [Replaced(weights, other) if other else weights for other in instead]
    sources = sources or [weights] * len(calls)
    threads = [
        _InputThread(index, call, LazyWeights(module, source))
        for index, (call, source) in enumerate(zip(calls, sources, strict=True))
    ]
    try:
        for thread in threads:
            yield from _resume(thread, None)
        while waiting := [thread for thread in threads if not thread.is_done]:
            yield from _serve(waiting)
    finally:
        for thread in threads:
            thread.abandon()


def _serve(waiting: Sequence["_InputThread"]) -> Iterator[Product | Result]:
    """Compute the first request in line, for every input that waits for it."""
    reading = [thread for thread in waiting if isinstance(thread.request, Row)]
    if reading:
        # Rows before products: other inputs may reach the same product after their rows.
        row = min(cast(Row, thread.request) for thread in reading)
        served = [thread for thread in reading if thread.request == row]
        for source, threads in _by_source(row.name, served):
            values = source.rows(row.name, row.number, row.number + 1)[0].float()
            for thread in threads:
                yield from _resume(thread, values)
        return
    name = waiting[0].request.name
    served = [thread for thread in waiting if thread.request.name == name]
    entering = [cast(Request, thread.request).entering for thread in served]
    yield Product(name, entering)
    del entering  # else it would outlive the products
    for source, threads in _by_source(name, served):
        is_small = bytes_of(source, name) <= WHOLE_READS * READ_BYTES
        weight = read_weight(source, name) if is_small else None
        # Inputs that read the same weights differ from the start.
        may_be_equal = any(isinstance(thread.weights, Replaced) for thread in threads)
        for equal in _equal_groups(threads) if may_be_equal else [[thread] for thread in threads]:
            request = cast(Request, equal[0].request)
            if isinstance(source, RoundsInputs):
                request = replace(request, entering=source.rounded(request.entering))
            output = product(source, request, weight)
            for thread in equal[1:]:
                yield from _resume(thread, output.clone())  # its owner may overwrite it
            yield from _resume(equal[0], output)
            del output
    return_free_memory()


def _by_source(
    name: str, threads: Iterable["_InputThread"]
) -> Iterable[tuple[Weights, list["_InputThread"]]]:
    """Inputs by the source that they read a weight from."""
    groups: dict[int, tuple[Weights, list[_InputThread]]] = {}
    for thread in threads:
        weights = thread.weights
        source = weights.source(name) if isinstance(weights, Replaced) else weights
        groups.setdefault(id(source), (source, []))[1].append(thread)
    return groups.values()


def _equal_groups(threads: Iterable["_InputThread"]) -> list[list["_InputThread"]]:
    """Inputs grouped by equal activations."""
    groups: list[list[_InputThread]] = []
    for thread in threads:
        request = cast(Request, thread.request)
        for group in groups:
            if request.is_like(cast(Request, group[0].request)):
                group.append(thread)
                break
        else:
            groups.append([thread])
    return groups


def _resume(thread: "_InputThread", answer: Tensor | None) -> Iterator[Result]:
    thread.resume(answer)
    if thread.is_done:
        yield Result(thread.index, thread.take())


@dataclass(frozen=True, slots=True)
class Request:
    """A product to compute."""

    name: str
    entering: Tensor
    bias: Tensor | None
    is_transposed: bool

    def is_like(self, other: "Request") -> bool:
        """Whether both compute the same numbers with the same weight."""
        biases = [bias for bias in (self.bias, other.bias) if bias is not None]
        return (
            self.is_transposed == other.is_transposed
            and torch.equal(self.entering, other.entering)
            and (not biases or (len(biases) == 2 and torch.equal(*biases)))
        )


class Row(NamedTuple):
    """A row of a weight to read; sorted by number."""

    number: int
    name: str


_Ask = Callable[[Request | Row], Tensor]


@runtime_checkable
class RoundsInputs(Protocol):
    """Weights of a kernel that rounds its inputs."""

    def rounded(self, entering: Tensor) -> Tensor:
        """The input of a product `(..., K)` as the kernel multiplies it."""
        ...


class LazyWeights(TorchFunctionMode):
    """Reads the values of parameters on `meta` where PyTorch uses them.

    A context manager for the current thread. Products are computed by `ask` if one is set, else at
    once.
    """

    def __init__(self, module: nn.Module, weights: Weights, ask: _Ask | None = None) -> None:
        super().__init__()
        self.weights = weights
        self.names: dict[int, str] = {id(p): name for name, p in module.named_parameters()}
        self._module = module  # keeps the parameters alive, and so their ids
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
        named = dict(kwargs or {})
        if func == Tensor.device.__get__ and self._name(args[0]):
            return torch.device("cpu")  # where the values are used
        if getattr(func, "__name__", "") in _PROPERTIES and not _returns_values(func):
            return func(*args, **named)
        match func, args:
            case F.linear, (x, Tensor() as weight, *rest) if self._name(weight):
                bias = rest[0] if rest else named.get("bias")
                return self._ask(self._request(x, weight, bias, is_transposed=False))
            case torch.addmm, (bias, x, Tensor() as weight) if self._name(weight) and not named:
                return self._ask(self._request(x, weight, bias, is_transposed=True))
            case F.embedding, (ids, Tensor() as weight, *rest) if (
                self._name(weight) and rest[1:2] in ([], [None]) and not named.get("max_norm")
            ):
                used, places = torch.unique(ids, return_inverse=True)
                rows = gather_rows(self.weights, self.names[id(weight)], used)
                return F.embedding(places, rows)
            case Tensor.__getitem__, (Tensor() as weight, int(row)) if self._name(weight):
                return self._ask(Row(row, self.names[id(weight)]))
            case Tensor.__getitem__, (Tensor() as weight, Tensor() as place) if (
                self._name(weight) and not place.dim() and place.dtype == torch.int64
            ):
                return self._ask(Row(int(place), self.names[id(weight)]))
        read = tree_map_only(Tensor, self._values, (args, named))
        return func(*read[0], **read[1])

    def answer(self, request: Request | Row) -> Tensor:
        """Compute a product, or read a row, at once."""
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
    """Multiply with a weight in memory or, if None, with one that is read a few rows at a time."""
    x, bias = request.entering, request.bias
    if request.is_transposed:
        whole = read_weight(weights, request.name) if weight is None else weight
        x = linear(x, whole.T)
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
    """Bytes of a weight in float32."""
    return 4 * torch.Size(weights.shape(name)).numel()


def _returns_values(getter: Callable[..., Any]) -> bool:
    """Whether a property returns values of the tensor, such as `.T`."""
    return getter in (Tensor.T.__get__, Tensor.mT.__get__, Tensor.data.__get__)  # type: ignore[attr-defined]


def gather_rows(weights: Weights, name: str, indices: Tensor) -> Tensor:
    """Rows of a large table, float32; `indices` are sorted."""
    rows, width = weights.shape(name)
    gathered = torch.empty(len(indices), width)
    step = max(1, READ_BYTES // (4 * width))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        inside = (indices >= start) & (indices < stop)
        if bool(inside.any()):
            gathered[inside] = weights.rows(name, start, stop)[indices[inside] - start].float()
    return gathered


class _AbandonedError(BaseException):
    """The run ended before this input did."""


class _InputThread:
    """One input, in a thread that runs only between `resume` and its next request."""

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
        """Run until the next request or the end, with the answer to the last request."""
        self._answer = answer
        if self._thread.ident is None:
            self._thread.start()
        self._may_run.release()
        self._has_stopped.acquire()
        if self._error is not None:
            raise self._error

    def take(self) -> Any:
        """Return the result and drop it here."""
        result, self._result = self._result, None
        return result

    def abandon(self) -> None:
        """End the thread wherever it is."""
        if self._thread.ident is None:
            return
        if not self.is_done:
            self._is_abandoned = True
            self._may_run.release()
        self._thread.join()

    def _main(self, call: Callable[[], Any], lazy: LazyWeights) -> None:
        self._may_run.acquire()
        try:
            with torch.inference_mode(), lazy:
                self._result = call()
        except _AbandonedError:
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
            raise _AbandonedError
        answer, self._answer = self._answer, None
        if answer is None:
            raise RuntimeError("an input was resumed without an answer")
        return answer
