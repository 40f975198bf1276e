"""Model card: README.md of a repository of bundles, as the Hugging Face Hub reads it.

Metadata at its beginning: https://huggingface.co/docs/hub/model-cards
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.errors import InputError
from ortolan.runtime.verification.certificate_files import read_certificate

_TASKS: Mapping[str, tuple[str, str]] = {
    "decoder": ("text-generation", "image-text-to-text"),
    "encoder-decoder": ("translation", "image-to-text"),
    "states": ("feature-extraction", "image-feature-extraction"),
    "logits": ("fill-mask", "image-feature-extraction"),
    "labels": ("text-classification", "image-classification"),
    "tags": ("text-classification", "image-classification"),
    "scores": ("text-classification", "image-classification"),
    "token_labels": ("token-classification", "image-segmentation"),
    "spans": ("question-answering", "visual-question-answering"),
    "embedding": ("feature-extraction", "image-feature-extraction"),
    "ctc": ("automatic-speech-recognition", "automatic-speech-recognition"),
}
"""The Hub's name of the task, for text and for images, by kind of bundle or of its output."""

_USES: Mapping[str, str] = {
    "text-generation": 'run {model} "Once upon a time"',
    "translation": 'run {model} "A text to translate"',
    "image-text-to-text": 'run {model} --image photo.jpg "What is this?"',
    "automatic-speech-recognition": "transcribe {model} talk.mp3",
    "text-classification": 'classify {model} "A text"',
    "image-classification": "classify {model} photo.jpg",
    "token-classification": 'classify {model} "A text"',
    "fill-mask": 'fill {model} "A text with a [MASK]"',
    "question-answering": 'answer {model} "A question" --context text.txt',
    "feature-extraction": 'embed {model} "A text"',
    "image-feature-extraction": "embed {model} photo.jpg",
    "zero-shot-image-classification": 'classify {model} photo.jpg --labels "a cat,a dog"',
}
"""Command to try, by task."""


def model_card(
    bundles: Sequence[Bundle],
    *,
    folders: Sequence[str] | None = None,
    base_model: str | None = None,
    license_id: str | None = None,
    repository: str | None = None,
) -> str:
    """Markdown with YAML metadata, for a repository with a folder per bundle."""
    if folders is None:
        folders = [bundle.path.resolve().name for bundle in bundles]
    first = bundles[0].manifest
    origin = first.provenance.repository
    if base_model is None and isinstance(origin, str):
        base_model = origin.partition("@")[0]
    sources = {bundle.manifest.provenance.source_sha256 for bundle in bundles}
    if len(sources) > 1:
        raise InputError(
            f"A card describes bundles of one checkpoint (got {len(sources)}). Write one for each."
        )
    if len(set(folders)) < len(folders):
        raise InputError(
            f"Folders in a repository need different names (got {', '.join(folders)}). Rename one."
        )
    of = "" if base_model is None else f" of `{_plain(base_model)}`"
    name = (base_model or first.provenance.model_type).rpartition("/")[2]
    parts = [
        _metadata(bundles, base_model, license_id),
        f"# {_plain(name)} for Ortolan",
        f"ONNX bundles{of} (`{_plain(first.provenance.model_type)}`). They run on onnxruntime, "
        f"without PyTorch. Context: {first.context_length:,} tokens; vocabulary: "
        f"{first.vocab_size:,}.",
        _table([_row(bundle, folder) for bundle, folder in zip(bundles, folders, strict=True)]),
        "Quality compares the logits or vectors of a bundle with those of the trained model. "
        "Device says whether the machine of the export computed what was exported. Both are "
        "stored in each bundle, and `ortolan verify` measures them again.",
        "## Use",
        _commands(first, folders[0], repository),
        "## Made from",
        "\n".join(f"* {line}" for line in _origin(bundles, folders)),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(bundles: Sequence[Bundle], base_model: str | None, license_id: str | None) -> str:
    precisions = dict.fromkeys(bundle.manifest.precision for bundle in bundles)
    fields: dict[str, object] = {
        "library_name": "ortolan",
        "pipeline_tag": _task(bundles[0].manifest),
        "tags": ["onnx", "onnxruntime", *precisions],
    }
    if license_id is not None:
        fields["license"] = license_id
    if base_model is not None:
        fields["base_model"] = base_model
        if any(bundle.manifest.quantized for bundle in bundles):
            fields["base_model_relation"] = "quantized"
    # JSON is YAML
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---"])


def _task(manifest: Manifest) -> str:
    kind = manifest.kind if manifest.output is None else manifest.output.kind
    medium = "texts" if manifest.source is None else manifest.source.medium
    if (medium == "sounds" and manifest.model_kind.has_decoder) or manifest.dictation:
        return "automatic-speech-recognition"
    if manifest.texts is not None:
        return "zero-shot-image-classification"
    of_text, of_images = _TASKS[kind]
    return of_images if medium == "images" or manifest.images else of_text


def _row(bundle: Bundle, folder: str) -> tuple[str, ...]:
    manifest = bundle.manifest
    size = f"{sum(file.size for file in manifest.files) / 1e6:,.1f}"
    quality = manifest.quality.summary if manifest.quality else "not measured"
    measured = None if manifest.certificate is None else read_certificate(bundle).measured
    device = measured.device_summary if measured else manifest.unverified or "not measured"
    precision = f"{manifest.precision} on {', '.join(manifest.devices)}"
    return f"`{folder or '.'}`", precision, size, quality, device


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    header = ("folder", "precision", "MB", "quality", "device")
    lines = [header, ("---", "---", "---:", "---", "---"), *rows]
    return "\n".join(f"| {' | '.join(_plain(cell) for cell in line)} |" for line in lines)


def use_of(manifest: Manifest, model: str) -> str | None:
    """A command that uses a bundle, called `model`, for its task; `None` if there is none."""
    output, use = manifest.output, _USES.get(_task(manifest))
    reads_images = manifest.source is not None and manifest.source.medium == "images"
    can_read = manifest.tokenizer is not None or reads_images or (output and output.labels)
    if use is None or not can_read or (output and output.kind == "states"):
        return None
    return f"ortolan {use.format(model=model)}"


def _commands(manifest: Manifest, folder: str, repository: str | None) -> str:
    model, extra = folder, ""
    if repository is not None:
        model, extra = f"{repository}:{folder}".rstrip(":"), "[hub]"
    lines = [f'pip install "ortolan-runtime{extra}"', f"ortolan verify {model}"]
    return "\n".join(["```sh", *lines, *filter(None, [use_of(manifest, model)]), "```"])


def _origin(bundles: Sequence[Bundle], folders: Sequence[str]) -> Iterator[str]:
    first = bundles[0].manifest.provenance
    origin = f"`{_plain(first.repository)}`, " if isinstance(first.repository, str) else ""
    yield f"checkpoint: {origin}SHA-256 `{first.source_sha256}`"
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    yield f"exported with {_plain(versions)}"
    for bundle, folder in zip(bundles, folders, strict=True):
        what = f"`{folder}` " if folder else ""
        own, witness = bundle.manifest.provenance, bundle.manifest.witness
        if witness is not None:
            yield f"{what}witness: {_plain(witness.summary)}"
        if own.calibrated_on is not None:
            yield f"{what}calibrated on {_plain(own.calibrated_on)}"
        if own.left_out:
            yield f"{what}leaves out {_plain(', '.join(own.left_out))}"


def _plain(text: str) -> str:
    """One line without characters that mean something in Markdown or HTML."""
    return "".join(" " if c in "\r\n" else c for c in text if c not in "|<>").strip()
