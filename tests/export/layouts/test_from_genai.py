"""Imported folders of onnxruntime-genai (`tests/hosts/test_genai.py` has real ones)."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import run_here
from tests.export import tiny_models
from tests.export.layouts.built_folder import module, settings, write_built
from tests.refusals import refusal

from ortolan.export.errors import LayoutError, OutputError, ParityError
from ortolan.export.layouts.from_genai import UNVERIFIED, import_genai
from ortolan.export.layouts.genai import convert
from ortolan.export.weights import blob
from ortolan.runtime import load, verify
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
    quality: Any = manifest.quality
    assert quality.mean_kl < largest
    report: Any = verify(bundle.path, isolate=False)
    assert report.verdict == "PASS"
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


def other_weights(folder: Path) -> Path:
    other = module()
    with torch.no_grad():
        next(iter(other.parameters())).mul_(1.01)
    return tiny_models.write_checkpoint(folder, other)


def fewer_layers(folder: Path) -> Path:
    return tiny_models.write_checkpoint(folder, tiny_models.decoder(tiny_models.llama(layers=1)))


@pytest.mark.parametrize("write", [other_weights, fewer_layers])
def test_another_checkpoint_is_noticed(
    write: Callable[[Path], Path], built: Path, tmp_path: Path
) -> None:
    source = write(tmp_path / "other")
    with pytest.raises(LayoutError if write is fewer_layers else ParityError):
        import_genai(built, tmp_path / "bundle", checkpoint=source)
    assert not (tmp_path / "bundle").exists()


def test_another_tokenizer_is_noticed(built: Path, checkpoint: Path, tmp_path: Path) -> None:
    path = built / "tokenizer.json"
    document = json.loads(path.read_text())
    vocab = document["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(document))
    with pytest.raises(ParityError):
        import_genai(built, tmp_path / "bundle", checkpoint=checkpoint)


# --- refused --------------------------------------------------------------------------------------


def first(graph: Any, operator: str) -> Any:
    return next(node for node in graph.node if node.op_type == operator)


def head_of(graph: Any) -> Any:
    return next(node for node in graph.node if node.output[0] == "logits")


def read_mask(graph: Any) -> None:
    """Let the head read the mask."""
    graph.node.append(
        onnx.helper.make_node("Cast", ["attention_mask"], ["m"], to=onnx.TensorProto.FLOAT)
    )
    graph.node.append(onnx.helper.make_node("ReduceSum", ["m"], ["sum"], keepdims=0))
    head = head_of(graph)
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


def other_sizes(graph: Any) -> None:
    reshape = first(graph, "Reshape")
    sizes = next(node for node in graph.node if node.output[0] == reshape.input[1])
    sizes.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 7]), "sizes"))


def other_blocks(graph: Any) -> None:
    product = first(graph, "MatMulNBits")
    next(a for a in product.attribute if a.name == "block_size").i = 16


GRAPHS: dict[str, Callable[[Any], object]] = {
    "another operator": lambda graph: setattr(first(graph, "Sigmoid"), "op_type", "Sinh"),
    "a mask that the head reads": read_mask,
    "positions": add_positions,
    "other attention": lambda graph: setattr(
        first(graph, "GroupQueryAttention"), "op_type", "MultiHeadAttention"
    ),
    "a head that is no product": lambda graph: setattr(head_of(graph), "op_type", "Einsum"),
    "a state that is not read": lambda graph: graph.input.pop(),
    "a state that is not written": lambda graph: graph.output.pop(),
    "small blocks": other_blocks,
    "sizes that do not fit": other_sizes,
}

SETTINGS: dict[str, Callable[[Any], object]] = {
    "an encoder": lambda model: model.update(encoder={}),
    "vision": lambda model: model.update(vision={}),
    "a pipeline": lambda model: model["decoder"].update(pipeline=[{}]),
    "no vocabulary": lambda model: model.pop("vocab_size"),
    "a file elsewhere": lambda model: model["decoder"].update(filename="../model.onnx"),
    "no file": lambda model: model["decoder"].update(filename="gone.onnx"),
}

FILES: dict[str, Callable[[Path], object]] = {
    "no graph": lambda folder: (folder / "model.onnx").write_bytes(b"\x08\xff"),
    "no settings": lambda folder: (folder / "genai_config.json").unlink(),
    "damaged settings": lambda folder: (folder / "genai_config.json").write_text("{"),
}


@pytest.mark.parametrize("name", [*GRAPHS, *SETTINGS, *FILES])
def test_another_folder_is_refused(name: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    bits = 4 if name in ("small blocks", "sizes that do not fit") else None
    built = write_built(tmp_path / "built", module(), bits=bits)
    if name in GRAPHS:
        change_graph(built, GRAPHS[name])
    elif name in FILES:
        FILES[name](built)
    else:
        document = settings(2)
        SETTINGS[name](document["model"])
        (built / "genai_config.json").write_text(json.dumps(document))
    text = refusal(lambda: import_genai(built, tmp_path / "bundle"), tmp_path)
    assert re.sub(r"Error parsing.*corrupt", "...", text) == snapshot  # what protobuf says
    assert not (tmp_path / "bundle").exists()


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
