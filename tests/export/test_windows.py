"""Windowed states, against transformers and PyTorch over texts of many windows.

Most tests make windows and their slack small, so that rows move every few tokens. Equality to the
bit needs the real sizes.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers
from numpy.typing import NDArray
from tests.export import tiny_models

import ortolan
from ortolan import Decoder, Sampling
from ortolan.export import pipeline
from ortolan.export.errors import ParityError
from ortolan.export.layouts.comparison import compare
from ortolan.export.layouts.genai import with_mask
from ortolan.export.options import ExportOptions
from ortolan.export.windows import with_windows
from ortolan.modeling.config import BlockConfig, RotaryPositions
from ortolan.runtime import PromptLookup
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine import windows
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.last_prompt import LastPrompt

pytestmark = pytest.mark.slow

WINDOW, CONTEXT = 8, 300
IDS = np.random.default_rng(5).integers(3, 60, CONTEXT).tolist()
LONG_IDS = np.random.default_rng(6).integers(3, tiny_models.VOCAB, 1900).tolist()

SHAPE: Mapping[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "sliding_window": WINDOW,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LAYERS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

KINDS: Mapping[str, tuple[str, Mapping[str, Any], Any]] = {
    "every layer": ("MistralConfig", {}, None),
    "softcaps, alternating": ("Gemma2Config", LAYERS, None),
    "two rotations": ("Gemma3TextConfig", LAYERS, None),
    "no rotation in full layers": ("Cohere2Config", LAYERS, None),
    "sinks and experts": (
        "GptOssConfig",
        LAYERS | {"num_local_experts": 4, "num_experts_per_tok": 2},
        None,
    ),
    "norms after projections": ("Exaone4Config", LAYERS, None),
    "code of transformers": ("Qwen3Config", LAYERS | {"use_sliding_window": True}, "transformers"),
}

Floats = NDArray[np.float32]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows move by 8 tokens, and be rewound by 4."""
    for name, value in {"BACK": 4, "PART": 8, "_BLOCK": 8, "_WIDEST": 8}.items():
        monkeypatch.setattr(windows, name, value)


QUICK = ("every layer", "two rotations", "code of transformers")


@pytest.fixture(
    params=[pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS]
)
def pair(request: pytest.FixtureRequest, small: None, tmp_path: Path) -> tuple[Decoder, Floats]:
    """A bundle, and the logits of transformers for `IDS`."""
    class_name, fields, via = KINDS[request.param]
    torch.manual_seed(0)
    config = getattr(transformers, class_name)(**{**SHAPE, **fields})
    original: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    original.eval()
    for parameter in original.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    original.save_pretrained(tmp_path / "original")
    options = ExportOptions(via=via)
    ortolan.export(tmp_path / "original", tmp_path / "bundle", options=options)
    with torch.no_grad():
        logits = original(torch.tensor([IDS])).logits[0].numpy()
    model = ortolan.load(tmp_path / "bundle", Decoder)
    layers = ["sliding_attention"] * 3 if not fields else fields["layer_types"]
    assert [state.window for state in model.manifest.states[::2]] == [
        WINDOW if kind == "sliding_attention" else None for kind in layers
    ]
    return model, logits


def assert_close(got: Floats, expected: Floats) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_every_way_computes_what_transformers_computes(pair: tuple[Decoder, Floats]) -> None:
    model, expected = pair
    assert_close(model.logits(IDS), expected)
    with model.session() as session:
        for number, token in enumerate(IDS):
            assert_close(session.append([token]), expected[number])
    with model.session() as session:
        rng, length = np.random.default_rng(1), 0
        while length < len(IDS):
            part = IDS[length : length + int(rng.integers(1, 40))]
            length += len(part)
            assert_close(session.append(part), expected[length - 1])


def llama(**fields: Any) -> Any:
    """A model of Ortolan with a window in one of two layers."""
    windowed = BlockConfig(
        mixer=tiny_models.attention(sliding_window=WINDOW, **fields),
        feed_forward=tiny_models.GATED,
        norm=tiny_models.RMS,
    )
    whole = replace(windowed, mixer=tiny_models.attention(**fields))
    return replace(
        tiny_models.llama(),
        blocks=(windowed, whole),
        positions=RotaryPositions(dim=fields.get("head_dim", 16)),
        context_length=2048,
    )


def exported(folder: Path, config: Any, **options: Any) -> Decoder:
    module = tiny_models.decoder(config)
    ortolan.export(module, folder, **options)
    return ortolan.load(folder, Decoder)


@pytest.fixture
def model(small: None, tmp_path: Path) -> Decoder:
    return exported(tmp_path / "small", llama())


@pytest.fixture
def wide(tmp_path: Path) -> Decoder:
    """A bundle whose rows move by 128 tokens, as those of real models do."""
    return exported(tmp_path / "wide", llama(head_dim=128))


