from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_bundle
from tests.runtime.graph_changes import Change, add_node, changed, checked

from ortolan.runtime.graph import rules as onnx_graph


def initializer(model: ModelProto, name: str) -> TensorProto:
    index = ["last_axis", *tiny_bundle.WEIGHTS].index(name)
    tensor: TensorProto = model.graph.initializer[index]
    return tensor


def set_external(key: str, value: str) -> Change:
    def change(model: ModelProto) -> None:
        for entry in initializer(model, "head").external_data:
            if entry.key == key:
                entry.value = value

    return change


@pytest.mark.parametrize("number", [*range(1, 8), *range(9, 14), *range(16, 27)])
def test_element_types_and_their_sizes_agree_with_onnx(number: int) -> None:
    tensor = onnx.numpy_helper.from_array(
        np.zeros((3, 5), helper.tensor_dtype_to_np_dtype(number)), "weight"
    )
    assert tensor.data_type == number
    onnx_graph.read(changed(lambda model: model.graph.initializer.append(tensor)))
    length = len(tensor.raw_data)
    outside = tiny_bundle.external("weight", (3, 5), tiny_bundle.BLOB_NAME, 0, length)
    outside.data_type = number
    data = changed(lambda model: model.graph.initializer.append(outside))
    listed = checked(data).external[-1]
    assert listed.length == length
    name = TensorProto.DataType.Name(number).lower()
    assert listed.dtype == {"float": "float32", "double": "float64"}.get(name, name)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    "dtype",
    [
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.UINT64,
        TensorProto.DOUBLE,
        TensorProto.INT4,
    ],
)
def test_constants_are_accepted_in_raw_and_typed_fields(dtype: int, raw: bool) -> None:
    values = np.arange(5).astype(helper.tensor_dtype_to_np_dtype(dtype))
    tensor = (
        onnx.numpy_helper.from_array(values)
        if raw
        else helper.make_tensor("value", dtype, [5], values.tolist())
    )
    data = changed(
        lambda model: model.graph.node.append(
            helper.make_node("Constant", [], ["constant"], value=tensor)
        )
    )
    assert checked(data).operators["ai.onnx::Constant"] == 1


def on(name: str, change: Callable[[TensorProto], object]) -> Change:
    return lambda model: change(initializer(model, name))


def head(field: str, value: object) -> Change:
    return on("head", lambda tensor: setattr(tensor, field, value))


LOCATIONS = [
    *("", "other.bin", "decoder.onnx", "/etc/passwd", "*/_ORT_MEM_ADDR_/*"),
    *(before + tiny_bundle.BLOB_NAME for before in ("../", "./")),
    tiny_bundle.BLOB_NAME + "\x00",
]

END = len(tiny_bundle.BLOB) - 4 * 32 * 24
"""Offset of the last weight."""

NUMBERS = [
    *(("offset", text) for text in (f"{END + 1}", f"{10**17}", "-1", "1e3", "0x10", " 1", "1_0")),
    *(("offset", text) for text in ("٣", "9" * 19)),
    *(("length", text) for text in ("3071", "3073", "0", f"{10**17}")),
]

REFUSED: dict[str, Change] = {
    **{f"location = {text!r}": set_external("location", text) for text in LOCATIONS},
    **{f"{key} = {text!r}": set_external(key, text) for key, text in NUMBERS},
    "a constant elsewhere": add_node(
        "Constant", value=tiny_bundle.external("value", (4,), "/etc/passwd", 0, 16)
    ),
    "length twice": on("head", lambda tensor: tensor.external_data.add(key="length", value="8")),
    "packed weights": on("head", lambda tensor: tensor.external_data.add(key="prepacked_0")),
    "raw bytes as well": head("raw_data", b"1234"),
    "floats as well": on("head", lambda tensor: tensor.float_data.append(1.0)),
    "no place": on("head", lambda tensor: tensor.ClearField("data_location")),
    # onnx itself cannot set a place it does not know: field 14 as a number, 7
    "another place": on("last_axis", lambda tensor: tensor.MergeFromString(b"\x70\x07")),
    "a negative size": on("head", lambda tensor: tensor.dims.append(-1)),
    "a size of 2^62": on("head", lambda tensor: tensor.dims.append(2**62)),
    "17 axes": on("head", lambda tensor: tensor.dims.extend([1] * 15)),
    "text": head("data_type", TensorProto.STRING),
    "type 0": head("data_type", TensorProto.UNDEFINED),
    "type -1": head("data_type", -1),
    "two values for one": on("last_axis", lambda tensor: tensor.int64_data.append(0)),
    "no value": on("last_axis", lambda tensor: tensor.ClearField("int64_data")),
    "values in two fields": on("last_axis", lambda tensor: tensor.int32_data.append(1)),
    "values and bytes": on("last_axis", lambda tensor: setattr(tensor, "raw_data", b"12345678")),
    "a text": on("last_axis", lambda tensor: tensor.string_data.append(b"x")),
    "a segment": on("last_axis", lambda tensor: tensor.segment.SetInParent()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_weights_elsewhere_and_ambiguous_bytes_are_rejected(
    name: str, snapshot: SnapshotAssertion
) -> None:
    text = refusal(lambda: checked(changed(REFUSED[name])))
    assert text.replace(tiny_bundle.BLOB_NAME, "BLOB") == snapshot


def test_an_external_constant_of_a_node_is_a_weight() -> None:
    tensor = tiny_bundle.external("value", (4,), tiny_bundle.BLOB_NAME, 0, 16)
    data = changed(add_node("Constant", value=tensor))
    assert checked(data).external[-1].name == "more"
