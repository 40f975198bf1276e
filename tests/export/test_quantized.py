"""Low-bit bundles against PyTorch with the dequantized weights.

The codes are read from the bundle's own files and dequantized by numpy: what is compared is the
whole way from the plan to the kernel.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from numpy.typing import NDArray
from tests.export import tiny_models
from tests.tiny import FAMILY_CONFIGS

import ortolan
from ortolan.export.errors import ParityError
from ortolan.export.options import ExportOptions, GroupSize, Int4, Int8, Precision
from ortolan.export.quantize import tune
from ortolan.modeling import DecoderConfig, DecoderModel
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.runtime import Bundle, load
from ortolan.runtime.verification.certificate_files import read_certificate

Array = NDArray[Any]

MODELS: dict[str, Callable[[], DecoderConfig]] = {
    "tied": tiny_models.gpt2,
    "untied": tiny_models.llama,
}

WIDE = 0.03
"""Tolerance relative to the largest logit, since kernels round activations to 8 bits."""


def arrays(bundle: Bundle, file: str) -> dict[str, Array]:
    """Initializers of a graph, by name, from the weight file."""
    graph = onnx.load(str(bundle.file(file)), load_external_data=False).graph
    read = {}
    for tensor in graph.initializer:
        entry = {item.key: item.value for item in tensor.external_data}
        data = bundle.file(entry["location"]).read_bytes()
        part = data[int(entry["offset"]) :][: int(entry["length"])]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        read[tensor.name] = np.frombuffer(part, dtype).reshape(tuple(tensor.dims))
    return read


def nibbles(packed: Array) -> Array:
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def dequantize(stored: dict[str, Array], name: str, bits: int, columns: int) -> Array:
    """The dequantized weight `(N, K)` of a product or a table."""
    scales = stored[f"{name}.scales"]
    codes = stored.get(f"{name}.codes", stored.get(f"{name}.table"))
    assert codes is not None
    codes = codes.reshape(*scales.shape, -1)
    values = nibbles(codes) if bits == 4 else codes
    zeros: Array = np.full(scales.shape, 1 << (bits - 1), np.float32)
    if f"{name}.zeros" in stored:
        packed = stored[f"{name}.zeros"]
        zeros = (nibbles(packed) if bits == 4 else packed)[:, : scales.shape[1]]
    wide = (values.astype(np.float32) - zeros[..., None]) * scales[..., None]
    kept: Array = wide.reshape(len(codes), -1)[:, :columns]
    return kept.astype(np.float32)


def stands_for(bundle: Bundle, module: DecoderModel) -> DecoderModel:
    """The module with the weights of the bundle."""
    file = next(iter(bundle.manifest.graphs.values())).file
    stored = arrays(bundle, file)
    schemes = {tensor.name: tensor for tensor in bundle.manifest.quantized}
    other = DecoderModel(module.config)
    other.load_state_dict(module.state_dict())
    for name, parameter in other.named_parameters():
        if name in schemes:
            weight = dequantize(stored, name, schemes[name].bits, parameter.shape[1])
            parameter.data = torch.from_numpy(weight)
    return other.eval()


def logits(module: DecoderModel, ids: list[int]) -> Array:
    with torch.inference_mode():
        made: Array = module(torch.tensor(ids)[None])[0].numpy()
    return made


RTN = Int4(method="rtn")


def export(
    module: DecoderModel, out: Path, precision: Precision = RTN, **options: Any
) -> tuple[Bundle, ortolan.Decoder]:
    bundle = ortolan.export(
        module, out, precision=precision, options=ExportOptions(**{"max_kl": 5.0} | options)
    )
    return bundle, load(out, threads=1)


GATED = ("gate", "up", "down")

IDS = np.random.default_rng(0).integers(0, tiny_models.VOCAB, 40).tolist()


@pytest.mark.parametrize(
    ("model", "integers", "group", "asymmetric"),
    [
        ("tied", Int4, 32, False),
        ("untied", Int4, 64, True),
        ("tied", Int4, 128, True),
        ("untied", Int4, 256, False),
        ("tied", Int8, 32, True),
        ("untied", Int8, 64, False),
        ("tied", Int8, 256, False),
        ("untied", Int8, 128, True),
    ],
)
def test_bundle_computes_what_its_codes_stand_for(
    model: str, integers: type[Int4 | Int8], group: GroupSize, asymmetric: bool, tmp_path: Path
) -> None:
    module = tiny_models.decoder(MODELS[model]())
    bundle, loaded = export(
        module, tmp_path / "out", integers(method="rtn", group_size=group, asymmetric=asymmetric)
    )
    kinds = {(t.bits, t.group, t.symmetric) for t in bundle.manifest.quantized if ".0." in t.name}
    assert kinds == {(integers.bits, group, not asymmetric)}
    other = stands_for(bundle, module)
    expected = logits(other, IDS)
    bound = WIDE * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(loaded.logits(IDS), expected, atol=bound)
    for tensor in bundle.manifest.quantized:
        was, now = (m.get_parameter(tensor.name).detach() for m in (module, other))
        assert tensor.error == pytest.approx(float((now - was).norm() / was.norm()), rel=1e-4)
    # Evidence that the codes differ from the weights.
    if integers is Int4:
        assert np.abs(logits(module.eval(), IDS) - expected).max() > bound / 10


def hybrid(name: str) -> DecoderModel:
    """A family with other mixers than attention, wide enough for groups."""
    wide = {"hidden_size": 128, "intermediate_size": 192}
    return tiny_models.decoder(config_from_hf(FAMILY_CONFIGS[name] | wide | HYBRID_SIZES[name]))


HYBRID_SIZES: dict[str, dict[str, Any]] = {
    "lfm2": {},
    "qwen3_5_text": {"linear_key_head_dim": 32, "linear_value_head_dim": 32},
    "mamba2": {"num_heads": 8, "head_dim": 32},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HYBRID_SIZES)
def test_hybrid_bundle_computes_what_its_codes_stand_for(name: str, tmp_path: Path) -> None:
    module = hybrid(name)
    bundle, loaded = export(module, tmp_path / "out", Int4(method="rtn", group_size=32))
    quantized = {tensor.name for tensor in bundle.manifest.quantized}
    mixing = {n for n, p in module.named_parameters() if p.dim() == 2 and ".project." in n}
    assert mixing <= quantized
    assert not any(".conv." in name or name.endswith(("decay", "skip")) for name in quantized)
    expected = logits(stands_for(bundle, module), IDS)
    bound = WIDE * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(loaded.logits(IDS), expected, atol=bound)
    assert np.abs(logits(module.eval(), IDS) - expected).max() > bound / 10
    with loaded.session() as session:
        single = np.stack([session.append([token]) for token in IDS])
    np.testing.assert_allclose(single, expected, atol=bound)


@pytest.mark.parametrize("model", ["untied", pytest.param("tied", marks=pytest.mark.slow)])
def test_one_token_at_a_time_gives_what_the_whole_gives(model: str, tmp_path: Path) -> None:
    module = tiny_models.decoder(MODELS[model]())
    _, loaded = export(module, tmp_path / "out")
    whole = loaded.logits(IDS)
    with loaded.session() as session:
        single = np.stack([session.append([token]) for token in IDS])
    # Every row of activations has its own scale, but sums in another order may move an activation
    # to the next 8-bit step.
    largest = np.abs(whole).max()
    off = np.abs(single - whole).max(axis=-1) / largest
    assert (off < 1e-4).mean() > 0.8
    assert off.max() < WIDE


@pytest.mark.parametrize(
    ("model", "integers", "asymmetric"),
    [
        ("tied", Int4, True),
        ("untied", Int8, True),
        pytest.param("tied", Int8, False, marks=pytest.mark.slow),
        pytest.param("untied", Int4, False, marks=pytest.mark.slow),
    ],
)
def test_portable_bundle_has_the_same_tokens(
    model: str, integers: type[Int4 | Int8], asymmetric: bool, tmp_path: Path
) -> None:
    module = tiny_models.decoder(MODELS[model]())
    precision = integers(method="rtn", group_size=32, asymmetric=asymmetric)
    _, fused = export(module, tmp_path / "fused", precision)
    bundle, portable = export(module, tmp_path / "portable", precision, attention="portable")
    nodes = bundle.graphs["decoder"].operators
    assert "com.microsoft::MatMulNBits" not in nodes
    assert nodes["ai.onnx::DequantizeLinear"] == len(bundle.manifest.quantized) + (model == "tied")
    tokens = [m.generate(IDS, max_new_tokens=32, ignore_eos=True).tokens for m in (fused, portable)]
    assert tokens[0] == tokens[1]


def test_excluded_weights_stay_as_they_are(tmp_path: Path) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    bundle, _ = export(
        module, tmp_path / "out", replace(RTN, exclude=["blocks.0.*", "embedding.weight"])
    )
    layers = ("attention.qkv", "attention.out", *(f"feed_forward.{n}" for n in GATED))
    names = {tensor.name for tensor in bundle.manifest.quantized}
    assert names == {"head.weight", *(f"blocks.1.{layer}.weight" for layer in layers)}
    stored = arrays(bundle, "decoder.onnx")
    expected = module.get_parameter("blocks.0.feed_forward.down.weight").detach().numpy()
    np.testing.assert_array_equal(stored["blocks.0.feed_forward.down.weight"], expected)


@pytest.mark.slow  # of float bundles, a quick test says the same
def test_split_graphs_share_their_weights(tmp_path: Path) -> None:
    module = tiny_models.decoder(tiny_models.gpt2())
    unified, _ = export(module, tmp_path / "unified")
    split, _ = export(module, tmp_path / "split", graphs="split", prefill_precision="float")
    assert unified.manifest.weights == split.manifest.weights


def test_int8_prefill_and_int4_decode_work_on_one_cache(tmp_path: Path) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    bundle, loaded = export(
        module, tmp_path / "out", graphs="split", prefill_precision="int8", max_kl=None
    )
    prefill, decode = (bundle.graphs[role].operators for role in ("prefill", "decode"))
    assert prefill["com.microsoft::MatMulIntegerToFloat"] == 10
    assert prefill["com.microsoft::MatMulNBits"] == 1  # the head, for one position
    assert decode["com.microsoft::MatMulNBits"] == 11
    expected = logits(module.eval(), IDS)
    bound = 10 * WIDE * max(1.0, float(np.abs(expected).max()))
    with loaded.session() as session:
        got = [session.append(IDS[:32]), *(session.append([token]) for token in IDS[32:])]
    np.testing.assert_allclose(np.stack(got), expected[31:], atol=bound)


def test_quality_is_that_of_the_worse_graph(tmp_path: Path) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    options: dict[str, Any] = {"graphs": "split", "prefill_precision": "int8", "max_kl": None}
    bundle, _ = export(module, tmp_path / "out", Int4(method="rtn"), **options)
    quality: Any = bundle.manifest.quality
    measured: Any = read_certificate(bundle).measured
    worse, better = quality.graph_kl["decode"], quality.graph_kl["prefill"]
    assert worse > 5 * better
    assert better < quality.mean_kl < worse
    assert f"decode {worse:.2g}" in quality.summary
    # 16 of 33 and 96 of 160 tokens of the prompts fill the caches of these steps
    assert {name: phase.positions for name, phase in measured.graphs.items()} == {
        "prefill": 33 + 160 + 160,
        "decode": 1 + 2 + 1 + 1 + 17 + 64 + 2,
    }
    assert measured.largest_mean_kl == worse


def test_few_new_tokens_go_to_the_decode_graph(tmp_path: Path) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    options: dict[str, Any] = {"graphs": "split", "prefill_precision": "int8"}
    bundle, mixed = export(module, tmp_path / "mixed", **options)
    _, plain = export(module, tmp_path / "plain")
    few = bundle.manifest.graphs["prefill"].min_new_tokens - 1
    with mixed.session() as one, plain.session() as other:
        np.testing.assert_array_equal(one.append(IDS[:few]), other.append(IDS[:few]))
        assert (one.append(IDS[:few] + IDS[:1]) != other.append(IDS[:few] + IDS[:1])).any()


@pytest.mark.parametrize("model", ["family", "transformers"])
def test_the_best_effort_trains_scales(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "TOKENS", 32)
    best = Int4(effort="best", head_bits=8, calibration_sequences=4)
    if model == "family":
        module: Any = tiny_models.decoder(tiny_models.llama())
    else:  # stores weights the other way around
        config = transformers.GPT2Config(
            n_embd=64,
            n_head=4,
            n_layer=2,
            n_positions=64,
            vocab_size=tiny_models.VOCAB,
            bos_token_id=None,
            eos_token_id=None,
        )
        module = transformers.GPT2LMHeadModel(config)
    bundle, loaded = export(module, tmp_path / "out", best)
    methods = {tensor.name: tensor.method for tensor in bundle.manifest.quantized}
    blocks = {method for name, method in methods.items() if re.search(r"\.\d\.", name)}
    assert blocks == {"tuned"}
    assert blocks != set(methods.values())  # 8 bits need no training
    assert loaded.logits(IDS[:20]).shape == (20, tiny_models.VOCAB)


def test_bundle_beyond_the_bound_is_not_kept(tmp_path: Path) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    with pytest.raises(ParityError, match="mean KL"):
        export(module, tmp_path / "out", max_kl=0)
    assert list(tmp_path.iterdir()) == []


def test_certificate_holds_the_quality(tmp_path: Path) -> None:
    module = tiny_models.decoder(tiny_models.gpt2())
    bundle, _ = export(module, tmp_path / "out", max_kl=None)
    certificate = read_certificate(bundle)
    measured: Any = certificate.measured
    assert 0 < measured.mean_kl <= measured.max_kl
    bound = certificate.thresholds.mean_kl
    assert bound is not None
    assert bound <= max(1.5 * measured.mean_kl, 1.6e-4)
    assert certificate.thresholds.max_abs_delta is None
    assert measured.perplexity == pytest.approx(measured.reference_perplexity, rel=0.1)
