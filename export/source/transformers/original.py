"""Runs a live model of transformers as it is in memory: the reference that its bundle must match.

A bundle is made from what `save_pretrained` writes, which leaves out a forward of one's own, a
replaced module, a hook, or a config that was changed after the model was built. So the live model
itself computes every probe: in evaluation mode, in float32 and on the CPU, whatever its own type
and device. It is left as it was.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ortolan.export.exportable import Exportable
from ortolan.export.source.transformers.adapter import first_position
from ortolan.export.source.transformers.private import build_as, compute_buffers
from ortolan.export.source.transformers.rotary import pin_rotary
from ortolan.export.streamed import LazyWeights
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.weights import module_weights
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.manifest import Source
from ortolan.runtime.bundle.parts import TEXT
from ortolan.runtime.bundle.sound_sources import AudioSource, WaveSource
from ortolan.runtime.bundle.text_source import TextSource

TOLERANCE = 1e-4
"""Largest difference from what config and weights say, relative to the largest output."""

OUTPUTS = ("logits", "prediction_logits", "last_hidden_state", "pooler_output")
"""Outputs of transformers that a bundle may return."""

_NAMES: Mapping[type, str] = {
    TextSource: "input_ids",
    ImageSource: "pixel_values",
    AudioSource: "input_features",
    WaveSource: "input_values",
}
"""Argument of transformers for each source."""

_MOST = 3
"""Changes to name in an error."""


def with_original(opened: Exportable, live: nn.Module, owner: object) -> Exportable:
    """The same model, whose certificate holds what the live one computes."""
    parts, texts = dict(opened.parts), opened.parts.get(TEXT)
    if texts is not None:
        parts[TEXT] = replace(texts, original=_Original(live, texts, owner, opened.source))
    original = _Original(live, opened, owner, None if texts is None else opened.source)
    if opened.features is not None and (changes := original.changes):
        raise ConfigError(
            f"{type(live).__name__} reads images or sounds, and was changed after it was built: "
            f"{listed(changes)}. {_REMEDY}"
        )
    return replace(opened, parts=parts, original=original)


def published_class(model: nn.Module) -> type[nn.Module]:
    """The class of transformers that a live model is, or is derived from."""
    return next(kind for kind in type(model).__mro__ if _is_published(kind))


def changes_of(live: nn.Module) -> list[str]:
    """Parts of a live model that transformers did not make."""
    changes = []
    for name, module in live.named_modules():
        place = f"{name}: " if name else ""
        if is_parametrized(module):
            changes.append(f"{place}it has parametrizations")
            continue
        if not _is_published(type(module)):
            changes.append(f"{place}{type(module).__name__} is not a class of transformers")
        if "forward" in vars(module):
            changes.append(f"{place}its forward was replaced")
        hooks = {**module._forward_hooks, **module._forward_pre_hooks}
        changes += [
            f"{place}it has the hook {getattr(hook, '__name__', type(hook).__name__)}"
            for hook in hooks.values()
            if not str(getattr(hook, "__module__", "")).startswith("transformers.")
        ]
    return changes


def listed(changes: Sequence[str]) -> str:
    """The first changes, for a message."""
    more = len(changes) - _MOST
    return "; ".join(changes[:_MOST]) + (f"; and {more} more" if more > 0 else "")


_REMEDY = (
    "A bundle computes what the config and the weights say. Undo the change, or export a module of "
    "your own (docs/guides/own-modules.md)."
)


class _Original:
    """A live model as `ortolan.export.exportable.Original`."""

    def __init__(self, live: Any, opened: Exportable, owner: object, images: Source | None) -> None:
        self._live = live
        self._opened = opened
        self._owner = owner
        self._images = images

    def __call__(self, source: Tensor | None, ids: Tensor | None, expected: Tensor) -> Tensor:
        """Return the output of the live model for an input."""
        opened, name = self._opened, type(self._live).__name__
        if opened.features is not None and source is not None:
            return expected  # vectors without their image
        arguments = _arguments(self._live, opened, source, ids)
        if self._images is not None:
            arguments = _of_both(self._live, arguments, self._images)
        try:
            with self._at_rest():
                output = self._live(**arguments)
        except Exception as error:  # a forward of a user's own can raise anything
            raise ConfigError(
                f"{name}: forward({', '.join(arguments)}) raised {type(error).__name__}: "
                f"{' '.join(str(error).split())[:300]}. {_REMEDY}"
            ) from error
        value = _chosen(output, opened, expected)
        if value is None:
            raise ConfigError(
                f"{name}: its forward returned no {opened.output_kind} of shape "
                f"{tuple(expected.shape)}, as {published_class(self._live).__name__} does. "
                f"{_REMEDY}"
            )
        most = float((value - expected).abs().max())
        if not most <= TOLERANCE * float(value.abs().max()):
            raise ConfigError(
                f"{name} does not compute the {opened.output_kind} of its config and weights: they "
                f"differ by {most:.2g} of at most {float(value.abs().max()):.2g}. It was changed "
                f"after it was built: {listed(self.changes) or 'its config'}. {_REMEDY}"
            )
        return value

    @property
    def changes(self) -> list[str]:
        """How it differs from what its config builds."""
        if self._built is None:
            return changes_of(self._live)
        usual = changes_of(self._built)
        changes = [change for change in changes_of(self._live) if change not in usual]
        return changes + list(self._unlike(dict(self._built.named_modules())))

    def _unlike(self, built: Mapping[str, nn.Module]) -> Iterator[str]:
        """Modules that its config would build otherwise."""
        for name, module in self._live.named_modules():
            other = built.get(name)
            if other is None or not name or not _is_published(type(module)):
                continue
            now, then = (f"{type(part).__name__}({part.extra_repr()})" for part in (module, other))
            tables = zip(module.buffers(False), other.buffers(False), strict=False)
            if now != then:
                yield f"{name} is {now}, and {then} by its config"
            elif any(
                not one.is_meta and not torch.equal(one.to(own.dtype), own.cpu())
                for own, one in tables
            ):
                yield f"{name} has other buffers than by its config"

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Evaluate in float32 on the CPU, and undo what the forward assigns."""
        opened, last = self._opened, self._opened.switches_after
        with _unchanged(self._live):
            self._live.eval()
            if last is not None and opened.context_length > last:
                # as the bundle, which computes all lengths alike
                pin_rotary(self._live, opened.context_length)
            lazy = _InFloat32(self._live, self._exact)
            with torch.no_grad(), torch.compiler.set_stance("force_eager"), lazy:
                yield

    @cached_property
    def _exact(self) -> Mapping[str, Tensor]:
        """Buffers that `half()` rounded, as transformers computes them."""
        rounded = {
            name: buffer
            for name, buffer in self._live.named_non_persistent_buffers()
            if buffer.is_floating_point() and buffer.dtype != torch.float32
        }
        exact = dict(self._built.named_buffers()) if rounded and self._built else {}
        return {
            name: exact[name]
            for name, buffer in rounded.items()
            if name in exact and torch.equal(exact[name].to(buffer.dtype), buffer.cpu())
        }

    @cached_property
    def _built(self) -> nn.Module | None:
        """The same model as its config builds it, without weights; None if that fails."""
        kind: Any = published_class(self._live)
        try:
            with torch.device("meta"):
                built: Any = build_as(kind, deepcopy(self._live.config))
            compute_buffers(built)
        except Exception:  # a changed config can raise anything in transformers
            return None
        model: nn.Module = built
        return model


