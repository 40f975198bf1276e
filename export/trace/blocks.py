"""Finds the repeated blocks of any module: those of a list that run the same operators.

One forward without memory shows what each block computes: operators in order, with their numbers
and the names of their weights in the block. Blocks are of one kind if all of it is equal, also the
tensors that they read from outside, apart from the residual stream. One of each kind is traced;
`repeat.py` copies it to where the others, which `skip` replaces, were called:

    layers   A     B     A     B                 x -> A -> B -> Copy(2) -> Copy(3) -> logits
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ortolan.export.trace.shorten import COPY, ENTER, LEAVE, MARKS

FEWEST = 3
"""Blocks of a list that is worth it."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block that computes the same as another, which may be itself.

    Attributes:
        name: of the module.
        traced: name of the first block of its kind.
        states: keys of the states that it carries, in order.
        rest: what it returns after the stream; None if it returns the stream alone.
    """

    name: str
    traced: str
    states: tuple[object, ...]
    rest: tuple[object, ...] | None


class BlockRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what the blocks of a module compute during one forward."""

    def __init__(self, module: nn.Module, states: Callable[[], Mapping[object, object]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._states = states
        self._computed: dict[str, tuple[object, ...]] = {}
        self._found: dict[str, Block] = {}
        self._running = ""
        self._program: list[object] = []
        self._before: Mapping[object, object] = {}
        self._names: dict[int, object] = {}
        self._seen: list[Tensor] = []  # while they live, no other tensor gets their id
        for name, block in _blocks(module):
            block.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True)
            block.register_forward_hook(partial(self._leave, name), with_kwargs=True)

    def blocks(self) -> tuple[Block, ...]:
        """The blocks that some other one is like."""
        kinds: list[tuple[tuple[str, tuple[object, ...]], str]] = []
        found = []
        for name, computed in self._computed.items():
            kind = (name.rpartition(".")[0], computed)
            traced = next((first for known, first in kinds if known == kind), name)
            if traced == name:
                kinds.append((kind, name))
            found.append(replace(self._found[name], traced=traced))
        copied = {block.traced for block in found if block.traced != block.name}
        return tuple(block for block in found if block.traced in copied)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operator, and record it if a block does so."""
        result = func(*args, **(kwargs or {}))
        if self._running:
            read = tree_map(self._named, (args, kwargs or {}))
            self._program.append((func, read, tree_map(self._new, result)))
        return result

    def _enter(self, name: str, block: nn.Module, args: Any, kwargs: Any) -> None:
        if self._running:
            return
        x = _stream(args, kwargs)
        self._running, self._before = name, dict(self._states())
        own = chain(block.named_parameters(), block.named_buffers())
        self._names = dict[int, object]({id(tensor): part for part, tensor in own})
        self._names[id(x)] = "the stream"
        self._program = [
            [(part, tensor.shape, tensor.dtype) for part, tensor in block.named_parameters()],
            tree_map(self._named, (args, kwargs)),
        ]

    def _leave(self, name: str, _: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if self._running != name:
            return
        self._running = ""
        after = self._states()
        new = [key for key in after if key not in self._before]
        x, (out, rest) = _stream(args, kwargs), _parts(result)
        again = name in self._computed
        if again or x is None or out is None or (x.shape, x.dtype) != (out.shape, out.dtype):
            new, self._program = [], [object()]  # like no other
        specs = [after[key] for key in new]
        self._computed[name] = (self._program, specs, tree_map(self._named, (out, rest)))
        self._found[name] = Block(name, name, tuple(new), rest)

    def _named(self, value: object) -> object:
        """A value, with the name of a tensor in its block instead of the tensor."""
        if not isinstance(value, Tensor):
            return value
        self._seen.append(value)
        return self._names.get(id(value), id(value))

    def _new(self, value: object) -> object:
        """Name a result by its number."""
        if isinstance(value, Tensor):
            self._names.setdefault(id(value), ("result", len(self._names)))
        return self._named(value)


def skip(module: nn.Module, blocks: Sequence[Block]) -> None:
    """Make the traced blocks mark the stream, and the others leave a mark of where they belong."""
    for block in blocks:
        part = module.get_submodule(block.name)
        if block.name == block.traced:
            marked = partial(_marked, block.name, part.forward)
            setattr(part, "forward", marked)  # noqa: B010 - of this module alone
        else:
            module.set_submodule(block.name, _Skipped(block, part))


class _Skipped(nn.Module):
    """A block that only marks where its copy belongs, and has the attributes of the original."""

    def __init__(self, block: Block, original: nn.Module) -> None:
        super().__init__()
        # Not a submodule: its weights are no part of the trace.
        self.__dict__["_block"], self.__dict__["_original"] = block, original

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the original would."""
        block: Block = self.__dict__["_block"]
        return _returned(_mark(COPY, block.name, _stream(args, kwargs)), block.rest)

    def __getattr__(self, name: str) -> Any:
        """Read an attribute of the original."""
        return getattr(self.__dict__["_original"], name)


def _blocks(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The elements of the outermost lists of a module."""
    lists: list[str] = []
    for name, part in module.named_modules():
        if not isinstance(part, nn.ModuleList) or len(part) < FEWEST:
            continue
        if not any(name.startswith(f"{outer}.") for outer in lists):
            lists.append(name)
            yield from ((f"{name}.{number}", block) for number, block in enumerate(part))


def _stream(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The residual stream: the first tensor that a block gets."""
    values = (*args, *kwargs.values())
    return next((value for value in values if isinstance(value, Tensor)), None)


def _parts(result: Any) -> tuple[Tensor | None, tuple[Any, ...] | None]:
    """The stream that a block returns, and the rest of a tuple; no tensor if it is another one."""
    match result:
        case Tensor():
            return result, None
        case (Tensor() as out, *rest) if isinstance(result, tuple):
            return (None if any(map(torch.is_tensor, rest)) else out), tuple(rest)
        case _:
            return None, None


def _marked(name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    x = _stream(args, kwargs)
    entered = _mark(ENTER, name, x)
    args = tuple(entered if value is x else value for value in args)
    kwargs = {key: entered if value is x else value for key, value in kwargs.items()}
    out, rest = _parts(forward(*args, **kwargs))
    return _returned(_mark(LEAVE, name, out), rest)


def _returned(out: Tensor, rest: tuple[object, ...] | None) -> Any:
    return out if rest is None else (out, *rest)


def _mark(operator: str, name: str, x: Tensor | None) -> Tensor:
    if x is None:
        raise TypeError(f"{name}: expected the residual stream")
    return torch.onnx.ops.symbolic(
        f"{MARKS}::{operator}", (x,), {"block": name}, dtype=x.dtype, shape=x.shape, version=1
    )
