"""Operators that graphs are changed to: those that bundles have, and all others there are."""

from functools import cache
from random import Random

import onnx.defs
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[import-untyped]

__all__ = ["known_operators", "random_operator"]

_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft.nchwc", "x", "\ud7ff", "com.m")


@cache
def known_operators() -> tuple[tuple[str, str], ...]:
    """Domain and name of every operator that onnxruntime or ONNX has a schema of."""
    schemas = [
        *onnxruntime_pybind11_state.get_all_operator_schema(),
        *onnx.defs.get_all_schemas_with_history(),
    ]
    return tuple(sorted({(schema.domain, schema.name) for schema in schemas}))


def random_operator(random: Random) -> tuple[str, str]:
    """Domain and name of one, at times of none that there is."""
    domain, name = random.choice(known_operators())
    if random.random() < 0.05:
        domain = random.choice(_DOMAINS)
    if random.random() < 0.05:
        name = random.choice([name.lower(), f"{name}2", "", name[:-1]])
    return domain, name
