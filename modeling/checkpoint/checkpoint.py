"""A checkpoint as people have it: a folder, a folder of the hub's cache, or one file.

What it holds is the same for all of them: the values of a config and tensors by published names.
Neither depends on the families that Ortolan has.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

from ortolan.modeling.checkpoint.adapter import CONFIG as ADAPTER_CONFIG
from ortolan.modeling.checkpoint.adapter import Adapted, read_adapter_config
from ortolan.modeling.checkpoint.gguf.config import hf_values
from ortolan.modeling.checkpoint.gguf.file import made_files
from ortolan.modeling.checkpoint.gguf.file import open_tensors as gguf_tensors
from ortolan.modeling.checkpoint.gguf.header import read_header
from ortolan.modeling.checkpoint.json_file import read_json
from ortolan.modeling.checkpoint.packed.unpacked import FileTensors, Unpacked
from ortolan.modeling.checkpoint.pickles import Pickles
from ortolan.modeling.checkpoint.safetensors import Safetensors
from ortolan.modeling.checkpoint.sentence_head import sentence_files
from ortolan.modeling.checkpoint.shards import SAFETENSORS, weight_files
from ortolan.modeling.checkpoint.text_tower import TextTensors, text_values
from ortolan.modeling.errors import CheckpointError

CONFIG, GENERATION = "config.json", "generation_config.json"

GGUF = ".gguf"

HEAD = "lm_head.weight"

QUANTIZATION = "quantization_config"
"""The key of a config that says how tensors are stored: those of a `Checkpoint` are floats."""

MAX_CONFIG_BYTES = 1 << 20

MAX_REF_BYTES = 1 << 10

BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trained model as it was published.

    Attributes:
        values: of its config.json, as Hugging Face transformers knows them.
        folder: where the files beside its weights are: tokenizer.json, generation_config.json.
        open_tensors: opens the files of the weights.
        described_by: files beside the weights that a model's outputs depend on.
        made: files that a single file stands for, by name; they are written into the folder when
            they are asked for.
    """

    values: dict[str, object]
    folder: Path
    open_tensors: Callable[[], FileTensors]
    described_by: tuple[Path, ...] = ()
    made: Mapping[str, Callable[[], str]] = field(default_factory=dict)

    @cached_property
    def tensors(self) -> FileTensors:
        """Its tensors by published names, read a slice at a time.

        Raises:
            CheckpointError: the files are absent, torn, or cannot be read without running code.
        """
        return self.open_tensors()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Towers of a model for more than texts, by name: only its language model is here."""
        tensors = self.tensors
        return tensors.left_out if isinstance(tensors, TextTensors | Adapted) else ()

    def companion(self, name: str) -> Path | None:
        """A file beside the weights, such as tokenizer.json; None where there is none.

        Raises:
            CheckpointError: it has to be made, and cannot be; or it is there, and no file.
        """
        path = self.folder / name
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: expected a file, got something else. Remove it.")
        if name in self.made and not path.is_file():
            path.write_text(self.made[name]())
        return path if path.is_file() else None

    def sha256(self) -> str:
        """A hash over the names and contents of every file that the model's outputs depend on."""
        digest = sha256()
        for file in (*self.described_by[:1], *self.tensors.files(), *self.described_by[1:]):
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(BLOCK_BYTES):
                    digest.update(block)
        return digest.hexdigest()


Source = str | Path | Checkpoint


