"""Names of transformers that are not public exist, in the oldest and the newest version."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.export.source.transformers.tiny import tiny_model
from transformers import Cache, PreTrainedModel

from ortolan.export.source.transformers import private
from ortolan.export.source.transformers.cache import StateCache

REPOSITORY = Path(__file__).parents[4]

FOLDER = Path(str(private.__file__)).parent

CALLS: dict[str, tuple[object, ...]] = {
    "conversion_mapping:get_model_conversion_mapping": ("model",),
    "core_model_loading:WeightConverter.add_tensor": ("self", "name", "old", "pattern", "tensor"),
    "core_model_loading:WeightRenaming": ("source", "target"),
    "core_model_loading:dot_natural_key": ("name",),
    "core_model_loading:rename_source_key": ("name", [], [], "prefix", {}),
    "integrations.moe:ALL_EXPERTS_FUNCTIONS.register": ("name", print),
    "masking_utils:chunked_overlay": (8, "padding"),
    "modeling_utils:PreTrainedModel._can_set_experts_implementation": (),
    "modeling_utils:PreTrainedModel._from_config": ("config",),
    "modeling_utils:PreTrainedModel.initialize_weights": ("self",),
    "modeling_utils:PreTrainedModel.named_non_persistent_buffers": ("self",),
    "modeling_utils:PreTrainedModel.set_attn_implementation": ("self", "name"),
    "modeling_utils:PreTrainedModel.set_experts_implementation": ("self", "name"),
}
"""Arguments that are passed to functions of transformers."""

KEYWORDS = {
    "core_model_loading:WeightConverter.convert": {"layer_name", "model", "config"},
    "modeling_rope_utils:ROPE_INIT_FUNCTIONS.longrope": {"layer_type", "seq_len"},
}

RECURRENT = {
    "kimi_linear": private.DELTA_RULES[0],
    "mamba": private.STATE_SPACE_OF_CHANNELS,
    "mamba2": private.STATE_SPACE_OF_HEADS,
    "qwen3_next": private.DELTA_RULES[1],
}
"""A type whose file has each recurrence."""


def named(name: str) -> Any:
    """What transformers has under a name."""
    file, _, path = name.partition(":")
    value: Any = importlib.import_module(f"transformers.{file}")
    for part in path.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


def parameters(function: Callable[..., object]) -> set[str]:
    return set(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", CALLS)
def test_functions_take_the_arguments_that_are_passed(name: str) -> None:
    inspect.signature(named(name)).bind(*CALLS[name])


@pytest.mark.parametrize("name", KEYWORDS)
def test_functions_take_the_keywords_that_are_passed(name: str) -> None:
    assert parameters(named(name)) >= KEYWORDS[name]


def test_classes_of_models_have_the_attributes() -> None:
    assert hasattr(PreTrainedModel, "_keys_to_ignore_on_load_missing")
    assert hasattr(PreTrainedModel, "_keys_to_ignore_on_load_unexpected")


def test_experts_have_the_attributes() -> None:
    model = tiny_model("mixtral")
    experts = model.get_submodule("model.layers.0.mlp.experts")
    assert [name for name in private.EXPERTS if not hasattr(experts, name)] == []
    assert private.has_usual_gate(experts)
    assert private.tied_weights(model) == {}
    assert private.set_experts(model, "eager")
    assert not private.set_experts(tiny_model("llama"), "eager")


@pytest.mark.parametrize(("model_type", "name"), RECURRENT.items())
def test_files_of_models_have_the_recurrences(model_type: str, name: str) -> None:
    assert callable(getattr(sys.modules[type(tiny_model(model_type)).__module__], name))


def test_positions_are_counted_by_the_names() -> None:
    embeddings = tiny_model("roberta", is_decoder=True).get_submodule("roberta.embeddings")
    assert hasattr(embeddings, private.COUNTS_AFTER_PADDING)
    assert parameters(embeddings.forward) & private.CACHED_TOKENS


def test_causal_classes_are_found() -> None:
    assert private.causal_classes("llama") == ("LlamaForCausalLM",)
    assert private.causal_classes("t5") == ()


@pytest.mark.parametrize("name", [name for name in vars(StateCache) if not name.startswith("_")])
def test_a_cache_has_the_methods_that_are_replaced(name: str) -> None:
    needed = [
        parameter.name
        for parameter in inspect.signature(getattr(Cache, name)).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    inspect.signature(getattr(StateCache, name)).bind(*needed)


def test_only_one_file_imports_what_is_not_public() -> None:
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers."):
                assert file.name == "private.py" or node.module == "transformers.utils"


def versions() -> list[str]:
    """The oldest version of pyproject.toml, and "" for the newest one."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    extra = " ".join(project["project"]["optional-dependencies"]["export"])
    oldest = re.search(r"transformers>=([\d.]+)", extra)
    assert oldest is not None
    return [f"=={oldest[1]}", ""]


@pytest.mark.slow
@pytest.mark.parametrize("version", versions(), ids=["oldest", "newest"])
def test_a_version_has_the_names_and_computes_the_same(version: str, tmp_path: Path) -> None:
    # In a folder before all others; torch stays where it is.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path)]
    subprocess.run([*pip, f"transformers{version}"], check=True)
    tests = [Path(__file__), Path(__file__).with_name("test_adapter.py")]
    paths = (str(tmp_path), str(REPOSITORY / "src"), str(REPOSITORY))
    options = ("-q", "-n", "0", "-p", "no:cacheprovider")
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, tests)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        cwd=REPOSITORY,
        check=True,
    )
