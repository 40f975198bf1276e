"""Graphs found by fuzzing that crash a process, or exhaust its time or memory.

Each must be refused: before onnxruntime sees it, or by the first load in a subprocess.

    python -m tests.hostile.known_crashes FOLDER     # uses each in a child, prints JSON
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper
from tests.hostile import bundles, child
from tests.hostile.mutants import mend, write
from tests.hostile.traps import ONE, Array, Trap, constant, grown, join, operator
from tests.hostile.usage import use

GIGABYTES = 1 << 30
"""Number of float32 values in 4 GiB."""

INT64, INT32 = (np.array([np.iinfo(kind).min], kind) for kind in (np.int64, np.int32))

BYTES = np.array([1, 2], np.uint8)

WITHOUT_END = ("QLinearSigmoid", "QLinearLeakyRelu")
"""Operators of onnxruntime that read an input which may be left out."""


def _divided_by_cast(number: float, like: Array) -> Trap:
    """Divide the smallest number by one that a cast turns into -1."""

    def nodes(model: ModelProto) -> list[NodeProto]:
        smallest = constant(model, np.array([np.iinfo(like.dtype).min], like.dtype))
        divisor = np.array([number], np.float32 if isinstance(number, float) else np.int64)
        inputs = [constant(model, divisor), constant(model, like)]
        return [
            helper.make_node("CastLike", inputs, ["trap.cast"]),
            helper.make_node("Div", [smallest, "trap.cast"], ["trap"]),
        ]

    return nodes


def _without_end(op_type: str) -> Trap:
    def nodes(model: ModelProto) -> list[NodeProto]:
        values, scale = constant(model, BYTES), constant(model, ONE[0])
        inputs = [values, scale, "", scale]
        model.graph.output.append(helper.make_tensor_value_info("trap", TensorProto.UINT8, None))
        return [helper.make_node(op_type, inputs, ["trap"], domain="com.microsoft")]

    return nodes


CRASHES: dict[str, Trap] = {
    "Div of the smallest int64 by -1": operator("Div", INT64, np.array([-1])),
    "Div of the smallest int32 by -1": operator("Div", INT32, np.array([-1], np.int32)),
    "Mod of the smallest int64 by -1": operator("Mod", INT64, np.array([-1])),
    "Mod of the smallest int32 by -1": operator("Mod", INT32, np.array([-1], np.int32)),
    **{f"{name} without its last input": _without_end(name) for name in WITHOUT_END},
    "Div by a number that a cast makes -1": _divided_by_cast(-1.5, np.array([1])),
    "Div by a number truncated to -1": _divided_by_cast(2**32 - 1, np.array([1], np.int32)),
    **{f"{name} of 4 GiB": grown(name, GIGABYTES) for name in ("Expand", "Tile", "Range")},
    **{f"{name} of 4 GiB": grown(name, GIGABYTES) for name in ("ConstantOfShape", "Pad", "Resize")},
}
"""Nodes for the graph of a decoder, by description."""


def crashing(original: bundles.Files, name: str) -> bundles.Files:
    """Return the files of a bundle with more nodes and correct hashes."""
    files = dict(original)
    model = ModelProto.FromString(files["decoder.onnx"])
    nodes = CRASHES[name](model)
    model.graph.node.extend(nodes)
    if name.partition(" ")[0] not in WITHOUT_END:
        join(model, nodes[-1].output[0])
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
            usage = partial(use, place, Random(name), verifies=False)
            outcomes[name] = asdict(child.run(usage, Path(work, "log"), usual_mb=200))
    print(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
