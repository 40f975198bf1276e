from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from tests.runtime import tiny_bundle
from tests.runtime.graph_changes import Change, add_node, changed, checked, error_of

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


def on(name: str, change: Callable[[TensorProto], object]) -> Change:
    return lambda model: change(initializer(model, name))


@pytest.mark.parametrize("number", [*range(1, 8), *range(9, 14), *range(16, 27)])
def test_element_types_and_their_sizes_agree_with_onnx(number: int) -> None:
    tensor = onnx.numpy_helper.from_array(
        np.zeros((3, 5), helper.tensor_dtype_to_np_dtype(number)), "weight"
    )
    assert tensor.data_type == number
    summary = onnx_graph.read(changed(lambda model: model.graph.initializer.append(tensor)))
    assert summary.ir_version == 10
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


@pytest.mark.parametrize(
    "location",
    [
        "",
        "other.bin",
        "decoder.onnx",
        "../" + tiny_bundle.BLOB_NAME,
        "./" + tiny_bundle.BLOB_NAME,
        "/etc/passwd",
        tiny_bundle.BLOB_NAME + "\x00",
        "*/_ORT_MEM_ADDR_/*",
    ],
)
def test_weights_in_a_file_outside_the_manifest_are_rejected(location: str) -> None:
    assert "weights file of the manifest" in error_of(changed(set_external("location", location)))


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("offset", str(len(tiny_bundle.BLOB) - 4 * 32 * 24 + 1), "bytes"),
        ("offset", str(10**17), "bytes"),
        ("offset", "-1", "decimal"),
        ("offset", "1e3", "decimal"),
        ("offset", "0x10", "decimal"),
        ("offset", " 1", "decimal"),
        ("offset", "1_0", "decimal"),
        ("offset", "٣", "decimal"),
        ("offset", "9" * 19, "decimal"),
        ("length", "3071", "3072 bytes"),
        ("length", "3073", "3072 bytes"),
        ("length", "0", "3072 bytes"),
        ("length", str(10**17), "3072 bytes"),
    ],
)
def test_weights_past_their_file_or_their_shape_are_rejected(
    key: str, value: str, part: str
) -> None:
    assert part in error_of(changed(set_external(key, value)))


def test_external_constant_of_a_node_is_checked_like_a_weight() -> None:
    def with_constant(location: str) -> bytes:
        tensor = tiny_bundle.external("value", (4,), location, 0, 16)
        return changed(add_node("Constant", value=tensor))

    assert checked(with_constant(tiny_bundle.BLOB_NAME)).external[-1].name == "more"
    assert "/etc/passwd" in error_of(with_constant("/etc/passwd"))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (on("head", lambda tensor: tensor.external_data.add(key="length", value="8")), "once"),
        (on("head", lambda tensor: tensor.external_data.add(key="prepacked_0")), "prepacked_0"),
        (on("head", lambda tensor: setattr(tensor, "raw_data", b"1234")), "both"),
        (on("head", lambda tensor: tensor.float_data.append(1.0)), "both"),
        (on("head", lambda tensor: tensor.ClearField("data_location")), "mixture"),
        (on("head", lambda tensor: tensor.dims.append(-1)), "-1"),
        (on("head", lambda tensor: tensor.dims.append(2**62)), f"{2**62}"),
        (on("head", lambda tensor: tensor.dims.extend([1] * 15)), "axes"),
        (on("head", lambda tensor: setattr(tensor, "data_type", TensorProto.STRING)), "type 8"),
        (on("head", lambda tensor: setattr(tensor, "data_type", TensorProto.UNDEFINED)), "type 0"),
        (on("head", lambda tensor: setattr(tensor, "data_type", -1)), "type -1"),
        (on("last_axis", lambda tensor: tensor.int64_data.append(0)), "1 values"),
        (on("last_axis", lambda tensor: tensor.ClearField("int64_data")), "8 values"),
        (on("last_axis", lambda tensor: tensor.int32_data.append(1)), "several"),
        (on("last_axis", lambda tensor: setattr(tensor, "raw_data", b"12345678")), "several"),
        (on("last_axis", lambda tensor: tensor.string_data.append(b"x")), "text"),
        (on("last_axis", lambda tensor: tensor.segment.SetInParent()), "segment"),
    ],
)
def test_tensors_with_ambiguous_bytes_are_rejected(change: Change, part: str) -> None:
    assert part in error_of(changed(change))


def test_unknown_place_of_data_is_rejected() -> None:
    def change(model: ModelProto) -> None:
        # onnx itself cannot set a place it does not know: field 14 as a number, 7
        initializer(model, "last_axis").MergeFromString(b"\x70\x07")

    assert "mixture" in error_of(changed(change))
