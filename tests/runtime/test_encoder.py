"""`Encoder`: results against the reference, prompts, batches and rejections."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_encoder
from tests.runtime.serving.faults import failing
from tests.runtime.tiny_encoder import (
    LABELS,
    MAX_TOKENS,
    VOCABULARY,
    WIDTH,
    OutputKind,
    TinyEncoder,
)

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.encoder import Encoder
from ortolan.runtime.encoding.batches import (
    MAX_BATCH_ROWS,
    MAX_BATCH_TOKENS,
    MIN_BATCH_SHARE,
    batches,
)
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import (
    BundleKindError,
    ContextLengthError,
    GraphError,
    InputError,
    NumericError,
)

TEXTS = ["a b c", "d", "e f g h i j k l a b c d", "a", "b c d e f"]


def load(path: Path) -> Encoder:
    bundle = open_bundle(path)
    return Encoder(bundle, Engine(bundle, threads=1))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyEncoder]:
    folder = tmp_path_factory.mktemp("encoders")
    return {
        kind: tiny_encoder.write_bundle(folder / kind, kind=kind) for kind in tiny_encoder.KINDS
    }


def ids_of(text: str) -> list[int]:
    return [2, *(tiny_encoder.WORDS.index(word) for word in text.split()), 3]


def assert_close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_embeddings_equal_the_reference_in_the_order_of_the_inputs(
    tiny: dict[str, TinyEncoder],
) -> None:
    encoder = load(tiny["embedding"].path)
    vectors = encoder.embed(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (5, WIDTH)
    assert_close(vectors, [tiny["embedding"].reference(ids_of(text)) for text in TEXTS])
    assert encoder.embed([]).shape == (0, WIDTH)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("labels", lambda logits: np.exp(logits) / np.exp(logits).sum()),
        ("tags", lambda logits: 1 / (1 + np.exp(-logits))),
        ("scores", lambda logits: logits),
    ],
)
def test_scores_equal_the_reference(
    tiny: dict[str, TinyEncoder], kind: str, function: Callable[[Any], Any]
) -> None:
    encoder = load(tiny[kind].path)
    for text, result in zip(TEXTS, encoder.classify(TEXTS), strict=True):
        logits = tiny[kind].reference(ids_of(text))
        assert_close([result.scores[label] for label in LABELS], function(logits))
        assert list(result.scores.values()) == sorted(result.scores.values(), reverse=True)
        assert result.label == next(iter(result.scores)) == LABELS[int(logits.argmax())]
        assert_close(result.score, function(logits).max())
        if kind == "scores":
            with pytest.raises(BundleKindError, match="not probabilities"):
                _ = result.probability
        else:
            assert (result.probabilities, result.probability) == (result.scores, result.score)
    assert encoder.classify([]) == []


@pytest.mark.parametrize(("kind", "width"), [("states", WIDTH), ("logits", VOCABULARY)])
def test_results_for_tokens_have_no_padding(
    tiny: dict[str, TinyEncoder], kind: str, width: int
) -> None:
    loaded = load(tiny[kind].path)
    compute: Callable[[list[str]], list[Any]] = getattr(loaded, kind)
    for text, rows in zip(TEXTS, compute(TEXTS), strict=True):
        assert rows.shape == (len(ids_of(text)), width)
        assert_close(rows, tiny[kind].reference(ids_of(text)))


def test_ids_are_not_changed_and_mix_with_texts(tiny: dict[str, TinyEncoder]) -> None:
    loaded = load(tiny["embedding"].path)
    mixed: list[Any] = [[4, 5], "a b", np.array([2, 4, 5, 3])]
    vectors = loaded.embed(mixed)
    assert_close(vectors[0], tiny["embedding"].reference([4, 5]))
    assert_close(vectors[1], vectors[2])
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-2
    for one in mixed[1:]:
        assert_close(loaded.embed(one), vectors[1:2])


# --- prompts ----------------------------------------------------------------------------------


PROMPTS = {"query": "a b ", "document": "", "other": "c "}


def prompted(folder: Path, default: str | None) -> Encoder:
    source = TextSource(max_tokens=MAX_TOKENS, prompts=PROMPTS, default_prompt=default)
    return load(tiny_encoder.write_bundle(folder / "bundle", kind="embedding", source=source).path)


@pytest.mark.parametrize(
    ("default", "prompt", "before"),
    [
        (None, None, ""),
        (None, "query", "a b "),
        (None, "document", ""),
        ("query", None, "a b "),
        ("query", "other", "c "),
        ("query", "", ""),
    ],
)
def test_a_prompt_of_the_model_goes_before_each_text(
    default: str | None, prompt: str | None, before: str, tmp_path: Path
) -> None:
    encoder = prompted(tmp_path, default)
    vectors = encoder.embed(["d e", "f"], prompt=prompt)
    assert_close(vectors, encoder.embed([f"{before}d e", f"{before}f"], prompt=""))
    assert_close(encoder.embed("f", prompt=prompt), vectors[1:])
    if not prompt:
        assert_close(encoder.embed([ids_of("d e")]), encoder.embed("d e", prompt=""))


def test_a_missing_prompt_is_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    encoder = prompted(tmp_path, None)
    calls = (
        lambda: encoder.embed("a", prompt="passage"),
        lambda: encoder.embed([[4, 5]], prompt="query"),
    )
    assert list(map(refusal, calls)) == snapshot


# --- batches ----------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 600), max_size=200))
def test_batches_hold_every_index_once_and_keep_to_their_bounds(lengths: list[int]) -> None:
    results = list(batches(lengths))
    assert sorted(index for batch in results for index in batch) == list(range(len(lengths)))
    for batch in results:
        sizes = [lengths[index] for index in batch]
        assert len(batch) <= MAX_BATCH_ROWS
        assert len(batch) * max(sizes) <= MAX_BATCH_TOKENS
        assert min(sizes) >= MIN_BATCH_SHARE * max(sizes)


def test_texts_of_one_length_are_computed_in_one_call(tiny: dict[str, TinyEncoder]) -> None:
    loaded = load(tiny["embedding"].path)
    with failing(lambda _: False) as calls:
        loaded.embed(["a b"] * 20 + ["a b c d e f g h"] * 3)
    assert calls() == 2
    assert [len(batch) for batch in batches([64] * 70)] == [32, 32, 6]
    assert list(batches([3, 100_000, 3])) == [[1], [0, 2]]


# --- rejections ------------------------------------------------------------------------------


def test_truncated_text_keeps_its_start_and_the_special_tokens(
    tiny: dict[str, TinyEncoder],
) -> None:
    loaded = load(tiny["embedding"].path)
    words = " ".join("abcdefghijkl" * 3)
    expected = tiny["embedding"].reference(ids_of(" ".join(words.split()[: MAX_TOKENS - 2])))
    assert_close(loaded.embed(words, truncate=True)[0], expected)
    cut = loaded.embed([ids_of(words)], truncate=True)[0]
    assert_close(cut, tiny["embedding"].reference(ids_of(words)[:MAX_TOKENS]))
    longest = " ".join("a" * (MAX_TOKENS - 2))
    assert_close(loaded.embed(longest, truncate=True), loaded.embed(longest))
    with pytest.raises(ContextLengthError, match="25 tokens"):
        loaded.embed(f"{longest} a")


@pytest.mark.parametrize("kind", ["states", "labels", "embedding", "logits"])
def test_an_output_of_another_kind_is_refused_with_what_fits(
    tiny: dict[str, TinyEncoder], kind: str, snapshot: SnapshotAssertion
) -> None:
    encoder = load(tiny[kind].path)
    methods = {"embed", "classify", "states", "logits"} - {kind}
    methods -= {{"labels": "classify", "embedding": "embed"}.get(kind, kind)}
    assert {name: refusal(lambda n=name: getattr(encoder, n)("a")) for name in methods} == snapshot  # type: ignore[misc]


def test_output_that_is_not_finite_names_the_input(tmp_path: Path) -> None:
    path = tiny_encoder.write_bundle(tmp_path / "poisoned", poisoned=9).path
    with pytest.raises(NumericError, match="input 2"):
        load(path).classify([[4], [5, 6], [9]])


def test_repeated_labels_get_a_number(tmp_path: Path) -> None:
    path = tiny_encoder.write_bundle(tmp_path / "twice", labels=("crane", "no", "crane")).path
    results = load(path).classify("a")[0]
    assert set(results.probabilities) == {"crane (0)", "no", "crane (2)"}
    assert_close(sum(results.probabilities.values()), 1)


@pytest.mark.parametrize("kind", ["labels", "embedding", "states"])
def test_output_of_another_size_than_the_manifest_says_is_rejected(
    tmp_path: Path, kind: OutputKind
) -> None:
    labels = ("a", "b", "c", "d")
    path = tiny_encoder.write_bundle(tmp_path / "wide", kind=kind, size=4, labels=labels).path
    with pytest.raises(GraphError, match="an array"):
        getattr(load(path), {"labels": "classify", "embedding": "embed"}.get(kind, kind))("a")


def test_images_of_another_size_than_the_graph_takes_are_rejected(tmp_path: Path) -> None:
    large = msgspec.structs.replace(tiny_encoder.IMAGE, width=7)
    path = tiny_encoder.write_bundle(
        tmp_path / "large", image=tiny_encoder.IMAGE, source=large
    ).path
    with pytest.raises(GraphError, match=r"encoder\.onnx: expected the input 'pixels'"):
        open_bundle(path)


# --- images -----------------------------------------------------------------------------------


def test_images_are_preprocessed_and_classified(tmp_path: Path) -> None:
    tiny = tiny_encoder.write_bundle(tmp_path / "images", image=tiny_encoder.IMAGE)
    shape = (tiny_encoder.HEIGHT, tiny_encoder.WIDTH_PIXELS, 3)
    random = np.random.default_rng(1)
    images = [random.integers(0, 256, shape, np.uint8) for _ in range(40)]
    results = load(tiny.path).classify(images)
    for image, one in zip(images, results, strict=True):
        pixels = (image / 255 - tiny_encoder.IMAGE.mean) / tiny_encoder.IMAGE.std
        logits = tiny.image_reference(np.asarray(pixels.transpose(2, 0, 1), np.float32))
        assert one.label == LABELS[int(logits.argmax())]
        shares = np.exp(logits - logits.max())
        assert_close([one.probabilities[label] for label in LABELS], shares / shares.sum())


def test_an_invalid_image_is_rejected_with_its_number(tmp_path: Path) -> None:
    tiny = tiny_encoder.write_bundle(tmp_path / "images", image=tiny_encoder.IMAGE)
    image = np.zeros((4, 6, 3), np.uint8)
    mixed: list[Any] = [image, b"nothing"]
    with pytest.raises(InputError, match=r"^input 1: image "):
        load(tiny.path).classify(mixed)
    with pytest.raises(InputError, match="truncate"):
        load(tiny.path).classify(image, truncate=True)