def open_checkpoint(source: Source, *, adapter: str | Path | None = None) -> Checkpoint:
    """Open a checkpoint; its weights are looked at when `Checkpoint.tensors` is read.

    Args:
        source: a folder with config.json and weights, a folder `models--*` of the hub's cache, a
            GGUF file, or a checkpoint, which is returned.
        adapter: a folder of PEFT, or one of the hub's cache, to merge into the weights.

    Raises:
        CheckpointError: no such folder or file, or no readable config in it.
    """
    if adapter is not None:
        return _adapted(open_checkpoint(source), _snapshot(Path(adapter)))
    if isinstance(source, Checkpoint):
        return source
    path = Path(source)
    if path.suffix == GGUF and path.is_file():
        return _open_gguf(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: expected a checkpoint folder, got none. Check the path.")
    return _open_folder(_snapshot(path))


def _adapted(base: Checkpoint, adapter: Path) -> Checkpoint:
    read_adapter_config(adapter)  # so that what is wrong with it is said first

    def merged() -> FileTensors:
        return Adapted(base.tensors, adapter)

    described_by = (*base.described_by, adapter / ADAPTER_CONFIG)
    return replace(base, open_tensors=merged, described_by=described_by)


def _open_folder(folder: Path) -> Checkpoint:
    file = folder / CONFIG
    if not file.is_file() and (files := sorted(folder.glob(f"*{GGUF}"))):
        return _open_only(files)
    if not file.is_file():
        raise CheckpointError(
            f"{folder}: expected a Hugging Face checkpoint with config.json, got no such file. "
            "Check the path."
        )
    values = read_json(file, MAX_CONFIG_BYTES)
    quantization = values.pop(QUANTIZATION, None)
    if not isinstance(quantization, dict | None):
        raise CheckpointError(
            f"{file}: expected {QUANTIZATION} to be an object, got {quantization!r:.80}. "
            "Correct it."
        )
    text = text_values(values)
    opened = partial(open_tensors, folder, quantization, only_text=text is not None)
    if text is not None:
        # Some of these configs say it beside the towers, some do not, and some are wrong.
        text["tie_word_embeddings"] = HEAD not in opened().shapes()
    return Checkpoint(
        values=values if text is None else text,
        folder=folder,
        open_tensors=opened,
        described_by=(file, *sentence_files(folder)),
    )


def _open_only(files: list[Path]) -> Checkpoint:
    """The only GGUF file of a folder."""
    if len(files) > 1:
        raise CheckpointError(
            f"{files[0].parent}: expected one GGUF file, got {len(files)}. Give one of them: "
            f"{', '.join(file.name for file in files):.300}."
        )
    return _open_gguf(files[0])


def _open_gguf(file: Path) -> Checkpoint:
    header = read_header(file)
    values = hf_values(header)
    folder = Path(mkdtemp(prefix="ortolan-"))
    # The header is kept by the tensors: the folder lasts as long as what was read from the file.
    finalize(header, rmtree, folder, ignore_errors=True)
    checkpoint = Checkpoint(
        values=values,
        folder=folder,
        open_tensors=partial(gguf_tensors, header, values),
        made=made_files(header, values),
    )
    for name in (CONFIG, GENERATION):
        checkpoint.companion(name)
    return checkpoint


def open_tensors(
    folder: Path, quantization: dict[str, object] | None = None, *, only_text: bool = False
) -> FileTensors:
    """The tensors of the files of weights in a folder.

    Args:
        folder: of the files.
        quantization: how the config says that they are quantized.
        only_text: leave out what is not of the language model.

    Raises:
        CheckpointError: the files are absent, torn, or cannot be read without running code.
    """
    files = weight_files(folder)
    is_safe = files[0].suffix == Path(SAFETENSORS).suffix
    tensors = Unpacked(Safetensors(files) if is_safe else Pickles(files), quantization)
    return TextTensors(tensors) if only_text else tensors


def _snapshot(path: Path) -> Path:
    """The snapshot of a folder `models--*` of the hub's cache; any other folder as it is.

    The layout: `snapshots/REVISION/` has the files, `refs/main` names the revision that was last
    asked for.

    Raises:
        CheckpointError: there is none, or nothing says which of several.
    """
    snapshots, main = path / "snapshots", path / "refs" / "main"
    if (path / CONFIG).is_file() or not snapshots.is_dir():
        return path
    found = sorted(entry for entry in snapshots.iterdir() if entry.is_dir())
    if main.is_file() and main.stat().st_size <= MAX_REF_BYTES:
        revision = main.read_text(errors="replace").strip()
        named = [entry for entry in found if entry.name == revision]
        if not named:
            raise CheckpointError(
                f"{path}: expected snapshots/{revision:.80}, which refs/main names, got no such "
                "folder. Download the model again."
            )
        return named[0]
    if len(found) != 1:
        names = ", ".join(entry.name for entry in found) or "none"
        raise CheckpointError(
            f"{path}: expected refs/main to name one of the snapshots, got no such file and "
            f"{names:.200}. Give the folder of a snapshot."
        )
    return found[0]
