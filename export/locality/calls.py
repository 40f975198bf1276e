"""Calls a module once, apart from the user's own."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ortolan.export.trace.module import apart, untraceable
from ortolan.modeling.errors import ConfigError, ModelingError
from ortolan.modeling.state import State


def own_copy(live: nn.Module) -> nn.Module:
    """Copy a module with its parameters shared and everything else its own."""
    module = apart(live).eval()
    for part in module.modules():
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else buffer.detach().clone()
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                vars(part)[name] = value.detach().clone()
    return module


def called(
    module: nn.Module,
    ids: Tensor,
    state: State | None = None,
    *,
    seed: int = 0,
    weights: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """The logits of ids.

    Args:
        module: from `own_copy`.
        ids: `(B, S)`, on the CPU.
        state: by default, of whole sequences.
        seed: of all random numbers.
        weights: instead of the module's parameters.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    parameter = next(module.parameters(), None)
    taken = ids.to("cpu" if parameter is None else parameter.device, copy=True)
    name, state = type(module).__name__, State.whole() if state is None else state
    try:
        with torch.no_grad():
            logits: Tensor = functional_call(module, dict(weights or {}), (taken, state))
    except ModelingError:
        raise
    except Exception as error:
        raise untraceable(name, "a call on the CPU", error) from error
    if not torch.equal(taken.cpu(), ids):
        raise ConfigError(
            f"{name}: forward changes its ids in place. Change a copy: `ids = ids.clone()`."
        )
    return logits.float()


@contextmanager
def restored_random() -> Iterator[None]:
    """Leave the global random numbers as they were."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
