"""Writes a bundle as a folder that onnxruntime-genai loads.

    model.onnx           the decoder, with an attention mask in place of lengths
    weights-*.bin        as in the bundle
    genai_config.json    names, sizes, token ids and recommended sampling
    tokenizer.json, ...  as in the bundle

The bundle is the one that was proved. `convert` compares the new graph with it, bit for bit.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import onnx
import onnx_ir as ir

from ortolan import files
from ortolan.export.errors import LayoutError, OutputError
from ortolan.export.layouts.comparison import compare
from ortolan.export.options import Device, ExportOptions
from ortolan.export.passes.take_mask import MASK, take_mask
from ortolan.export.passes.window_states import make_whole
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.interface import LOGITS, PAST, PRESENT, state_names
from ortolan.runtime.bundle.kinds import DECODER, ON_DEMAND
from ortolan.runtime.bundle.source import IDS
from ortolan.runtime.generation.recommended import recommendation
from ortolan.staging import Place, staged

MODEL, CONFIG = "model.onnx", "genai_config.json"

GROUP_QUERY = "com.microsoft::GroupQueryAttention"

_COPIED = ("tokenizer.json", "chat_template.jinja", "generation_config.json")
"""Files that both layouts have; `tokenizer_config.json` is written anew."""

_TOKENIZER_CONFIG = "tokenizer_config.json"

_NAMES, _WEIGHTS = {MODEL, CONFIG, _TOKENIZER_CONFIG, *_COPIED}, "weights-*.bin"
"""Names of the files of this layout, and the pattern of its weight files' names."""

_DISABLED = "optimization.disable_specified_optimizers"
"""Session option of onnxruntime that lists optimizers."""


@contextlib.contextmanager
def through_bundle(
    out: str | Path, *, device: Device, options: ExportOptions, force: bool = False
) -> Iterator[Path]:
    """Yield where to export a bundle, which is converted to `out` when the block succeeds."""
    _check_options(device, options)
    target = files.followed(Path(out).absolute())
    _check_target(target, force)
    files.make_folders(target.parent)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        place = Path(folder) / "bundle"
        yield place
        convert(open_bundle(place), target, force=force)


def convert(bundle: Bundle, out: str | Path, *, force: bool = False) -> Path:
    """Write a bundle in the layout of onnxruntime-genai."""
    check_convertible(bundle)
    target = files.followed(Path(out).absolute())
    _check_target(target, force)
    try:
        files.make_folders(target.parent)
        with staged(Place(target, index=CONFIG)) as folder:
            write_folder(bundle, folder)
            _check_target(target, force)
    except OSError as error:
        raise OutputError(f"Cannot write to {target}: {files.described(error)}") from error
    return target


def write_folder(bundle: Bundle, folder: Path) -> None:
    """Write all files to an empty folder, and compare the graph with the bundle's."""
    for name in bundle.manifest.weights:
        files.copy(bundle.file(name), folder / name)
    present = {file.name for file in bundle.manifest.files}
    for name in _COPIED:
        if name in present:
            files.write(folder / name, bundle.read(name))
    settings = _tokenizer_config(bundle, present)
    files.write(folder / _TOKENIZER_CONFIG, _json(settings))
    graph = with_mask(bundle.read(bundle.manifest.graphs[DECODER].file))
    compare(bundle, graph)
    files.write(folder / MODEL, graph)
    files.write(folder / CONFIG, _json(_config(bundle)))


def with_mask(graph: bytes) -> bytes:
    """A serialized decoder graph that takes an attention mask."""
    model = ir.from_proto(onnx.ModelProto.FromString(graph))
    make_whole(model)
    take_mask(model.graph)
    data: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return data


def check_convertible(bundle: Bundle) -> None:
    """Reject a bundle that onnxruntime-genai cannot run, or would run differently."""
    manifest = bundle.manifest
    if manifest.features is not None:
        raise _rejected("a decoder of text", "one that reads images", "It has no such layout.")
    if manifest.kind != "decoder":
        raise _rejected("a decoder", manifest.kind, "Other kinds have no such layout.")
    split = set(manifest.graphs) - ON_DEMAND != {DECODER}
    _check_choices(manifest.devices[0], manifest.attention, "split" if split else "unified")
    _check_states(bundle)
    if manifest.hidden_states is not None:
        raise _rejected("a decoder without a head", "one with a head", "Export without --mtp.")
    tokens = manifest.tokens
    limited = [
        name
        for name in ("suppressed", "suppressed_first", "forced_first", "forced_last")
        if getattr(tokens, name)
    ]
    if limited:
        raise _rejected(
            "no restricted tokens", f"{', '.join(limited)}", "onnxruntime-genai would ignore them."
        )
    if not any(file.name == "tokenizer.json" for file in manifest.files):
        raise _rejected("a tokenizer", "none", "Export with --tokenizer.")


def _check_options(device: Device, options: ExportOptions) -> None:
    _check_choices(device, options.attention, options.graphs)
    if options.cache != "float":
        raise _rejected("a float KV cache", options.cache, "Export with --cache float.")
    if options.mtp:
        raise _rejected("a decoder without a head", "--mtp", "Leave out --mtp.")


