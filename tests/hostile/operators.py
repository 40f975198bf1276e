"""Operators for graph changes: all with a schema in onnxruntime or ONNX, and unknown ones."""

from functools import cache
from random import Random

import onnx.defs

_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft.nchwc", "x", "\ud7ff", "com.m")


@cache
def attribute_names() -> dict[tuple[str, str], list[str]]:
    """Return the attributes of every operator by domain and name."""
    # late: the runtime must be imported first
    from onnxruntime.capi import (  # type: ignore[import-untyped]
        onnxruntime_pybind11_state as library,
    )

    schemas = [*onnx.defs.get_all_schemas_with_history(), *library.get_all_operator_schema()]
    return {(schema.domain, schema.name): list(schema.attributes) for schema in schemas}


@cache
def known_operators() -> tuple[tuple[str, str], ...]:
    return tuple(sorted(attribute_names()))


def random_operator(random: Random) -> tuple[str, str]:
    """Return a domain and a name, sometimes of an operator that does not exist."""
    domain, name = random.choice(known_operators())
    if random.random() < 0.05:
        domain = random.choice(_DOMAINS)
    if random.random() < 0.05:
        name = random.choice([name.lower(), f"{name}2", "", name[:-1]])
    return domain, name
