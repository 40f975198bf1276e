"""Sentence-transformers folders: how a text becomes an embedding, and its maximum length.

Such a folder is a Hugging Face checkpoint with `modules.json`, which lists modules to run in order,
and a folder for each module that has a config. Versions 2 to 6 of the library name modules and
pooling modes differently.

Source: Reimers and Gurevych 2019; sentence-transformers 6.2, `load_config` of each module.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ortolan import files
from ortolan.modeling.checkpoint.json_file import read_json, read_json_value
from ortolan.modeling.config import Activation, AttentionPooling, EmbeddingHead, Pooling, Projection
from ortolan.modeling.errors import CheckpointError, ConfigError
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.lazy_tensor import LazyTensor

MODULES = "modules.json"

MAX_MODULES_BYTES = 1 << 16

MODULE_CONFIG = "config.json"

PROMPTS, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"

MAX_TOKENIZER_BYTES = 256 << 20

MAX_SIDE_BYTES = 1 << 20

BY_TASK = ("query_length", "document_length", "query_expansion")
"""Keys of a Transformer that let queries and documents have other limits."""

MAX_TOKENS = 1 << 24
"""Larger than any published context."""

PACKAGE = "sentence_transformers."
"""Only modules of this package are supported; others may compute anything."""

MODES: dict[str, Pooling] = {
    "cls_token": "first",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean_tokens": "weighted_mean",
    "lasttoken": "last",
}
"""Switches `pooling_mode_*` of a pooling module, in the order their vectors are concatenated."""

NAMED_MODES: dict[str, Pooling] = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
"""Names of the modes in version 6."""

ACTIVATIONS: dict[str, Activation | None] = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": None,
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
}
"""Activations of a dense module, by class name."""

DENSE_WEIGHTS = "model.safetensors"


class Module(NamedTuple):
    """An entry of `modules.json`: the class of a module, and its folder."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prefixes for texts, by name, and the name of the default one."""

    texts: dict[str, str] = field(default_factory=dict)
    default: str | None = None


def read_sentence_head(folder: Path, hidden_size: int) -> EmbeddingHead | None:
    """The head that `modules.json` describes; None without such a file."""
    modules = _modules(folder)
    if not modules:
        return None
    _check_transformer(folder)
    pooling = _pooling(_module_config(folder, modules[1].path))
    width, projections = hidden_size * len(pooling), []
    for module in modules:
        if module.kind == "Dense":
            projections.append(_projection(_module_config(folder, module.path), width))
            width = projections[-1].width
    return EmbeddingHead(
        pooling=pooling,
        projections=tuple(projections),
        normalised=modules[-1].kind == "Normalize",
    )


def sentence_files(folder: Path) -> list[Path]:
    """Files that describe how a text becomes an embedding."""
    if not (folder / MODULES).is_file():
        return []
    names = (MODULE_CONFIG, DENSE_WEIGHTS, "pytorch_model.bin")
    return [
        folder / MODULES,
        *sorted(file for name in names for file in folder.glob(f"[0-9]*_*/{name}")),
    ]


def max_tokens(folder: Path) -> int | None:
    """Maximum tokens of a text, also where transformers truncates; None if unspecified."""
    if (folder / MODULES).is_file():
        reader = _reader(folder, TRANSFORMER)
        called = reader.get("processing_kwargs", dict, {})
        by_task = [key for key in BY_TASK if reader.get(key, object, None) is not None]
        length = reader.size("max_seq_length", None)
        match called:
            case {"text": {"max_length": int(own), **others}, **more} if not others and not more:
                length = own
            case dict() if called or by_task:
                raise ConfigError(
                    f"{TRANSFORMER}: Ortolan reads one limit, max_seq_length, for all texts (got "
                    f"{', '.join(by_task) or f'processing_kwargs {called!r:.80}'}). This "
                    "checkpoint cannot be loaded faithfully."
                )
        if length is not None and length >= 1:
            return length
    # transformers writes 1e30 for "no limit".
    limit = _reader(folder, TOKENIZER_CONFIG).get("model_max_length", float, None)
    return int(limit) if limit is not None and 1 <= limit < MAX_TOKENS else None


def cross_encoder_values(folder: Path) -> dict[str, object]:
    """Settings of a cross-encoder from the files of sentence-transformers, as keys of a config."""
    reader = _reader(folder, PROMPTS)
    if reader.get("model_type", str, "") != "CrossEncoder":
        return {}
    default = reader.get("default_prompt_name", str, None)
    kinds = [kind for kind, _ in _listed(folder)]
    if default is not None or kinds not in ([], ["Transformer"]):
        raise ConfigError(
            f"{PROMPTS}, {MODULES}: a cross-encoder must be a Transformer without a default prompt "
            f"(got {kinds!r:.80} and {default!r:.40}). This checkpoint cannot be loaded faithfully."
        )
    _check_case(folder, _reader(folder, TRANSFORMER))
    function = reader.get("activation_fn", str, None)
    return {} if function is None else {"sentence_transformers": {"activation_fn": function}}


