"""Graphs found by fuzzing that crash a process, or exhaust its time or memory.

Each once passed every check, and must now be refused before onnxruntime sees it.

    python -m tests.hostile.known_crashes FOLDER     # uses each in a child, prints JSON
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from tests.hostile import bundles, child
from tests.hostile.mutants import mend, write
from tests.hostile.traps import join
from tests.hostile.usage import use

Change = Callable[[ModelProto], None]

GIGABYTES = 1 << 30
"""Number of float32 values in 4 GiB."""


def _operator(op_type: str, *inputs: NDArray[Any], domain: str = "", **attributes: Any) -> Change:

    def change(model: ModelProto) -> None:
        names = [f"crash.{place}" for place in range(len(inputs))]
        tensors = zip(inputs, names, strict=True)
        model.graph.initializer.extend(numpy_helper.from_array(*pair) for pair in tensors)
        _append(model, [helper.make_node(op_type, names, ["crash"], domain=domain, **attributes)])

    return change


def _without_end(op_type: str) -> Change:

    def change(model: ModelProto) -> None:
        values: list[NDArray[Any]] = [np.array([1, 2], np.uint8), np.array(1, np.float32)]
        tensors = [numpy_helper.from_array(v, f"crash.{i}") for i, v in enumerate(values)]
        model.graph.initializer.extend(tensors)
        inputs = ["crash.0", "crash.1", "", "crash.1"]
        node = helper.make_node(op_type, inputs, ["crash"], domain="com.microsoft")
        model.graph.node.append(node)
        model.graph.output.append(helper.make_tensor_value_info("crash", TensorProto.UINT8, None))

    return change


def _divided_by_cast(number: float, like: NDArray[Any]) -> Change:
    """Divide the smallest number by one that a cast turns into -1."""

    def change(model: ModelProto) -> None:
        smallest = np.array([np.iinfo(like.dtype).min], like.dtype)
        divisor = np.array([number], np.float32 if isinstance(number, float) else np.int64)
        for place, array in enumerate((smallest, divisor, like)):
            model.graph.initializer.append(numpy_helper.from_array(array, f"crash.{place}"))
        _append(
            model,
            [
                helper.make_node("CastLike", ["crash.1", "crash.2"], ["crash.cast"]),
                helper.make_node("Div", ["crash.0", "crash.cast"], ["crash"]),
            ],
        )

    return change


def _reversed(change: Change) -> Change:
    """Apply a change, and put each node before its inputs."""

    def changed(model: ModelProto) -> None:
        change(model)
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(reversed(nodes))

    return changed


def _readers(count: int) -> Change:

    def change(model: ModelProto) -> None:
        value = model.graph.node[0].output[0]
        _append(
            model, [helper.make_node("Identity", [value], [f"crash.{i}"]) for i in range(count)]
        )

    return change


def _doubled(times: int, *, of_constant: bool = True) -> Change:
    """Chain `Concat(x, x)` over a constant of 4 KiB, or over a value of a request."""

    def change(model: ModelProto) -> None:
        grain = numpy_helper.from_array(np.ones(1024, np.float32), "crash.0")
        model.graph.initializer.append(grain)
        first = "crash.0" if of_constant else model.graph.node[0].output[0]
        names = [first, *(f"crash.{i + 1}" for i in range(times))]
        nodes = [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in pairwise(names)]
        _append(model, nodes)

    return change


def _append(model: ModelProto, nodes: list[NodeProto]) -> None:
    model.graph.node.extend(nodes)
    join(model, nodes[-1].output[0])


def _smallest(kind: type[np.signedinteger[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.array([np.iinfo(kind).min], kind), np.array([-1], kind)


_ONE, _SHAPE = np.ones(1, np.float32), np.array([GIGABYTES], np.int64)
_AT = [np.array(number, np.int64) for number in (0, GIGABYTES, 1)]

CRASHES: dict[str, Change] = {
    "Div of the smallest int64 by -1": _operator("Div", *_smallest(np.int64)),
    "Div of the smallest int32 by -1": _operator("Div", *_smallest(np.int32)),
    "Mod of the smallest int64 by -1": _operator("Mod", *_smallest(np.int64)),
    "Mod of the smallest int32 by -1": _operator("Mod", *_smallest(np.int32)),
    "QLinearSigmoid without its last input": _without_end("QLinearSigmoid"),
    "QLinearLeakyRelu without its last input": _without_end("QLinearLeakyRelu"),
    "49,000 readers of one value": _readers(49_000),
    "18,000 readers of one value": _readers(18_000),
    "18 doublings": _doubled(18),
    "16 doublings": _doubled(16),
    "26 doublings in a request": _doubled(26, of_constant=False),
    "18 doublings in reverse order": _reversed(_doubled(18)),
    "Div by a number that a cast makes -1": _divided_by_cast(-1.5, np.array([1], np.int64)),
    "Div by a number truncated to -1": _divided_by_cast(2**32 - 1, np.array([1], np.int32)),
    "Expand to 4 GiB": _operator("Expand", _ONE, _SHAPE),
    "ConstantOfShape of 4 GiB": _operator("ConstantOfShape", _SHAPE),
    "Tile to 4 GiB": _operator("Tile", _ONE, _SHAPE),
    "Range to 8 GiB": _operator("Range", *_AT),
    "Pad to 4 GiB": _operator("Pad", _ONE, np.array([0, GIGABYTES])),
    "Resize to 4 GiB": _operator("Resize", _ONE, _ONE, np.array([GIGABYTES], np.float32)),
}
"""Changes to the graph of a decoder, by description."""


def crashing(original: bundles.Files, name: str) -> bundles.Files:
    """Return the files of a bundle with a change and correct hashes."""
    files = dict(original)
    model = ModelProto.FromString(files["decoder.onnx"])
    CRASHES[name](model)
    files["decoder.onnx"] = model.SerializeToString()
    mend(files)
    return files


def main(folder: Path) -> None:
    bundles.write(folder, ("decoder",))
    original = bundles.read(folder, "decoder")
    outcomes = {}
    with tempfile.TemporaryDirectory() as work:
        for number, name in enumerate(CRASHES):
            place = Path(work, f"{number}")
            write(crashing(original, name), place)
            outcomes[name] = asdict(
                child.run(
                    partial(use, place, Random(name), verifies=False),
                    Path(work, "log"),
                    usual_mb=200,
                )
            )
    print(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
