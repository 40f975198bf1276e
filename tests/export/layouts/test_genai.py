"""Folders for onnxruntime-genai, without that package (`tests/hosts/test_genai.py` has it)."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from msgspec.structs import replace as replace_fields
from numpy.typing import NDArray
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import run_here
from tests.export import tiny_models
from tests.export.conftest import Exported
from tests.refusals import refusal

import ortolan
from ortolan.export.errors import LayoutError, OutputError
from ortolan.export.layouts.comparison import compare
from ortolan.export.layouts.genai import CONFIG, convert, through_bundle, with_mask
from ortolan.export.options import ExportOptions
from ortolan.modeling.config import LearnedPositions
from ortolan.runtime.bundle.manifest import Manifest, Tokens
from ortolan.runtime.engine.ort_session import open_part

Export = Callable[[str], Exported]
PROMPTS = ([5, 6, 7, 8, 9], [11, 12])
NEW = (20, 21)


@pytest.fixture(scope="module")
def folder(exported: Export, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(exported("llama").bundle, tmp_path_factory.mktemp("genai") / "out")


def reference(exported: Exported, ids: list[int]) -> NDArray[np.float32]:
    """Logits of the last token, from PyTorch."""
    with torch.no_grad():
        logits: NDArray[np.float32] = exported.reference(torch.tensor([ids]))[0, -1].numpy()
    return logits


def padded(prompts: tuple[list[int], ...], side: str, pad: int) -> tuple[Any, Any]:
    """Ids and mask of a batch."""
    width = max(map(len, prompts))
    rows, masks = [], []
    for ids in prompts:
        fill, zeros = [pad] * (width - len(ids)), [0] * (width - len(ids))
        rows.append(fill + ids if side == "left" else ids + fill)
        masks.append(zeros + [1] * len(ids) if side == "left" else [1] * len(ids) + zeros)
    return np.array(rows), np.array(masks)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_has_the_logits_of_pytorch(exported: Export, side: str) -> None:
    case = exported("llama")
    run = open_part(case.bundle, with_mask(case.bundle.read("decoder.onnx")), threads=1)
    ids, mask = padded(PROMPTS, side, pad=3)
    states = {
        state.input: np.empty([2, state.shape[1], 0, state.shape[3]], np.float32)  # type: ignore[list-item]
        for state in case.bundle.manifest.states
    }
    outputs = run({"input_ids": ids, "attention_mask": mask, **states})
    first = np.stack([reference(case, prompt) for prompt in PROMPTS])
    np.testing.assert_allclose(outputs["logits"][:, 0], first, rtol=1e-4, atol=1e-5)
    states = {state.input: outputs[state.output] for state in case.bundle.manifest.states}
    step = {
        "input_ids": np.array(NEW)[:, None],
        "attention_mask": np.concatenate([mask, np.ones((2, 1), np.int64)], axis=1),
    }
    outputs = run({**step, **states})
    second = np.stack([reference(case, [*PROMPTS[row], NEW[row]]) for row in (0, 1)])
    np.testing.assert_allclose(outputs["logits"][:, 0], second, rtol=1e-4, atol=1e-5)


def test_the_folder_has_the_files_and_names_of_genai(folder: Path) -> None:
    names = {path.name for path in folder.iterdir() if not path.name.startswith("weights-")}
    assert names == {
        "model.onnx",
        CONFIG,
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    }
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    config = json.loads((folder / CONFIG).read_text())["model"]["decoder"]
    inputs, outputs = config["inputs"], config["outputs"]
    layers = range(config["num_hidden_layers"])
    assert {value.name for value in graph.input} == {
        inputs["input_ids"],
        inputs["attention_mask"],
        *(inputs[name] % i for i in layers for name in ("past_key_names", "past_value_names")),
    }
    assert {value.name for value in graph.output} == {
        outputs["logits"],
        *(
            outputs[name] % i
            for i in layers
            for name in ("present_key_names", "present_value_names")
        ),
    }


def test_the_config_describes_the_model(folder: Path, exported: Export) -> None:
    config = json.loads((folder / CONFIG).read_text())
    model, decoder = config["model"], config["model"]["decoder"]
    assert (model["bos_token_id"], model["eos_token_id"], model["pad_token_id"]) == (1, [2, 5], 2)
    assert (model["vocab_size"], model["context_length"]) == (tiny_models.VOCAB, 600)
    assert (decoder["num_attention_heads"], decoder["num_key_value_heads"]) == (4, 2)
    assert (decoder["head_size"], decoder["num_hidden_layers"]) == (16, 2)
    assert config["search"]["do_sample"] is False
    # so that the session fuses what the certificate was measured with
    options = decoder["session_options"]
    assert options["optimization.disable_specified_optimizers"] == "SkipLayerNormFusion"


def test_sampling_that_the_model_recommends_is_the_default(
    exported: Export, tmp_path: Path
) -> None:
    source = tmp_path / "checkpoint"
    tiny_models.write_checkpoint(source, exported("llama").module)
    recommended = {"do_sample": True, "temperature": 0.5, "top_p": 0.75, "eos_token_id": 2}
    (source / "generation_config.json").write_text(json.dumps(recommended))
    bundle = ortolan.export(source, tmp_path / "bundle")
    config = json.loads((convert(bundle, tmp_path / "genai") / CONFIG).read_text())
    search = config["search"]
    assert (search["do_sample"], search["temperature"]) == (True, 0.5)
    assert (search["top_k"], search["top_p"]) == (0, 0.75)


def test_positions_outside_of_attention_follow_the_mask(tmp_path: Path) -> None:
    config = tiny_models.gpt2()
    assert isinstance(config.positions, LearnedPositions)
    bundle = ortolan.export(tiny_models.decoder(config), tmp_path / "bundle")
    compare(bundle, with_mask(bundle.read("decoder.onnx")))  # padded on either side


def test_a_graph_with_other_logits_is_rejected(exported: Export) -> None:
    bundle = exported("llama").bundle
    graph = onnx.ModelProto.FromString(with_mask(bundle.read("decoder.onnx")))
    first = next(node for node in graph.graph.node if node.op_type == "ArgMax")
    first.op_type = "ArgMin"  # finds the padding
    with pytest.raises(LayoutError, match="other logits for a prompt padded on the right"):
        compare(bundle, graph.SerializeToString())


OPTIONS: dict[str, dict[str, Any]] = {
    "split": {"options": ExportOptions(graphs="split")},
    "portable": {"options": ExportOptions(attention="portable")},
    "int8 cache": {"options": ExportOptions(cache="int8")},
    "webgpu": {"device": "webgpu", "precision": "fp16"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_bundles_that_genai_cannot_run_are_refused(
    name: str, checkpoint: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    bundle = ortolan.export(checkpoint, tmp_path / "bundle", **OPTIONS[name])
    text = refusal(lambda: convert(bundle, tmp_path / "genai"), tmp_path)
    assert text == snapshot
    assert not (tmp_path / "genai").exists()
    device = OPTIONS[name].get("device", "cpu")
    options = OPTIONS[name].get("options", ExportOptions())
    before = through_bundle(tmp_path / "genai", device=device, options=options)
    assert refusal(before.__enter__, tmp_path) == text  # before an export


def as_latent(manifest: Manifest) -> Manifest:
    first, *others = manifest.states
    shape = ("batch", 2, "capacity", 8)
    return replace_fields(manifest, states=(replace_fields(first, shape=shape), *others))


def as_recurrent(manifest: Manifest) -> Manifest:
    first, *others = manifest.states
    recurrent = replace_fields(first, shape=("batch", 8), update="replace")
    return replace_fields(manifest, states=(recurrent, *others))


CHANGES: dict[str, Callable[[Manifest], Manifest]] = {
    "encoder": lambda manifest: replace_fields(manifest, kind="encoder"),
    "recurrent": as_recurrent,
    "latent": as_latent,
    "other attention": lambda manifest: replace_fields(manifest, states=manifest.states[:2]),
    "suppressed": lambda manifest: replace_fields(manifest, tokens=Tokens(suppressed=(3,))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_models_that_genai_cannot_run_are_refused(
    name: str, exported: Export, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    bundle = exported("llama").bundle
    changed = replace(bundle, manifest=CHANGES[name](bundle.manifest))
    assert refusal(lambda: convert(changed, tmp_path / "genai"), tmp_path) == snapshot
    assert not (tmp_path / "genai").exists()


def test_a_bundle_without_a_tokenizer_is_refused(
    exported: Export, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    bundle = exported("post-norm").bundle
    assert refusal(lambda: convert(bundle, tmp_path / "genai"), tmp_path) == snapshot


def test_only_a_folder_of_this_layout_is_replaced(exported: Export, tmp_path: Path) -> None:
    bundle, notes = exported("llama").bundle, tmp_path / "notes.txt"
    notes.write_text("kept")
    with pytest.raises(OutputError, match=f"without {CONFIG}"):
        convert(bundle, tmp_path, force=True)
    out = convert(bundle, tmp_path / "out")
    with pytest.raises(OutputError, match="--force"):
        convert(bundle, out)
    before = (out / "model.onnx").read_bytes()
    convert(bundle, out, force=True)
    assert (out / "model.onnx").read_bytes() == before
    assert notes.read_text() == "kept"
    notes.rename(out / notes.name)
    with pytest.raises(OutputError, match=r"other files \(notes.txt\)"):
        convert(bundle, out, force=True)
    assert (out / notes.name).read_text() == "kept"


def test_the_commands_write_the_same_folder(
    checkpoint: Path, exported: Export, tmp_path: Path
) -> None:
    done = run_here("export", checkpoint, tmp_path / "one", "--layout", "genai", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "PASS"
    done = run_here("export-genai", exported("llama").bundle.path, tmp_path / "two", "--json")
    assert json.loads(done.stdout)["environment"] == {"ORT_GQA_DISABLE_FLASH_ATTENTION": "1"}
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "two")
    )
    assert one == two
