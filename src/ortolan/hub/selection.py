"""Which files of a repository are needed: pure functions of their names."""

import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from posixpath import basename, dirname, join
from typing import Any

from ortolan.hub import RepositoryError
from ortolan.hub.name import Name

MANIFEST, CERTIFICATE, SIGNATURE = "manifest.json", "certificate.json", "model.sig"

_DESCRIBING = (".json", ".jinja", ".txt", ".tsv")
"""Suffixes of configs, tokenizers, templates, processors and calibration texts."""

_MODULE = re.compile(r"\d+_\w+/config\.json|additional_chat_templates/[\w.-]+\.jinja", re.ASCII)
"""Files in folders that belong to a checkpoint: modules of sentence-transformers, templates."""

_MODULE_WEIGHTS = re.compile(r"\d+_\w+/(?:model\.safetensors|pytorch_model\.bin)", re.ASCII)

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_ADAPTER = ("adapter_model.safetensors", "adapter_model.bin")
"""In the order in which they are read; a pickle is fetched only where there is nothing else."""

_INDEX = ".index.json"

PARTS = ("vision", "sound", "text", "mtp")
"""Folders of a bundle that hold bundles; see `ortolan.runtime.bundle.parts`."""

_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")


def describing_files(names: Collection[str]) -> list[str]:
    """Files that say what a checkpoint is: everything that is read but weights."""
    return sorted(
        name
        for name in names
        if ("/" not in name and name.endswith(_DESCRIBING)) or _MODULE.fullmatch(name)
    )


def weight_files(names: Collection[str], folder: Path, name: Name) -> list[str]:
    """The weights of a checkpoint in Hugging Face format."""
    modules = {file for file in names if _MODULE_WEIGHTS.fullmatch(file)}
    modules -= {
        file
        for file in modules
        if file.endswith(".bin") and join(dirname(file), _WEIGHTS[0]) in modules
    }
    for single in _WEIGHTS:
        if single in names:
            return sorted({single, *modules})
        if single + _INDEX in names:
            index = folder / (single + _INDEX)
            refusal = f"{index}: not an index of weights. Ask its owner."
            shards = _names_in(index, lambda content: content["weight_map"].values(), refusal)
            if missing := sorted(shards - set(names)):
                raise RepositoryError(
                    f"{name}: {single}{_INDEX} names {missing[0]!r:.80}, which is not in the "
                    "repository. Ask its owner."
                )
            return sorted(shards | modules)
    raise RepositoryError(
        f"{name} has neither {_WEIGHTS[0]} nor {_WEIGHTS[1]}, whole or in shards"
        f"{_other_weights(names)}."
    )


def adapter_files(names: Collection[str], name: Name) -> list[str]:
    """The files of a PEFT adapter."""
    weights = next((file for file in _ADAPTER if file in names), None)
    if weights is None or "adapter_config.json" not in names:
        raise RepositoryError(
            f"{name} is not a PEFT adapter: it needs adapter_config.json and {_ADAPTER[0]}."
        )
    return ["adapter_config.json", weights]


def gguf_files(names: Collection[str], name: Name) -> list[str]:
    """The GGUF file of a name, or none if the repository has no GGUF file."""
    found = sorted(
        file for file in names if file.endswith(".gguf") and "mmproj" not in file.lower()
    )
    if not found:
        return []
    fitting = [file for file in found if name.part is None or _has_type(file, name.part)]
    if len(fitting) == 1 and not _SPLIT.search(_stem(fitting[0])):
        return fitting
    if fitting and all(_SPLIT.search(_stem(file)) for file in fitting):
        raise RepositoryError(
            f"{name} is split into {len(fitting)} GGUF files. Join them with llama-gguf-split, "
            "and pass the file."
        )
    types = ", ".join(_stem(file).rsplit("/", 1)[-1] for file in found)
    raise RepositoryError(
        f"{name}: {len(fitting) or 'no'} GGUF files fit. Name one as {name.repository}:TYPE, such "
        f"as Q4_K_M. There are {types:.400}."
    )


def bundle_folders(names: Collection[str]) -> list[str]:
    """The folders of a repository that hold a bundle; "" is the repository itself."""
    folders = [dirname(name) for name in names if basename(name) == MANIFEST]
    found = {folder for folder in folders if join(folder, CERTIFICATE) in names}
    parts = {join(folder, part) for folder in found for part in PARTS}
    return sorted(found - parts)


def bundle_folder(names: Collection[str], name: Name) -> str:
    """The folder of the bundle that a name means; "" is the repository itself."""
    folders = bundle_folders(names)
    wanted = name.part or ""
    if wanted in folders:
        return wanted
    if name.part is None and len(folders) == 1:
        return folders[0]
    if folders:
        what = "not a bundle" if name.part else f"{len(folders)} bundles"
        each = ", ".join(f"{name.repository}:{folder}".rstrip(":") for folder in folders)
        raise RepositoryError(f"{name} is {what}. Name one of {each:.400}.")
    if "config.json" in names or any(file.endswith(".gguf") for file in names):
        raise RepositoryError(
            f"{name} is a checkpoint, not a bundle. Talk to it with `ortolan chat {name}`, or make "
            f"a bundle of it with `ortolan export {name} BUNDLE`."
        )
    raise RepositoryError(f"{name} is not a bundle. It has no {MANIFEST}.")


def manifests(names: Collection[str], folder: str) -> list[str]:
    """The manifests of the bundle in a folder: its own, and those of the bundles in it."""
    inside = [join(folder, part) for part in PARTS]
    found = [join(place, MANIFEST) for place in (folder, *inside)]
    return [manifest for manifest in found if manifest in names]


def listed_files(names: Collection[str], folder: Path, manifest: str) -> list[str]:
    """The files of a bundle: its manifest, what that lists, and a signature."""
    listed = _names_in(
        folder / manifest,
        lambda content: [file["name"] for file in content["files"]],
        f"{manifest} is not the manifest of a bundle.",
    )
    own = {join(dirname(manifest), name) for name in (MANIFEST, SIGNATURE, *listed)}
    return sorted(own.intersection(names))


def _names_in(file: Path, read: Callable[[Any], Collection[Any]], refusal: str) -> set[str]:
    """Names of files that a JSON file lists."""
    try:
        return {f"{name}" for name in read(json.loads(file.read_bytes()))}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RepositoryError(refusal) from error


def _other_weights(names: Collection[str]) -> str:
    found = sorted(file for file in names if file.endswith((".safetensors", ".gguf", ".onnx")))
    return f"; there are {', '.join(found):.200}" if found else ""


def _has_type(file: str, part: str) -> bool:
    """Whether a GGUF file has a type in its name, between other characters than letters."""
    text = re.escape(part.lower())
    return re.search(rf"(?<![a-z0-9]){text}(?![a-z0-9_])", _stem(file).lower()) is not None


def _stem(file: str) -> str:
    return file.removesuffix(".gguf")