def logits_of(model: Decoder) -> Floats:
    return model.logits(LONG_IDS[:CONTEXT])


def test_a_session_goes_back_as_far_as_its_windows_do(model: Decoder) -> None:
    expected, ids = logits_of(model), LONG_IDS
    rng, went, refused = np.random.default_rng(2), 0, 0
    with model.session() as session:
        session.append(ids[:60])
        while len(session) < CONTEXT - 20:
            back = len(session) - int(rng.integers(1, 16))
            if back >= session._runner.slots.windows.least(0):
                session.rewind(back)
                went += 1
            else:
                with pytest.raises(InputError, match="keep only the last tokens"):
                    session.rewind(back)
                assert back < len(session) - 4
                refused += 1
            part = ids[len(session) : len(session) + int(rng.integers(1, 20))]
            assert_close(session.append(part), expected[len(session) - 1])
        assert went > 10
        assert refused > 10
        session.rewind(0)
        assert_close(session.append(ids[:3]), expected[2])


def test_snapshots_forks_and_files_hold_the_window(model: Decoder, tmp_path: Path) -> None:
    expected, ids = logits_of(model), LONG_IDS
    with model.session() as session:
        for length in (5, 13, 40, 133):
            session.append(ids[len(session) : length])
            kept = session.snapshot()
            window = windows.window_of(model.manifest.states, CONTEXT)
            assert window is not None
            sizes = [buffer.shape[2] for buffer in kept.states.buffers]
            assert sizes == [min(length, window.kept)] * 2 + [length] * 2
            session.save(tmp_path / "file")
            other = session.fork()
            session.append(ids[length : length + 30])
            session.restore(kept)
            for one in (other, model.load_session(tmp_path / "file"), session):
                assert_close(one.append(ids[length : length + 25]), expected[length + 24])
                assert_close(one.append([ids[length + 25]]), expected[length + 25])
            session.restore(kept)
            session.rewind(length - 2)


def test_a_failed_call_leaves_the_window(model: Decoder) -> None:
    expected, ids = logits_of(model), LONG_IDS
    with model.session() as session:
        session.append(ids[:100])
        runner, calls = session._runner, []
        call = runner._call

        def fail(*args: Any, **options: Any) -> Any:
            calls.append(args)
            if len(calls) == 6:
                raise MemoryError
            return call(*args, **options)

        runner._call = fail  # type: ignore[method-assign]
        with pytest.raises(MemoryError):
            session.append(ids[100:200])
        assert_close(session.append(ids[100:104]), expected[103])


def test_beams_and_rows_take_their_windows_along(model: Decoder) -> None:
    slots = model._engine.slots(3)
    runner = Runner(model._engine, slots)
    expected = logits_of(model)
    runner.prefill(0, LONG_IDS[:50])
    runner.prefill(1, LONG_IDS[:77])
    slots.copy_rows([1, 0], [0, 2])
    slots.move(1, 1)
    runner.select([0, 2])
    for _ in range(30):
        lengths = [slots.lengths[0], slots.lengths[2]]
        runner.step([LONG_IDS[length] for length in lengths])
        for row, length in zip((0, 2), lengths, strict=True):
            assert_close(runner.logits_BV[row], expected[length])


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_a_row_is_the_same_to_the_bit_whenever_it_moves(precision: Any, tmp_path: Path) -> None:
    model = exported(tmp_path / "wide", llama(head_dim=128), precision=precision)
    engine = model._engine

    def computed(*parts: int, beside: bool = False) -> Floats:
        runner = Runner(engine, engine.slots(4), exact=True)
        if beside:
            runner.prefill(0, LONG_IDS[::-1][:700])
        length, logits = 0, []
        for part in (*parts, 1800 - sum(parts)):
            logits = [runner.prefill(1, LONG_IDS[length : length + part])]
            length += part
        runner.select([0, 1] if beside else [1])
        for token in LONG_IDS[1800:1840]:
            runner.step([7, token] if beside else [token])
            logits.append(runner.logits_BV[1].copy())
        return np.array(logits)

    expected = computed()
    for parts in [(2,), (64, 100, 300), (128,) * 10, (1000, 126)]:
        np.testing.assert_array_equal(computed(*parts), expected)
    np.testing.assert_array_equal(computed(64, 128, beside=True), expected)


def test_windows_compute_what_whole_states_compute(wide: Decoder, tmp_path: Path) -> None:
    whole = exported(tmp_path / "whole", llama(head_dim=128), device="webgpu", precision="fp32")
    assert whole.manifest.schema == wide.manifest.schema
    assert not whole.manifest.has_windows
    assert_close(wide.logits(LONG_IDS), whole.logits(LONG_IDS))


