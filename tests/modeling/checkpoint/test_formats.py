"""Formats of weights: all have the same tensors, and files that are torn or hostile are refused."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion
from tests.modeling.checkpoint.formats import (
    FORMATS,
    NEW,
    OLD,
    Code,
    as_pickle,
    refused,
    saved_llama,
    write_format,
)
from tests.modeling.tiny_models import (
    LLAMA,
    assert_same_logits,
    random_text,
    reference_logits,
    reference_model,
)
from tests.refusals import refusal
from torch import Tensor

from ortolan.modeling import load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.pickles import read_pickle
from ortolan.modeling.checkpoint.safetensors import DTYPES, MAX_HEADER_BYTES, read_safetensors
from ortolan.modeling.checkpoint.shards import INDEX, MAX_INDEX_BYTES, PICKLE, SAFETENSORS
from ortolan.modeling.checkpoint.wrappers import unwrapped
from ortolan.modeling.lazy_tensor import whole_of

UP = "model.layers.0.mlp.up_proj.weight"

MAIN = "refs/main"

# --- every format -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_same_tensors(name: str, tmp_path: Path) -> None:
    source, tensors = open_checkpoint(write_format(name, tmp_path)).tensors, saved_llama()[0]
    assert source.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert source[name].shape == tensor.shape
        assert source[name].dtype == tensor.dtype
        assert torch.equal(whole_of(source[name]), tensor)
        assert torch.equal(source[name].read(3, 7), tensor[3:7])
    assert torch.equal(source[UP].read(3, 7, 1), tensors[UP][:, 3:7])
    ids = random_text(9)
    with torch.inference_mode():
        assert_same_logits(load(tmp_path)(ids), reference_logits(reference_model(LLAMA), ids))


@pytest.mark.parametrize("name", ["safetensors", "shards", "pickle", "pickles"])
def test_the_hash_covers_every_file(name: str, tmp_path: Path) -> None:
    digests = {open_checkpoint(write_format(name, tmp_path)).sha256()}
    assert open_checkpoint(write_format(name, tmp_path / "again")).sha256() in digests
    files = [file for file in tmp_path.iterdir() if file.is_file() and INDEX not in file.name]
    for file in files:
        content = file.read_bytes()
        is_text = file.suffix == ".json"
        file.write_bytes(content + b" " if is_text else content[:-1] + bytes([content[-1] ^ 1]))
        digests.add(open_checkpoint(tmp_path).sha256())
    assert len(digests) == 1 + len(files)


def test_safetensors_are_preferred_to_a_pickle(tmp_path: Path) -> None:
    write_format("safetensors", tmp_path)
    torch.save({"a": Code()}, tmp_path / PICKLE)
    assert load(tmp_path).config.model_type == "llama"


def test_the_snapshot_that_main_names_is_read(tmp_path: Path) -> None:
    write_format("cache", tmp_path)
    digests = {
        revision: open_checkpoint(tmp_path / "snapshots" / revision).sha256()
        for revision in (OLD, NEW)
    }
    for revision in (NEW, OLD):
        (tmp_path / MAIN).write_text(revision)
        assert open_checkpoint(tmp_path).sha256() == digests[revision]
    (tmp_path / MAIN).unlink()
    shutil.rmtree(tmp_path / "snapshots" / OLD)  # the only one needs no reference
    assert open_checkpoint(tmp_path).sha256() == digests[NEW]


def test_a_prefix_that_not_all_tensors_have_is_kept() -> None:
    tensors = {"module.weight": 1, "other.weight": 2, "a.module.weight": 3, "b._orig_mod": 4}
    assert unwrapped(tensors) == tensors
    assert unwrapped({}) == {}


# --- tensors of every type ----------------------------------------------------------------------


def test_slices_of_every_type_are_those_of_the_library(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 2, (7, 24), generator=random, dtype=torch.uint8)
    tensors: dict[str, Tensor] = {
        dtype: (bits.bool() if dtype == "BOOL" else bits.view(kind).clone())
        for dtype, kind in DTYPES.items()
    }
    file = tmp_path / SAFETENSORS
    save_file(tensors | {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4)}, file)
    source, expected = dict(read_safetensors(file)), load_file(file)
    for name, tensor in expected.items():
        for start, stop in ((0, 7), (2, 5), (6, 7), (3, 3), (5, 100)):
            read = source[name].read(start, stop)
            part = tensor[start:stop] if tensor.dim() else tensor
            assert (read.dtype, read.shape) == (part.dtype, part.shape)
            assert read.flatten().tolist() == part.flatten().tolist(), (name, start, stop)
    assert torch.equal(source["BF16"].read(1, 4, 1), expected["BF16"][:, 1:4])


def test_views_and_parameters_in_a_pickle_are_read_as_their_own_numbers(tmp_path: Path) -> None:
    base = torch.arange(60.0).view(6, 10)
    tensors = {
        "transposed": base.T,
        "cut": base[1:4, 2:7],
        "parameter": torch.nn.Parameter(torch.randn(3, 4)),
        "bf16": torch.randn(5, 3).bfloat16(),
        "empty": torch.empty(0, 4),
    }
    torch.save(tensors, tmp_path / PICKLE)
    read = dict(read_pickle(tmp_path / PICKLE))
    for name, tensor in tensors.items():
        assert whole_of(read[name]).dtype == read[name].dtype == tensor.dtype
        assert torch.equal(read[name].read(1, 3), tensor[1:3]), name
    assert torch.equal(read["transposed"].read(2, 5, 1), base.T[:, 2:5])


# --- refused ------------------------------------------------------------------------------------

Damage = Callable[[Path], object]


def removed(name: str) -> Damage:
    return lambda folder: next(folder.glob(name)).unlink()


def renamed(name: str) -> Damage:
    return lambda folder: (folder / SAFETENSORS).rename(folder / name)


def written(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def cut(name: str, size: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def huge(name: str, size: int, start: bytes = b"") -> Damage:
    """A file of holes."""

    def damage(folder: Path) -> None:
        (folder / name).write_bytes(start)
        os.truncate(folder / name, size)

    return damage


def with_header(header: bytes) -> Damage:
    return written(SAFETENSORS, struct.pack("<Q", len(header)) + header + bytes(4))


def quantized(dtype: torch.dtype) -> Damage:
    def damage(folder: Path) -> None:
        tensors = saved_llama()[0]
        save_file(tensors | {UP: tensors[UP].to(dtype)}, folder / SAFETENSORS)

    return damage


def in_index(place: object, name: str = f"{SAFETENSORS}{INDEX}") -> Damage:
    return written(name, json.dumps({"weight_map": {"model.norm.weight": place}}).encode())


def pickled(content: object, **options: bool) -> Damage:
    return lambda folder: torch.save(content, folder / PICKLE, **options)


def in_both_shards(folder: Path) -> None:
    first, second = sorted(folder.glob("*.safetensors"))
    repeated = min(load_file(first).items())
    save_file(load_file(second) | dict([repeated]), second)


def under_both_names(folder: Path) -> None:
    names = ("model.norm.weight", "_orig_mod.model.norm.weight")
    save_file({name: torch.zeros(1) for name in names}, folder / SAFETENSORS)


ENTRY = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'

BROKEN: dict[str, dict[str, Damage]] = {
    "safetensors": {
        "absent": removed(SAFETENSORS),
        **{f"named {name}": renamed(name) for name in ("model.pt", "consolidated.00.pth")},
        **{f"cut to {size}": cut(SAFETENSORS, size) for size in (0, 1, 7, 8, 9, 100, -1)},
        "LFS pointer": written(SAFETENSORS, b"version https://git-lfs.github.com/spec/v1\n" * 9),
        "a huge header": huge(
            SAFETENSORS, MAX_HEADER_BYTES + 100, struct.pack("<Q", MAX_HEADER_BYTES + 1)
        ),
        "a list as header": with_header(b"[]"),
        "a torn header": with_header(b"{"),
        "no text as header": with_header(b"\xff\xfe\xfd"),
        "a shape beyond the data": with_header(b'{"a":' + ENTRY.replace(b"[1]", b"[99]") + b"}"),
        "a negative shape": with_header(b'{"a":' + ENTRY.replace(b"[1]", b"[-1]") + b"}"),
        "an unknown type": with_header(b'{"a":' + ENTRY.replace(b"F32", b"F99") + b"}"),
        "a tensor twice": with_header(b'{"a":' + ENTRY + b',"a":' + ENTRY + b"}"),
        "two names of one tensor": under_both_names,
        **{
            f"weights in {dtype}": quantized(dtype)
            for dtype in (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.bool)
        },
    },
    "shards": {
        "absent shard": removed("*1-of*"),
        "a tensor in both": in_both_shards,
        **{
            f"a shard named {name!r}": in_index(name)
            for name in (
                *("../model.safetensors", "/etc/model.safetensors", "folder/model.safetensors"),
                *("./model.safetensors", "..", "", "\0.safetensors", "pytorch_model.bin"),
                *(7, None, ["model.safetensors"]),
            )
        },
        **{
            f"{content!r} as index": written(f"{SAFETENSORS}{INDEX}", content)
            for content in (
                *(b"", b'{"weight_map": {', b"[]", b"{}"),
                *(b'{"weight_map": []}', b'{"weight_map": {}}'),
            )
        },
        "a huge index": huge(f"{SAFETENSORS}{INDEX}", MAX_INDEX_BYTES + 1),
    },
    "pickle": {
        **{f"cut to {size}": cut(PICKLE, size) for size in (0, 3, 4, 100, 5000, -1)},
        "code": pickled(saved_llama()[0] | {"a": Code()}),
        "a module": pickled(torch.nn.Linear(2, 2)),
        "a list": pickled([1, 2]),
        "a number": pickled({"a": 1}),
        "tensors below a name": pickled({"model": {"a": torch.ones(2)}}),
        "the old format": pickled({"a": torch.ones(2)}, _use_new_zipfile_serialization=False),
        "integers": lambda folder: as_pickle(
            folder, saved_llama()[0] | {UP: torch.ones(48, 32, dtype=torch.int8)}
        ),
    },
    "pickles": {
        "absent shard": removed("*2-of*"),
        "a shard elsewhere": in_index("../pytorch_model.bin", f"{PICKLE}{INDEX}"),
    },
    "cache": {
        "no reference": removed(MAIN),
        "an absent snapshot": written(MAIN, b"3" * 40),
        "an absent config": removed(f"blobs/{NEW}/config.json"),
        "absent weights": removed(f"blobs/{NEW}/{SAFETENSORS}"),
        "no snapshots": lambda folder: shutil.rmtree(folder / "snapshots"),
    },
}

ROWS = [(name, damage) for name, damages in BROKEN.items() for damage in damages]


@pytest.mark.parametrize(("name", "damage"), ROWS)
def test_broken_files_are_refused(
    name: str, damage: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    write_format(name, tmp_path)
    BROKEN[name][damage](tmp_path)
    assert refused(tmp_path) == snapshot


def test_other_paths_are_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    write_format("safetensors", tmp_path)
    os.mkfifo(tmp_path / "tokenizer.json")
    companion = open_checkpoint(tmp_path).companion
    assert refusal(lambda: companion("tokenizer.json"), tmp_path) == snapshot
    assert refused(tmp_path / "nowhere") == snapshot
    assert refused(tmp_path / SAFETENSORS) == snapshot


def test_a_file_that_became_shorter_and_an_unknown_type_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    source = open_checkpoint(write_format("safetensors", tmp_path)).tensors
    monkeypatch.delitem(DTYPES, "F32")
    assert refusal(lambda: source[UP].read(0, 1), tmp_path) == snapshot
    monkeypatch.undo()
    os.truncate(tmp_path / SAFETENSORS, 4000)
    last = max(source)
    assert refusal(lambda: source[last].read(0, 9), tmp_path) == snapshot
