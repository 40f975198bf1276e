"""Imported folders of onnxruntime-genai (`tests/hosts/test_genai.py` has real ones)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import torch
from tests.cli.conftest import run_here
from tests.export import tiny_models
from tests.export.layouts.built_folder import module, settings, write_built

from ortolan.export.errors import LayoutError, OutputError, ParityError
from ortolan.export.layouts.from_genai import UNVERIFIED, import_genai
from ortolan.export.layouts.genai import convert
from ortolan.export.weights import blob
from ortolan.runtime import GraphError, load, verify
from ortolan.runtime.errors import CertificateError

IDS = [5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write_checkpoint(tmp_path_factory.mktemp("source") / "c", module())


@pytest.fixture
def built(tmp_path: Path) -> Path:
    return write_built(tmp_path / "built", module())


def change_graph(folder: Path, change: Callable[[Any], object]) -> None:
    path = folder / "model.onnx"
    model = onnx.load(str(path), load_external_data=False)
    change(model.graph)
    onnx.save(model, str(path))


def greedy(count: int) -> list[int]:
    """Tokens after IDS, from PyTorch."""
    ids, model = list(IDS), module()
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(IDS) :]


@pytest.mark.parametrize("has_zeros", [False, True], ids=["symmetric", "zeros"])
@pytest.mark.parametrize(
    ("bits", "precision", "largest"),
    [
        pytest.param(None, "fp32", 1e-9, marks=pytest.mark.slow),
        pytest.param(8, "int8", 1e-2, marks=pytest.mark.slow),
        (4, "int4", 0.5),
    ],
)
def test_an_import_with_its_checkpoint_is_proved(
    checkpoint: Path,
    tmp_path: Path,
    bits: int | None,
    precision: str,
    largest: float,
    has_zeros: bool,
) -> None:
    built = write_built(tmp_path / "built", module(), bits=bits, has_zeros=has_zeros)
    bundle = import_genai(built, tmp_path / "bundle", checkpoint=checkpoint, allow_poor=True)
    manifest = bundle.manifest
    assert (manifest.precision, manifest.unverified) == (precision, None)
    assert manifest.quality is not None
    assert manifest.quality.mean_kl is not None
    assert manifest.quality.mean_kl < largest
    report = verify(bundle.path, isolate=False)
    assert report.verdict == "PASS"
    assert report.weights is not None
    # five in each block, the head, and a look-up of codes
    assert report.weights.products == 2 * 5 + (1 if bits is None else 2)
    forms = {(weight.bits, weight.symmetric, weight.method) for weight in manifest.quantized}
    assert forms == ({(bits, not has_zeros, "kept")} if bits else set())


def test_an_import_generates_what_pytorch_does(built: Path, tmp_path: Path) -> None:
    bundle = import_genai(built, tmp_path / "bundle")
    model = load(bundle.path, isolate=False)
    completion = model.generate(IDS, max_new_tokens=12, ignore_eos=True)
    assert list(completion.tokens) == greedy(12)
    assert bundle.manifest.tokens.eos == (2,)


def test_the_head_and_the_embedding_share_their_bytes(tmp_path: Path) -> None:
    for bits, name in ((None, "floats"), (4, "codes")):
        built = write_built(tmp_path / f"built-{name}", module(), bits=bits)
        bundle = import_genai(built, tmp_path / name)
        stored = sum(
            file.size for file in bundle.manifest.files if file.name in bundle.manifest.weights
        )
        before = (built / "model.onnx.data").stat().st_size
        pages = 4096 * len(bundle.graphs["decoder"].external)
        assert stored < before + pages, name


def test_imported_codes_make_no_file_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = write_built(tmp_path / "built", module(), bits=4)
    monkeypatch.setattr(blob, "MOST_BYTES", 4096 + 1)
    bundle = import_genai(built, tmp_path / "bundle")
    files = [place[0] for place in bundle.graphs["decoder"].places]
    assert len(set(files)) == len(files) > 20


def test_an_import_without_a_checkpoint_is_not_verified(built: Path, tmp_path: Path) -> None:
    bundle = import_genai(built, tmp_path / "bundle")
    assert bundle.manifest.certificate is None
    assert bundle.manifest.unverified == UNVERIFIED
    assert not (tmp_path / "bundle" / "certificate.json").exists()
    with pytest.raises(CertificateError, match="no certificate: imported from onnxruntime-genai"):
        verify(bundle.path, isolate=False)


def test_another_checkpoint_is_noticed(built: Path, tmp_path: Path) -> None:
    other = module()
    with torch.no_grad():
        next(iter(other.parameters())).mul_(1.01)
    source = tiny_models.write_checkpoint(tmp_path / "other", other)
    with pytest.raises(ParityError, match="disagrees with PyTorch"):
        import_genai(built, tmp_path / "bundle", checkpoint=source)
    assert not (tmp_path / "bundle").exists()
    small = tiny_models.write_checkpoint(
        tmp_path / "small", tiny_models.decoder(tiny_models.llama(layers=1))
    )
    with pytest.raises(LayoutError, match=r"number of states 4 .* got 2"):
        import_genai(built, tmp_path / "bundle", checkpoint=small)


def test_another_tokenizer_is_noticed(built: Path, checkpoint: Path, tmp_path: Path) -> None:
    path = built / "tokenizer.json"
    document = json.loads(path.read_text())
    vocab = document["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(document))
    with pytest.raises(ParityError):
        import_genai(built, tmp_path / "bundle", checkpoint=checkpoint)


def test_a_graph_with_other_forms_is_rejected(built: Path, tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        node = next(node for node in graph.node if node.op_type == "Sigmoid")
        node.op_type = "Sinh"

    change_graph(built, change)
    with pytest.raises(GraphError, match="Sinh"):
        import_genai(built, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def read_mask(graph: Any) -> None:
    """Let the head read the mask."""
    graph.node.append(
        onnx.helper.make_node("Cast", ["attention_mask"], ["m"], to=onnx.TensorProto.FLOAT)
    )
    graph.node.append(onnx.helper.make_node("ReduceSum", ["m"], ["sum"], keepdims=0))
    head = next(node for node in graph.node if node.output[0] == "logits")
    graph.node.remove(head)
    head.output[0] = "unscaled"
    graph.node.append(head)
    graph.node.append(onnx.helper.make_node("Mul", ["unscaled", "sum"], ["logits"]))


def add_positions(graph: Any) -> None:
    dims = ("batch_size", "sequence_length")
    graph.input.append(
        onnx.helper.make_tensor_value_info("position_ids", onnx.TensorProto.INT64, dims)
    )
    graph.node.insert(0, onnx.helper.make_node("Neg", ["position_ids"], ["unused"]))


def other_attention(graph: Any) -> None:
    node = next(node for node in graph.node if node.op_type == "GroupQueryAttention")
    node.op_type = "MultiHeadAttention"


def no_product(graph: Any) -> None:
    head = next(node for node in graph.node if node.output[0] == "logits")
    head.op_type = "Einsum"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (read_mask, "expected only attention to read 'attention_mask', got Cast"),
        (add_positions, "'position_ids', which Neg reads"),
        (other_attention, "GroupQueryAttention in every layer, got MultiHeadAttention"),
        (no_product, "logits of a matrix product"),
        (lambda graph: graph.input.pop(), "expected the input 'past_key_values.1.value'"),
        (lambda graph: graph.output.pop(), "a difference in present.1.value"),
    ],
)
def test_other_decoders_are_rejected(
    built: Path, tmp_path: Path, change: Callable[[Any], object], message: str
) -> None:
    change_graph(built, change)
    with pytest.raises(LayoutError, match=message):
        import_genai(built, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.update(encoder={}), "also has 'encoder'"),
        (lambda model: model.update(vision={}), "also has 'vision'"),
        (lambda model: model["decoder"].update(pipeline=[{}]), "pipeline"),
        (lambda model: model.pop("vocab_size"), "vocab_size"),
        (lambda model: model["decoder"].update(filename="../model.onnx"), "filename"),
        (lambda model: model["decoder"].update(filename="gone.onnx"), "has no gone.onnx"),
    ],
)
def test_other_settings_are_rejected(
    built: Path, tmp_path: Path, change: Callable[[Any], object], message: str
) -> None:
    document = settings(2)
    change(document["model"])
    (built / "genai_config.json").write_text(json.dumps(document))
    with pytest.raises(LayoutError, match=message):
        import_genai(built, tmp_path / "bundle")


def test_damaged_files_are_rejected(built: Path, tmp_path: Path) -> None:
    (built / "model.onnx").write_bytes(b"\x08\xff")
    with pytest.raises(LayoutError, match="is not an ONNX graph"):
        import_genai(built, tmp_path / "bundle")
    (built / "genai_config.json").write_text("{")
    with pytest.raises(LayoutError, match="does not describe a decoder"):
        import_genai(built, tmp_path / "bundle")
    (built / "genai_config.json").unlink()
    with pytest.raises(LayoutError, match=r"has no genai_config\.json"):
        import_genai(built, tmp_path / "bundle")


def test_blocks_that_bundles_do_not_have_are_rejected(tmp_path: Path) -> None:
    built = write_built(tmp_path / "built", module(), bits=4)

    def change(graph: Any) -> None:
        node = next(node for node in graph.node if node.op_type == "MatMulNBits")
        next(a for a in node.attribute if a.name == "block_size").i = 16

    change_graph(built, change)
    with pytest.raises(LayoutError, match="got 4 bits in groups of 16"):
        import_genai(built, tmp_path / "bundle")


def test_sizes_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    built = write_built(tmp_path / "built", module(), bits=4)

    def change(graph: Any) -> None:
        node = next(node for node in graph.node if node.op_type == "Reshape")
        sizes = next(n for n in graph.node if n.output[0] == node.input[1])
        tensor = onnx.numpy_helper.from_array(np.array([1, 7]), "sizes")
        sizes.attribute[0].t.CopyFrom(tensor)

    change_graph(built, change)
    with pytest.raises(LayoutError, match="expected stored low-bit weights"):
        import_genai(built, tmp_path / "bundle")


def test_an_existing_bundle_is_replaced_only_by_force(built: Path, tmp_path: Path) -> None:
    bundle = import_genai(built, tmp_path / "bundle")
    with pytest.raises(OutputError, match="--force"):
        import_genai(built, bundle.path)
    import_genai(built, bundle.path, force=True)


def test_names_in_the_settings_are_followed(built: Path, tmp_path: Path) -> None:
    names = {"past_key_values.0.key": "cache_k_0", "past_key_values.1.key": "cache_k_1"}

    def change(graph: Any) -> None:
        for value in graph.input:
            value.name = names.get(value.name, value.name)
        for node in graph.node:
            for place, name in enumerate(node.input):
                node.input[place] = names.get(name, name)

    change_graph(built, change)
    document = settings(2)
    document["model"]["decoder"]["inputs"]["past_key_names"] = "cache_k_%d"
    (built / "genai_config.json").write_text(json.dumps(document))
    bundle = import_genai(built, tmp_path / "bundle")
    assert bundle.manifest.states[0].input == "past_key_values.0.key"


def test_the_command_prints_the_verdict(built: Path, checkpoint: Path, tmp_path: Path) -> None:
    done = run_here("import-genai", built, tmp_path / "one", "--json")
    assert json.loads(done.stdout)["verdict"] is None
    assert json.loads(done.stdout)["unverified"] == UNVERIFIED
    done = run_here("import-genai", built, tmp_path / "two", "--checkpoint", checkpoint)
    assert done.returncode == 0, done.stderr
    assert b"PASS" in done.stdout
    assert b"excellent" in done.stdout


def test_an_import_can_be_exported_again(built: Path, tmp_path: Path) -> None:
    bundle = import_genai(built, tmp_path / "bundle")
    folder = convert(bundle, tmp_path / "again")
    again = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    assert {"input_ids", "attention_mask"} < {value.name for value in again.graph.input}