@pytest.mark.slow
def test_the_cache_of_eight_bits_moves_too(small: None, tmp_path: Path) -> None:
    ids = LONG_IDS[:CONTEXT]
    options = ExportOptions(cache="int8")
    windowed = exported(tmp_path / "windowed", llama(), options=options)
    assert windowed.manifest.has_windows
    got = windowed.logits(ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "PART", 4096)  # rows gain nothing
        whole = exported(tmp_path / "whole", llama(), options=options)
        assert not whole.manifest.has_windows
        expected = whole.logits(ids)
    assert_close(got, expected)
    odd = exported(tmp_path / "odd", llama(head_dim=48), options=options)
    assert not odd.manifest.has_windows


def test_guesses_and_lists_change_nothing(wide: Decoder) -> None:
    prompts = [LONG_IDS[:length] for length in (900, 30, 777)]
    alone = [wide.generate([prompt], max_new_tokens=300)[0].tokens for prompt in prompts]
    together = wide.generate(prompts, max_new_tokens=300)
    assert [done.tokens for done in together] == alone
    guessed = wide.generate(prompts[:1], max_new_tokens=300, draft=PromptLookup())
    assert guessed[0].tokens == alone[0]


def test_a_service_reuses_prefixes_longer_than_the_window(wide: Decoder) -> None:
    options: dict[str, Any] = {"max_new_tokens": 40, "sampling": Sampling(temperature=0)}
    prompts = [LONG_IDS[:1500] + [index] * (index + 2) for index in range(5)]
    expected = [wide.generate([prompt], **options)[0].tokens for prompt in prompts]
    with wide.serve(slots=2) as service:
        first = service.submit(prompts[0], **options).result().tokens
        tickets = [service.submit(prompt, **options) for prompt in prompts[1:]]
        assert [first, *(ticket.result().tokens for ticket in tickets)] == expected
        counts = service.stats().cache
    assert counts.hits == 4
    assert counts.tokens >= 4 * 1408


def test_an_answer_longer_than_the_window_keeps_the_prompt(wide: Decoder) -> None:
    last = LastPrompt(wide._engine)
    runner = Runner(wide._engine, last.slots, exact=True, chunk=last.chunk)

    def turn(prompt: list[int], answer: list[int]) -> tuple[int, Floats]:
        length = last._rewind(prompt)
        logits: Floats
        start, logits = length, np.empty(0, np.float32)
        while start < len(prompt):
            end = min(len(prompt), start + runner.chunk_tokens(0))
            logits = runner.chunk(0, prompt[start:end], positions=[end - start - 1])
            last.record(prompt, start, end)
            start = end
        runner.select([0])
        for token in answer:
            runner.step([token])
        last.slots.release(0)
        return length, logits

    first, second = LONG_IDS[:1000], LONG_IDS[:1000] + LONG_IDS[1500:1530]
    assert turn(first, LONG_IDS[:600])[0] == 0
    kept, logits = turn(second, LONG_IDS[:10])
    assert kept == 1000
    fresh = Runner(wide._engine, wide._engine.slots(), exact=True)
    np.testing.assert_array_equal(logits[0], fresh.prefill(0, second))
    assert turn(LONG_IDS[:500] + LONG_IDS[:20], [])[0] == 0


def test_the_states_of_a_row_stop_growing(wide: Decoder) -> None:
    window = windows.window_of(wide.manifest.states, 2048)
    assert window == windows.Window(size=WINDOW, step=128, back=128, part=128)
    slots = wide._engine.slots()
    Runner(wide._engine, slots).prefill(0, LONG_IDS)
    shapes = [read.shape[2] for _, read, _ in slots.held.bound(slice(0, 1))]
    assert shapes[:2] == [window.capacity] * 2
    assert min(shapes[2:]) >= len(LONG_IDS)
    per_token = wide.manifest.state_bytes("append")
    held = windows.row_bytes(wide.manifest, 1900)
    assert held == per_token // 2 * (1900 + window.capacity)


def test_another_runtime_gets_whole_states(model: Decoder, tmp_path: Path) -> None:
    bundle = open_bundle(tmp_path / "small")
    graph = with_mask(bundle.read("decoder.onnx"))
    assert b"window_starts" not in graph
    compare(bundle, graph)


@pytest.mark.parametrize("change", [-1, 1])
def test_verify_finds_a_window_that_is_off_by_one(
    change: int, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(model: Any, graphs: Mapping[str, ir.Model], plan: Any) -> Any:
        for graph in graphs.values():
            for node in graph.graph:
                size = node.attributes.get_int("local_window_size", -1)
                if size > 0:
                    node.attributes.add(ir.AttrInt64("local_window_size", size + change))
        return with_windows(model, graphs, plan)

    monkeypatch.setattr(pipeline, "with_windows", shifted)
    with pytest.raises(ParityError):
        ortolan.export(tiny_models.decoder(llama()), tmp_path / "bundle")