class _InFloat32(LazyWeights):
    """Reads parameters and buffers of a live model in float32 on the CPU."""

    def __init__(self, model: nn.Module, exact: Mapping[str, Tensor]) -> None:
        super().__init__(model, module_weights(model))
        self._buffers: dict[int, Tensor] = {}
        for name, buffer in model.named_buffers():
            values = exact.get(name, buffer).detach().to("cpu", copy=True)
            floats = values.is_floating_point()
            self._buffers[id(buffer)] = values.float() if floats else values

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute with these values, and answer questions about them."""
        if getattr(func, "__name__", "") == "__get__" and id(args[0]) in self._buffers:
            return func(self._buffers[id(args[0])])
        if func == Tensor.dtype.__get__ and self._name(args[0]):  # type: ignore[attr-defined]
            return torch.float32
        return super().__torch_function__(func, types, args, kwargs)

    def _values(self, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(id(tensor))
        return super()._values(tensor) if buffer is None else buffer


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Undo what is assigned to modules, such as their mode, buffers or hooks."""
    before = [(vars(module), vars(module).copy(), _tables(module)) for module in model.modules()]
    try:
        yield
    finally:
        for attributes, values, tables in before:
            attributes.clear()
            attributes.update(values)
            for table, entries in tables:
                table.clear()
                table.update(entries)