def read_prompts(folder: Path) -> Prompts:
    """Prompts of a sentence-transformers folder; none for other folders."""
    if not (folder / MODULES).is_file():
        return Prompts()
    reader = _reader(folder, PROMPTS)
    texts = reader.get("prompts", dict, {})
    default = reader.get("default_prompt_name", str, None)
    if not all(isinstance(text, str) for pair in texts.items() for text in pair) or (
        default is not None and default not in texts
    ):
        raise ConfigError(
            f"{PROMPTS}: prompts must be texts by name, and the default one of them (got "
            f"{texts!r:.80} and {default!r:.40})."
        )
    return Prompts(texts=texts, default=default)


def dense_folders(folder: Path) -> list[Path]:
    """Folders with the weights of the projections, in order."""
    return [folder / module.path for module in _modules(folder) if module.kind == "Dense"]


def with_projections(
    whole: Mapping[str, LazyTensor], dense: Sequence[Mapping[str, LazyTensor]]
) -> dict[str, LazyTensor]:
    """Tensors of a checkpoint, and those of its dense modules as `projections.0.weight`."""
    return dict(whole) | {
        f"projections.{number}.{name.removeprefix('linear.')}": tensor
        for number, tensors in enumerate(dense)
        for name, tensor in tensors.items()
    }


def _listed(folder: Path) -> list[tuple[str, object]]:
    """The kind and the path of every module, in order; empty without the file."""
    file = folder / MODULES
    value = read_json_value(file, MAX_MODULES_BYTES) if file.is_file() else []
    listed = value if isinstance(value, list) else [value]
    entries = [entry if isinstance(entry, dict) else {} for entry in listed]
    types = [(str(entry.get("type")), entry.get("path")) for entry in entries]
    return [
        (kind.rpartition(".")[2] if kind.startswith(PACKAGE) else kind, path)
        for kind, path in types
    ]


def _modules(folder: Path) -> list[Module]:
    """Modules in order, without Dropout; empty without the file."""
    file = folder / MODULES
    if not file.is_file():
        return []
    listed = _listed(folder)
    kinds = [kind for kind, _ in listed]
    shape = [kind for kind in kinds if kind not in ("Dense", "Dropout")]
    if (
        kinds[:2] != ["Transformer", "Pooling"]
        or shape not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
        or ("Normalize" in kinds and kinds[-1] != "Normalize")
    ):
        raise ConfigError(
            f"{MODULES}: Ortolan supports Transformer, Pooling, then optionally Dense and "
            f"Normalize (got {kinds!r:.120}). This checkpoint cannot be loaded faithfully."
        )
    return [
        Module(kind, _checked_path(file, path) if kind in ("Pooling", "Dense") else "")
        for kind, path in listed
        if kind != "Dropout"
    ]


def _checked_path(file: Path, path: object) -> str:
    if not isinstance(path, str) or path in ("", "..") or Path(path).name != path:
        raise CheckpointError(
            f"{file}: a module's path must be the name of a folder next to it (got {path!r:.80}). "
            "Do not trust this checkpoint."
        )
    return path


def _module_config(folder: Path, path: str) -> ConfigReader:
    """Config of one module."""
    config = folder / path / MODULE_CONFIG
    if not config.is_file():
        raise CheckpointError(
            f"{folder / MODULES}: {path}/{MODULE_CONFIG} does not exist. The download is "
            "incomplete."
        )
    return ConfigReader(read_json(config, MAX_MODULES_BYTES), f"{path}/{MODULE_CONFIG}")


def _reader(folder: Path, name: str) -> ConfigReader:
    """A file next to `modules.json`; empty if there is none."""
    file = folder / name
    return ConfigReader(read_json(file, MAX_SIDE_BYTES) if file.is_file() else {}, name)


def _check_transformer(folder: Path) -> None:
    """Raise ConfigError unless the last states of the unchanged text are pooled."""
    reader = _reader(folder, TRANSFORMER)
    task = reader.get("transformer_task", str, "feature-extraction")
    modes = reader.get("modality_config", dict, {})
    text = modes.get("text", {"method_output_name": "last_hidden_state"})
    output = text.get("method_output_name") if isinstance(text, dict) else text
    if task != "feature-extraction" or output != "last_hidden_state":
        raise ConfigError(
            f"{TRANSFORMER}: Ortolan supports feature-extraction of the last_hidden_state (got "
            f"{task!r:.40} of {output!r:.40}). This checkpoint cannot be loaded faithfully."
        )
    _check_case(folder, reader)


