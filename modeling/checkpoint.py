"""Checkpoint folders in the format of Hugging Face: safetensors and a config.json.

A file is opened for one slice and closed again, so that nothing stays mapped and reading a
model costs the memory of the slice. Pickles are refused: loading one runs its code.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ortolan.modeling.config import DynamicNTKScaling, RotaryPositions, TransformerConfig
from ortolan.modeling.errors import CheckpointError, ConfigError
from ortolan.modeling.families import family_of
from ortolan.modeling.families.reader import MAX_SIZE, ConfigReader
from ortolan.modeling.linear import packed_rows
from ortolan.modeling.positions import tables
from ortolan.modeling.transformer import Decoder
from ortolan.modeling.weights import MappedWeights, map_weights, published_pieces

MAX_HEADER_BYTES = 8 << 20
"""A header of zero-size tensors costs a thousand times its size to parse."""

MAX_CONFIG_BYTES = 1 << 20

MAX_INDEX_BYTES = 16 << 20

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""What weights may be stored in; anything else is quantized, and means nothing by itself."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class SafetensorsFolder:
    """The tensors of one or many safetensors files.

    Raises:
        CheckpointError: no such files, only pickles, or a file that is torn.
    """

    def __init__(self, path: Path) -> None:
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in _weight_files(path):
            for name, shape in _read_header(file):
                if name in self._files:
                    raise CheckpointError(
                        f"{file.name}: expected each tensor once, got {name} again "
                        f"(first in {self._files[name].name}). Remove the stale file."
                    )
                self._files[name] = file
                self._shapes[name] = shape

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return dict(self._shapes)

    def files(self) -> list[Path]:
        """The files, sorted by name."""
        return sorted(set(self._files.values()))

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """The slice `[start:stop]` along `axis` of one tensor, in its stored dtype.

        Raises:
            CheckpointError: it is stored in something other than floating point.
        """
        with safe_open(str(self._files[name]), framework="pt") as file:
            view = file.get_slice(name)
            piece: Tensor = view[start:stop] if axis == 0 else view[:, start:stop]
            if piece.dtype not in FLOATS:
                raise CheckpointError(
                    f"{name}: expected bf16, fp16 or fp32, got {piece.dtype}. "
                    "Export the checkpoint that this one was quantized from."
                )
            return piece.clone()


def read_config(path: str | Path) -> TransformerConfig:
    """The config of a checkpoint folder.

    Raises:
        CheckpointError: no folder, or no readable config.json in it.
        ConfigError: a family that Ortolan does not have, or a config it does not understand.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: expected a checkpoint folder, got none. Check the path.")
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(
            f"{folder}: expected a Hugging Face checkpoint with config.json, got no such file. "
            "Check the path."
        )
    return config_from_hf(_read_json(file, MAX_CONFIG_BYTES))


def config_from_hf(values: dict[str, object]) -> TransformerConfig:
    """A `TransformerConfig` from the values of a Hugging Face config.

    Raises:
        ConfigError: a family that Ortolan does not have, or a value it does not understand.
    """
    reader = ConfigReader(values)
    family = family_of(reader.get("model_type", str))
    config = family.config(reader)
    reader.refuse("add_cross_attention")
    reader.finish()
    return config


def open_weights(path: str | Path, config: TransformerConfig) -> MappedWeights:
    """The weights of a checkpoint folder by our names, read when asked for.

    Raises:
        WeightError: names every weight that is missing, unexpected or of the wrong shape.
        CheckpointError: the files cannot be read.
    """
    family, module = family_of(config.model_type), empty_decoder(config)
    return map_weights(
        SafetensorsFolder(Path(path)),
        family.WEIGHTS,
        {name: tuple(p.shape) for name, p in module.named_parameters()},
        packed_rows(module),
        base_model_prefix=family.BASE_MODEL_PREFIX,
    )


def empty_decoder(config: TransformerConfig) -> Decoder:
    """A decoder of the right shape without memory for its weights (device "meta")."""
    with torch.device("meta"):
        return Decoder(config)


def load(path: str | Path, *, max_context: int | None = None) -> Decoder:
    """Load a checkpoint folder as a float32 module in evaluation mode.

    Args:
        path: a folder with config.json and one or many safetensors (bf16, fp16 or fp32).
        max_context: tokens that shall fit; the config's own by default.

    Raises:
        CheckpointError: the folder is not a checkpoint that can be read.
        ConfigError: the config asks for something that Ortolan does not have.
        WeightError: names every weight that is missing, unexpected or of the wrong shape.
    """
    config = read_config(path)
    weights = open_weights(path, config)
    limited = limit_context(config, max_context)
    module = empty_decoder(limited)
    # A shorter context needs only the first rows of a learned table.
    state = {
        name: weights.rows(name, 0, parameter.shape[0]).to(torch.float32)
        for name, parameter in module.named_parameters()
    }
    module.load_state_dict(state, assign=True)
    for name, table in tables(limited).items():
        module.register_buffer(name, table, persistent=False)
    return module.eval()


