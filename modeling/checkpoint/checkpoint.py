"""A checkpoint as published: a folder, a folder of the Hugging Face cache, or a GGUF file.

All of them provide the values of a config and tensors by published names. Only the merging of
adapters asks the families Ortolan implements: which square weights they store transposed, and what
their head is called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

from ortolan.modeling.checkpoint.adapter import HEAD, Adapter, adapted
from ortolan.modeling.checkpoint.adapter_config import CONFIG as ADAPTER_CONFIG
from ortolan.modeling.checkpoint.adapter_config import read_adapter_config
from ortolan.modeling.checkpoint.contrast import kind_of
from ortolan.modeling.checkpoint.file_tensors import FileTensors
from ortolan.modeling.checkpoint.gguf.config import architecture_of, derived_files, hf_values
from ortolan.modeling.checkpoint.gguf.header import read_header
from ortolan.modeling.checkpoint.gguf.tensors import read_tensors
from ortolan.modeling.checkpoint.json_file import read_json
from ortolan.modeling.checkpoint.media_tower import media_tower
from ortolan.modeling.checkpoint.packed.unpacked import open_files
from ortolan.modeling.checkpoint.sentence_head import sentence_files
from ortolan.modeling.checkpoint.shards import weight_files
from ortolan.modeling.checkpoint.text_tower import (
    OF_MEDIA,
    text_tensors,
    text_values,
)
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.lazy_tensor import LazyTensor

CONFIG, GENERATION = "config.json", "generation_config.json"

GGUF = ".gguf"

TIED = "tie_word_embeddings"

TYPE = "model_type"

QUANTIZATION = "quantization_config"
"""Config key that describes how tensors are quantized; a `Checkpoint` dequantizes them."""

MAX_CONFIG_BYTES = 1 << 20

MAX_REF_BYTES = 1 << 10

BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trained model as published.

    Attributes:
        values: values of its config.json, in the format of Hugging Face transformers.
        folder: folder of the files next to its weights, such as tokenizer.json.
        open_tensors: opens the weight files.
        described_by: files other than the weights that the model's outputs depend on.
        derived: contents of files that a GGUF file replaces, by name; written on demand.
        media: the encoder of images or sounds, whose vectors this language model reads.
        adapter: the adapter that is merged into the tensors.
    """

    values: dict[str, object]
    folder: Path
    open_tensors: Callable[[], FileTensors]
    described_by: tuple[Path, ...] = ()
    derived: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    media: "Checkpoint | None" = None
    adapter: Adapter | None = None

    @cached_property
    def opened(self) -> FileTensors:
        """The weight files; see `tensors`."""
        return self.open_tensors()

    @property
    def tensors(self) -> Mapping[str, LazyTensor]:
        """Tensors by published names, read slice by slice.

        Raises:
            CheckpointError: the files are absent, torn, or cannot be read without running code.
        """
        return self.opened.tensors

    @property
    def is_quantized(self) -> bool:
        """Whether any weight is stored in fewer than 16 bits."""
        return self.opened.is_quantized

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the towers for other modalities, which are left out."""
        return () if self.media is not None else self.opened.left_out

    @property
    def texts(self) -> "Checkpoint | None":
        """The encoder of the texts that this encoder of images is compared with; None without."""
        kind = kind_of(self.values)
        return None if kind is None else replace(self, values=self.values | {TYPE: kind.texts})

    def of_text(self) -> "Checkpoint":
        """The language model alone, without the encoder that it reads."""
        values = {key: value for key, value in self.values.items() if key not in OF_MEDIA}
        return replace(self, values=values, media=None)

    def companion(self, name: str) -> Path | None:
        """A file next to the weights, such as tokenizer.json; None if there is none.

        Raises:
            CheckpointError: the file cannot be generated, or the path is not a file.
        """
        path = self.folder / name
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: must be a file, but is something else. Remove it.")
        if name in self.derived and not path.is_file():
            path.write_text(self.derived[name]())
        return path if path.is_file() else None

    def sha256(self) -> str:
        """Hash of the names and contents of all files that the model's outputs depend on."""
        digest = sha256()
        for file in (*self.described_by[:1], *self.opened.files, *self.described_by[1:]):
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(BLOCK_BYTES):
                    digest.update(block)
        return digest.hexdigest()


Source = str | Path | Checkpoint