def _check_case(folder: Path, reader: ConfigReader) -> None:
    """Raise ConfigError if texts are lowercased by something else than the tokenizer."""
    if reader.get("do_lower_case", bool, False) and not _lowers(folder):
        raise ConfigError(
            f"{TRANSFORMER}: do_lower_case is true, but the normalizer of {TOKENIZER} keeps case. "
            "Add Lowercase to the normalizer."
        )


def _lowers(folder: Path) -> bool:
    """Whether the tokenizer lowercases text."""
    file = folder / TOKENIZER
    normalizer = read_json(file, MAX_TOKENIZER_BYTES).get("normalizer") if file.is_file() else None
    steps = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    return any(
        step.get("lowercase") is True or step.get("type") == "Lowercase"
        for step in steps
        if isinstance(step, dict)
    )


def _pooling(reader: ConfigReader) -> tuple[Pooling, ...]:
    """Pooling modes, in the order their vectors are concatenated."""
    # Excluding a prompt from pooling would need its length after tokenization.
    reader.require("include_prompt")
    reader.skip("word_embedding_dimension", "embedding_dimension")
    switches = {f"pooling_mode_{name}": mode for name, mode in MODES.items()}
    on = [mode for key, mode in switches.items() if reader.get(key, bool, False)]
    if "pooling_mode" in reader:
        is_list = reader.is_list("pooling_mode")
        names = reader.get("pooling_mode", list) if is_list else [reader.get("pooling_mode", str)]
        on = [NAMED_MODES[name] for name in names if name in NAMED_MODES]
        on = on if len(on) == len(names) else []
    reader.finish()
    if not on:
        raise ConfigError(
            f"{reader.name}: pooling must be by {', '.join(NAMED_MODES)}. This checkpoint cannot "
            "be loaded faithfully."
        )
    return tuple(on)


def _projection(reader: ConfigReader, width: int) -> Projection:
    """A dense module for vectors of `width` channels."""
    reader.refuse("use_residual")
    name = reader.get("activation_function", str, next(iter(ACTIVATIONS)))
    vectors = {
        reader.get(f"module_{end}_name", str, "sentence_embedding") for end in ("input", "output")
    }
    inputs = reader.size("in_features")
    if name not in ACTIVATIONS or vectors != {"sentence_embedding"} or inputs != width:
        raise ConfigError(
            f"{reader.name}: a dense module must map the {width} channels of the embedding, with "
            f"an activation of {', '.join(ACTIVATIONS)} (got {inputs} of {sorted(vectors)!r:.40} "
            f"and {name!r:.60}). This checkpoint cannot be loaded faithfully."
        )
    projection = Projection(
        width=reader.size("out_features"),
        bias=reader.get("bias", bool, True),
        activation=ACTIVATIONS[name],
    )
    reader.finish()
    return projection


def write_sentence_head(folder: Path, head: EmbeddingHead, width: int) -> list[Path]:
    """Write `modules.json` and the configs of the modules."""
    if isinstance(head.pooling, AttentionPooling) or head.end is not None:
        raise ConfigError(
            "head: this format pools whole texts, by fixed rules. Choose another pooling."
        )
    ordered = [mode for mode in MODES.values() if mode in head.pooling]
    if ordered != list(head.pooling):
        raise ConfigError(
            f"head.pooling must be in the order {', '.join(ordered)} (got "
            f"{', '.join(head.pooling)})."
        )
    kinds = ["Transformer", "Pooling", *["Dense"] * len(head.projections)]
    kinds += ["Normalize"] if head.normalised else []
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    switches = {f"pooling_mode_{name}": mode in head.pooling for name, mode in MODES.items()}
    _write_json(folder / paths[1], {"word_embedding_dimension": width, **switches})
    width *= len(head.pooling)
    dense = [folder / path for path, kind in zip(paths, kinds, strict=True) if kind == "Dense"]
    classes = {activation: name for name, activation in ACTIVATIONS.items()}
    for place, projection in zip(dense, head.projections, strict=True):
        config = {"in_features": width, "out_features": projection.width, "bias": projection.bias}
        _write_json(place, config | {"activation_function": classes[projection.activation]})
        width = projection.width
    files.write(folder / MODULES, json.dumps(modules, indent=2) + "\n")
    return dense


def _write_json(folder: Path, value: object) -> None:
    files.make_folders(folder)
    files.write(folder / MODULE_CONFIG, json.dumps(value, indent=2) + "\n")