def _tables(module: nn.Module) -> list[tuple[dict[Any, Any], dict[Any, Any]]]:
    """The dictionaries of a module, such as its buffers, and their entries."""
    tables = [value for value in vars(module).values() if isinstance(value, dict)]
    return [(table, dict(table)) for table in tables]


def _arguments(
    live: Any, opened: Exportable, source: Tensor | None, ids: Tensor | None
) -> dict[str, Any]:
    """Arguments of transformers for one input."""
    known, arguments = _accepted(live), dict[str, Any]()
    if ids is not None and (opened.source is None or opened.features is not None):
        arguments = {"input_ids": ids[None]}
    else:
        arguments = _source_arguments(opened, source)
        if ids is not None:
            arguments["decoder_input_ids"] = ids[None]
    if isinstance(opened.source, ImageSource) and "interpolate_pos_encoding" in known:
        size = getattr(live.config, "image_size", ())
        own = (size, size) if isinstance(size, int) else tuple(size)
        arguments["interpolate_pos_encoding"] = arguments["pixel_values"].shape[2:] != own
    first = first_position(live)
    if first and "position_ids" in known and "input_ids" in arguments:
        # Such a model counts positions without padding, but a text may contain the padding's id.
        length = arguments["input_ids"].shape[-1]
        arguments["position_ids"] = torch.arange(first, first + length)[None]
    if "use_cache" in known:
        arguments["use_cache"] = False
    return arguments


def _source_arguments(opened: Exportable, source: Tensor | None) -> dict[str, Any]:
    if source is None:
        raise TypeError("expected a source")
    match opened.source:
        case TextSource() if source.ndim == 2:
            return {"input_ids": source[:1], "token_type_ids": source[1:]}
        case PatchSource(patch=patch):
            return _patch_arguments(source, patch)
        case takes:
            return {_NAMES[type(takes)]: source[None]}


def _patch_arguments(pixels_CYX: Tensor, patch: int) -> dict[str, Tensor]:
    rows, columns = (side // patch for side in pixels_CYX.shape[1:])
    squares = pixels_CYX.reshape(-1, rows, patch, columns, patch).permute(1, 3, 2, 4, 0)
    return {
        "pixel_values": squares.reshape(1, rows * columns, -1),
        "pixel_attention_mask": torch.ones(1, rows * columns, dtype=torch.int64),
        "spatial_shapes": torch.tensor([[rows, columns]]),
    }


def _of_both(live: Any, arguments: dict[str, Any], images: Source | None) -> dict[str, Any]:
    """Arguments of a model that compares images with texts, which wants one of each."""
    if "pixel_values" in arguments:
        return arguments | {"input_ids": torch.tensor([[0, live.config.text_config.eos_token_id]])}
    match images:
        case ImageSource(channels=channels, height=height, width=width):
            return arguments | {"pixel_values": torch.zeros(1, channels, height, width)}
        case PatchSource(patch=patch, channels=channels):
            return arguments | _patch_arguments(torch.zeros(channels, patch, patch), patch)
        case _:
            raise TypeError("expected a model of images and texts")


def _accepted(live: Any) -> set[str]:
    """Names of the arguments of a forward; of its class in transformers too if it takes any."""
    kinds = inspect.signature(live.forward).parameters
    names = set(kinds)
    if any(kind.kind is inspect.Parameter.VAR_KEYWORD for kind in kinds.values()):
        names |= set(inspect.signature(published_class(live).forward).parameters)
    return names


def _chosen(output: Any, opened: Exportable, expected: Tensor) -> Tensor | None:
    """The output that a bundle returns, float32; None if there is none of its shape."""
    if isinstance(output, Mapping):
        values = [output[name] for name in (*_names_of(opened), *OUTPUTS) if name in output]
        if "start_logits" in output:
            values.append(torch.stack((output["start_logits"], output["end_logits"]), -1))
    else:
        values = list(output) if isinstance(output, tuple | list) else [output]
    tensors = [value[0] for value in values if isinstance(value, Tensor) and value.ndim]
    return next((value.float() for value in tensors if value.shape == expected.shape), None)


def _names_of(opened: Exportable) -> tuple[str, ...]:
    return ("text_embeds",) if isinstance(opened.source, TextSource) else ("image_embeds",)


def _is_published(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("transformers", "torch")