def open_checkpoint(source: Source, *, adapter: str | Path | None = None) -> Checkpoint:
    """Open a checkpoint; its weights are opened when `Checkpoint.tensors` is first read."""
    if adapter is not None:
        return _adapted(open_checkpoint(source), _snapshot(Path(adapter)))
    if isinstance(source, Checkpoint):
        return source
    path = Path(source)
    if path.suffix == GGUF and path.is_file():
        return _open_gguf(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such checkpoint folder. Check the path.")
    return _open_folder(_snapshot(path))


def _adapted(base: Checkpoint, adapter: Path) -> Checkpoint:
    read_adapter_config(adapter)  # report its problems first
    merged, own = adapted(base.opened, adapter, base.values)
    return replace(
        base,
        values=base.values | ({TIED: False} if own.is_untied else {}),
        open_tensors=lambda: merged,
        described_by=(*base.described_by, adapter / ADAPTER_CONFIG),
        adapter=own,
    )


def _open_folder(folder: Path) -> Checkpoint:
    file = folder / CONFIG
    if not file.is_file() and (files := sorted(folder.glob(f"*{GGUF}"))):
        return _open_only(files)
    if not file.is_file():
        raise CheckpointError(
            f"{folder}: not a Hugging Face checkpoint; it has no config.json. Check the path."
        )
    values = read_json(file, MAX_CONFIG_BYTES)
    quantization = values.pop(QUANTIZATION, None)
    if not isinstance(quantization, dict | None):
        raise CheckpointError(
            f"{file}: {QUANTIZATION} must be an object (got {quantization!r:.80})."
        )
    whole = Checkpoint(
        values=values,
        folder=folder,
        open_tensors=partial(open_tensors, folder, quantization),
        described_by=(file, *sentence_files(folder)),
    )
    text = text_values(values)
    return whole if text is None else _multimodal(whole, text)


def _multimodal(whole: Checkpoint, text: dict[str, object]) -> Checkpoint:
    """The language model of a checkpoint, with its encoder where Ortolan computes it."""
    tower, media, opened = media_tower(whole.values), None, partial(text_tensors, whole.opened)
    if tower is not None:
        text |= tower.text
        media = replace(
            whole,
            values=tower.values,
            open_tensors=partial(whole.opened.of_part, tower.rename),
        )
    # Configs with towers omit this key or get it wrong, so look at the weights.
    text[TIED] = HEAD not in opened().tensors
    return replace(whole, values=text, open_tensors=opened, media=media)


def _open_only(files: list[Path]) -> Checkpoint:
    """Open the only GGUF file of a folder."""
    if len(files) > 1:
        raise CheckpointError(
            f"{files[0].parent}: found {len(files)} GGUF files. Pass one of them: "
            f"{', '.join(file.name for file in files):.300}."
        )
    return _open_gguf(files[0])


def _open_gguf(file: Path) -> Checkpoint:
    header = read_header(file)
    values = hf_values(header)
    folder = Path(mkdtemp(prefix="ortolan-"))
    # Tensors keep the header alive, so the folder lasts as long as they do.
    finalize(header, rmtree, folder, ignore_errors=True)
    checkpoint = Checkpoint(
        values=values,
        folder=folder,
        open_tensors=partial(read_tensors, header, architecture_of(header)),
        derived=derived_files(header, values),
    )
    for name in (CONFIG, GENERATION):
        checkpoint.companion(name)
    return checkpoint


def open_tensors(folder: Path, quantization: dict[str, object] | None = None) -> FileTensors:
    """Open the weight files of a folder."""
    return open_files(weight_files(folder), quantization)


def _snapshot(path: Path) -> Path:
    """Resolve a folder `models--*` of the Hugging Face cache; return other folders unchanged.

    `snapshots/REVISION/` holds the files, and `refs/main` names the latest revision.
    """
    snapshots, main = path / "snapshots", path / "refs" / "main"
    if (path / CONFIG).is_file() or not snapshots.is_dir():
        return path
    revisions = sorted(entry for entry in snapshots.iterdir() if entry.is_dir())
    if main.is_file() and main.stat().st_size <= MAX_REF_BYTES:
        revision = main.read_text(errors="replace").strip()
        named = [entry for entry in revisions if entry.name == revision]
        if not named:
            raise CheckpointError(
                f"{path}: refs/main names snapshots/{revision:.80}, which does not exist. Download "
                "the model again."
            )
        return named[0]
    if len(revisions) != 1:
        names = ", ".join(entry.name for entry in revisions) or "none"
        raise CheckpointError(
            f"{path}: no refs/main, and not exactly one snapshot ({names:.200}). Pass the folder "
            "of a snapshot."
        )
    return revisions[0]
