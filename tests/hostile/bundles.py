"""Bundles to change: the smallest of every kind, with all parts a bundle may have.

`HANDMADE` bundles are written at once. `EXPORTED` ones have the graphs that Ortolan writes; they
take a minute, in a process of their own, since the one that forks must not load PyTorch.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.runtime import packed_bundles, tiny_decoder, tiny_encoder

from ortolan.runtime.bundle.manifest import Tokens

Files = dict[str, bytes]
"""Contents of a bundle by path within its folder."""

TEMPLATE = b"""
{% for m in messages %}<bos>{{ m.role[0] }}:{{ m.content }}{{ eos_token }}{% endfor %}
{% if add_generation_prompt %}<bos>a:{% endif %}"""

HANDMADE: dict[str, Callable[[Path], object]] = {
    "decoder": partial(
        tiny_decoder.write_bundle,
        tokens=Tokens(bos=tiny_decoder.BOS, eos=(tiny_decoder.EOS,)),
        tokenizer=tiny_decoder.tokenizer_json(),
        others={"chat_template.jinja": TEMPLATE},
    ),
    "decoder-int4": partial(packed_bundles.write, kind="int4-split", has_text=True),
    "recurrent": partial(packed_bundles.write, kind="recurrent", has_text=True),
    "encoder": partial(tiny_encoder.write_bundle, maps=True),
    "embedder": partial(tiny_encoder.write_bundle, kind="embedding"),
    "image-encoder": partial(tiny_encoder.write_bundle, image=tiny_encoder.IMAGE),
}

EXPORTED = (
    *("exported-decoder", "exported-int4", "exported-packed", "exported-hybrid"),
    *("exported-encoder", "exported-images", "exported-registers"),
    *("exported-reader", "exported-listener"),
    *("exported-tiles", "exported-patches", "exported-oversized", "exported-grids"),
    "exported-gazer",
    "exported-hearer",
    *("exported-writer", "exported-speller", "exported-seq2seq"),
)

KINDS = (*HANDMADE, *EXPORTED)


def write(folder: Path, kinds: tuple[str, ...]) -> None:
    """Write missing bundles, each to a folder of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        if kind in HANDMADE and not (folder / kind).exists():
            HANDMADE[kind](folder / kind)
    if any(not (folder / kind).exists() for kind in kinds):
        subprocess.run([sys.executable, "-m", "tests.hostile.exports", folder], check=True)


def read(folder: Path, kind: str) -> Files:
    root = folder / kind
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