def limit_context(config: TransformerConfig, max_context: int | None) -> TransformerConfig:
    """The same model with room for `max_context` tokens.

    Raises:
        ConfigError: more than the model's positions reach.
    """
    if max_context is None:
        return config
    match config.positions:
        case RotaryPositions(scaling=DynamicNTKScaling()):
            longest = MAX_SIZE
        case _:
            longest = config.context_length
    if not 1 <= max_context <= longest:
        raise ConfigError(
            f"max_context: expected 1 to {longest}, got {max_context}. "
            "The model's positions reach no further."
        )
    return replace(config, context_length=max_context)


def save(module: Decoder, path: str | Path, *, dtype: torch.dtype | None = None) -> None:
    """Write a checkpoint folder that Hugging Face transformers loads to the same logits.

    Args:
        module: a decoder; its config names the family whose format is written.
        path: a folder, made if absent; config.json and model.safetensors are replaced.
        dtype: what to store the weights in; as they are by default.

    Raises:
        WeightError: a weight has no place in the family's format.
        ConfigError: the config cannot be written in the family's format.
    """
    family = family_of(module.config.model_type)
    values = family.hf_config(module.config)
    _check_reads_back(values, module.config)
    packed = packed_rows(module)
    tensors: dict[str, Tensor] = {}
    for ours, parameter in module.named_parameters():
        weight = parameter.detach().cpu().to(dtype or parameter.dtype)
        pieces = published_pieces(family.WEIGHTS, ours, packed.get(ours, weight.shape[:1]))
        for piece, rows in zip(pieces, torch.split(weight, [p.rows for p in pieces]), strict=True):
            tensors[piece.name] = (rows.T if piece.transposed else rows).contiguous()
    values["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed when complete: training saves over the checkpoint it would lose otherwise.
    partial = folder / "model.safetensors.partial"
    save_file(tensors, str(partial), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n")
    partial.replace(folder / "model.safetensors")


def _check_reads_back(values: dict[str, object], config: TransformerConfig) -> None:
    """Raise ConfigError if a published config would be read as another model."""
    read = config_from_hf(values)
    changed = [f.name for f in fields(config) if getattr(read, f.name) != getattr(config, f.name)]
    if changed:
        raise ConfigError(
            f"{config.model_type}: expected a model that its format can describe, got one whose "
            f"{', '.join(changed)} would be read back differently. Save it as another family."
        )


def checkpoint_sha256(path: str | Path) -> str:
    """A hash over config.json and every weight file, names and contents."""
    folder = Path(path)
    digest = sha256()
    for file in [folder / "config.json", *SafetensorsFolder(folder).files()]:
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files of a folder: the only one, or (as transformers does) an index's."""
    index, single = path / "model.safetensors.index.json", path / "model.safetensors"
    if single.is_file():
        return [single]
    if index.is_file():
        return _indexed_files(path, index)
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise CheckpointError(
            f"{path / pickles[0]}: expected safetensors, got a pickle, which can run code when "
            "loaded. In a place you trust, convert it with transformers: "
            "AutoModelForCausalLM.from_pretrained(SOURCE).save_pretrained(TARGET)."
        )
    raise CheckpointError(
        f"{path}: expected model.safetensors or model.safetensors.index.json, got neither. "
        "Check the path."
    )


def _indexed_files(path: Path, index: Path) -> list[Path]:
    """The files that an index names, all of them beside it."""
    entries = _read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(
            f"{index}: expected an object weight_map, got {entries!r:.80}. "
            "The download is incomplete."
        )
    files = []
    for name in sorted(set(map(str, entries.values()))):
        file = path / name
        if file.name != name or file.suffix != ".safetensors":
            raise CheckpointError(
                f"{index}: expected names of safetensors files beside it, got {name!r:.80}. "
                "Do not trust this checkpoint."
            )
        if not file.is_file():
            raise CheckpointError(
                f"{index}: expected {name} beside it, got no such file. The download is incomplete."
            )
        files.append(file)
    return files


def _read_json(file: Path, limit: int) -> dict[str, object]:
    """The object in a JSON file of at most `limit` bytes."""
    size = file.stat().st_size
    if size > limit:
        raise CheckpointError(
            f"{file}: expected at most {limit} bytes, got {size}. This is not a {file.name}."
        )
    try:
        values = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: expected JSON, got {error}. Fetch it again.") from error
    if not isinstance(values, dict):
        raise CheckpointError(
            f"{file}: expected a JSON object, got {type(values).__name__}. Fetch it again."
        )
    return values


def _read_header(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one file, its header bounded before it is parsed."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
    size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
    if not 0 < size <= min(MAX_HEADER_BYTES, file.stat().st_size):
        raise CheckpointError(
            f"{file}: expected a safetensors header of at most {MAX_HEADER_BYTES} bytes, "
            f"got {size}. The file is torn, or a pointer that was never fetched."
        )
    try:
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                yield name, tuple(tensors.get_slice(name).get_shape())
    except SafetensorError as error:
        raise CheckpointError(
            f"{file}: expected a whole safetensors file, got {error}. Fetch it again."
        ) from error