def _check_choices(device: str, attention: str, graphs: str) -> None:
    for name, expected, got in (
        ("device", "cpu", device),
        ("attention", "fused", attention),
        ("graphs", "unified", graphs),
    ):
        if got != expected:
            raise _rejected(f"{name} {expected!r}", repr(got), f"Export with --{name} {expected}.")


def _check_states(bundle: Bundle) -> None:
    manifest = bundle.manifest
    replaced = [state.name for state in manifest.states if state.update != "append"]
    if replaced:
        raise _rejected(
            "a KV cache only", f"the state {replaced[0]!r}", "Its layout has no recurrent states."
        )
    layers = len(manifest.states) // 2
    attention = bundle.graphs[DECODER].attention
    others = sorted({node.operator for node in attention} - {GROUP_QUERY})
    if others or len(attention) != layers:
        got = ", ".join(others) or f"{len(attention)} of {layers} layers"
        raise _rejected(
            "GroupQueryAttention in every layer", got, "Other attention cannot be padded."
        )
    names = [state.input for state in manifest.states]
    shapes = {state.shape for state in manifest.states}
    if names != state_names(PAST, layers) or len(shapes) != 1:
        raise _rejected(
            "keys and values of one size in every layer",
            f"{len(shapes)} sizes",
            "genai_config.json has one size.",
        )
    if any(state.dtype not in ("float32", "float16") for state in manifest.states):
        raise _rejected("a float KV cache", manifest.states[0].dtype, "Export with --cache float.")


def _rejected(expected: str, got: str, advice: str) -> LayoutError:
    return LayoutError(f"onnxruntime-genai needs {expected} (got {got}). {advice}")


def _config(bundle: Bundle) -> dict[str, Any]:
    """Contents of genai_config.json."""
    manifest = bundle.manifest
    _, kv_heads, _, head_size = manifest.states[0].shape
    attention = bundle.graphs[DECODER].attention[0].attributes
    heads = cast("int", attention["num_heads"])
    tokens = manifest.tokens
    decoder: dict[str, Any] = {
        "session_options": _session_options(bundle),
        "filename": MODEL,
        "head_size": head_size,
        "hidden_size": heads * cast("int", head_size),
        "inputs": {
            "input_ids": IDS,
            "attention_mask": MASK,
            "past_key_names": f"{PAST}.%d.key",
            "past_value_names": f"{PAST}.%d.value",
        },
        "outputs": {
            "logits": LOGITS,
            "present_key_names": f"{PRESENT}.%d.key",
            "present_value_names": f"{PRESENT}.%d.value",
        },
        "num_attention_heads": heads,
        "num_hidden_layers": len(manifest.states) // 2,
        "num_key_value_heads": kv_heads,
    }
    model: dict[str, Any] = {
        # The name for a decoder of any family.
        "type": "decoder",
        "context_length": manifest.context_length,
        "vocab_size": manifest.vocab_size,
        "eos_token_id": list(tokens.eos),
        "pad_token_id": tokens.pad if tokens.pad is not None else next(iter(tokens.eos), 0),
        "decoder": decoder,
    }
    if tokens.bos is not None:
        model["bos_token_id"] = tokens.bos
    return {"model": model, "search": _search(bundle)}


def _session_options(bundle: Bundle) -> dict[str, Any]:
    options: dict[str, Any] = {"log_id": "onnxruntime-genai", "provider_options": []}
    if disabled := bundle.manifest.host.session.disabled_optimizers:
        options[_DISABLED] = ";".join(disabled)
    return options


def _search(bundle: Bundle) -> dict[str, Any]:
    """Defaults of generation: greedy, or what the model recommends."""
    sampling = recommendation(bundle).sampling
    search: dict[str, Any] = {
        "do_sample": sampling.temperature > 0,
        "max_length": bundle.manifest.context_length,
        "past_present_share_buffer": True,
        "num_beams": 1,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if sampling.temperature > 0:
        search |= {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }
    return search


def _tokenizer_config(bundle: Bundle, present: set[str]) -> Mapping[str, Any]:
    """The bundle's tokenizer_config.json, with a class that onnxruntime-genai knows."""
    name = _TOKENIZER_CONFIG
    settings = json.loads(bundle.read(name)) if name in present else {}
    return {**settings, "tokenizer_class": "PreTrainedTokenizerFast"}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _check_target(target: Path, force: bool) -> None:
    """Raise OutputError unless the target is free, or of this layout and `force` is set."""
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"{target} is a file. Choose a folder.")
    names = {path.name for path in target.iterdir()}
    if names and CONFIG not in names:
        raise OutputError(f"{target} is a folder without {CONFIG}. Choose an empty folder.")
    others = sorted(name for name in names - _NAMES if not fnmatchcase(name, _WEIGHTS))
    if others:
        raise OutputError(
            f"{target} has other files ({', '.join(others[:3])}). Move them, or choose an empty "
            "folder."
        )
    if names and not force:
        raise OutputError(f"{target} exists. Pass --force to replace it.")
