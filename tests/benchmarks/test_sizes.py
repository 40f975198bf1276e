from pathlib import Path

import gguf
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sizes


def external(name: str, offset: int, length: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[length])
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": "weights.bin", "offset": str(offset), "length": str(length)}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.mark.parametrize(("head_at", "table_bytes"), [(0, 0), (200, 100)])
def test_a_tied_embedding_counts_as_read(tmp_path: Path, head_at: int, table_bytes: int) -> None:
    nodes = [
        helper.make_node("Gather", ["embedding", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "matrix"], ["y"]),
        helper.make_node("MatMul", ["y", "head"], ["logits"]),
    ]
    stored = [("embedding", 0), ("matrix", 100), ("head", head_at)]
    tensors = [external(name, offset, 100) for name, offset in stored]
    graph = helper.make_graph(nodes, "decoder", [], [], tensors)
    onnx.save(helper.make_model(graph), tmp_path / "decoder.onnx")
    (tmp_path / "weights.bin").write_bytes(bytes(300))
    (tmp_path / "openvino_tokenizer.bin").write_bytes(bytes(50))
    result = sizes.sizes_of(tmp_path)
    assert result == sizes.Sizes(file_bytes=300, read_bytes=300 - table_bytes, formats={})


def test_the_embedding_of_gguf_counts_as_read_without_a_head(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.add_tensor("output.weight", np.zeros((4, 8), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    result = sizes.sizes_of(tmp_path)
    assert result.formats == {"F32": 128, "F16": 64}
    assert result.file_bytes - result.read_bytes == 128


MODEL = """<net><layers>
  <layer id="0" type="Const"><data offset="0" size="100"/></layer>
  <layer id="1" type="Convert"/>
  <layer id="2" type="Gather"/>
  <layer id="3" type="Const"><data offset="100" size="60"/></layer>
  <layer id="4" type="MatMul"/>
</layers><edges>
  <edge from-layer="0" to-layer="1"/><edge from-layer="1" to-layer="2"/>
  <edge from-layer="3" to-layer="4"/>{tied}
</edges></net>"""


@pytest.mark.parametrize(
    ("tied", "table_bytes"), [("", 100), ('<edge from-layer="1" to-layer="4"/>', 0)]
)
def test_constants_of_openvino_are_followed_through_conversions(
    tmp_path: Path, tied: str, table_bytes: int
) -> None:
    (tmp_path / "openvino_model.xml").write_text(MODEL.format(tied=tied), encoding="utf-8")
    (tmp_path / "openvino_model.bin").write_bytes(bytes(160))
    assert sizes.sizes_of(tmp_path).read_bytes == 160 - table_bytes


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="contains none of"):
        sizes.sizes_of(tmp_path)
