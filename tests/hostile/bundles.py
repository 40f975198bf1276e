"""The bundles that are changed: the smallest of every kind, with all that a bundle may hold.

Those of `HANDMADE` take no time. Those of `EXPORTED` have the graphs that ortolan writes, and take
a minute: they are made in a process of their own, since the one that forks has neither PyTorch nor
a session of onnxruntime.

    python -m tests.hostile.bundles FOLDER
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.runtime import packed_bundles, tiny_decoder, tiny_encoder

from ortolan.runtime.bundle.manifest import Tokens

__all__ = ["EXPORTED", "HANDMADE", "KINDS", "Files", "read", "write"]

Files = dict[str, bytes]
"""Of a bundle: path within its folder to contents."""

TEMPLATE = b"""
{% for m in messages %}<bos>{{ m.role[0] }}:{{ m.content }}{{ eos_token }}{% endfor %}
{% if add_generation_prompt %}<bos>a:{% endif %}"""


def _decoder(folder: Path) -> None:
    tiny_decoder.write_bundle(
        folder,
        tokens=Tokens(bos=tiny_decoder.BOS, eos=(tiny_decoder.EOS,)),
        tokenizer=tiny_decoder.tokenizer_json(),
        others={"chat_template.jinja": TEMPLATE},
    )


def _int4(folder: Path) -> None:
    packed_bundles.write(folder, "int4-split", has_text=True)


def _recurrent(folder: Path) -> None:
    packed_bundles.write(folder, "recurrent", has_text=True)


def _encoder(folder: Path) -> None:
    tiny_encoder.write_bundle(folder, maps=True)


def _embedder(folder: Path) -> None:
    tiny_encoder.write_bundle(folder, kind="embedding")


def _image_encoder(folder: Path) -> None:
    tiny_encoder.write_bundle(folder, image=tiny_encoder.IMAGE)


HANDMADE: dict[str, Callable[[Path], None]] = {
    "decoder": _decoder,
    "decoder-int4": _int4,
    "recurrent": _recurrent,
    "encoder": _encoder,
    "embedder": _embedder,
    "image-encoder": _image_encoder,
}

EXPORTED = (
    *("exported-decoder", "exported-int4", "exported-packed", "exported-hybrid"),
    *("exported-encoder", "exported-images", "exported-seq2seq"),
)

KINDS = (*HANDMADE, *EXPORTED)


def write(folder: Path, kinds: tuple[str, ...]) -> None:
    """Write those bundles that are not there yet, each to a folder of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        if kind in HANDMADE and not (folder / kind).exists():
            HANDMADE[kind](folder / kind)
    if any(not (folder / kind).exists() for kind in kinds):
        subprocess.run([sys.executable, "-m", "tests.hostile.exports", folder], check=True)


def read(folder: Path, kind: str) -> Files:
    """The files of a bundle, those of its subfolders too."""
    root = folder / kind
    found = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}
