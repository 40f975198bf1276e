"""Exports bundles to change, which takes a minute.

python -m tests.hostile.exports FOLDER
"""

import argparse
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import quick_exports
from tests.cases import contrast, grids, images, tiles
from tests.cases.modules import HYBRID
from tests.export import (
    models_of_kinds,
    tiny_dinov3,
    tiny_models,
    tiny_qwen3_asr,
)
from tests.hostile.bundles import EXPORTED
from tests.modeling.tiny_models import reference_model
from tests.runtime import tiny_translators
from tests.runtime.transcription import tiny_moonshine, tiny_wav2vec2, tiny_whisper
from tests.tiny.decoders import GPT2

import ortolan
from ortolan.export.options import ExportOptions, Int4
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.pack.write import pack

LOW_BIT = ("exported-int4", "exported-packed")


def _decoder(folder: Path) -> Any:
    return tiny_models.write_checkpoint(folder, tiny_models.decoder(tiny_models.llama()))


def _gpt2(folder: Path) -> Any:
    reference_model(GPT2).save_pretrained(folder)
    return tiny_models.write_companions(folder)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "exported-decoder": _decoder,
    **dict.fromkeys(LOW_BIT, _gpt2),
    "exported-hybrid": HYBRID.write,
    "exported-encoder": lambda _: models_of_kinds.module_of(models_of_kinds.encoder_config()),
    "exported-images": lambda _: models_of_kinds.module_of(models_of_kinds.image_config()),
    "exported-registers": tiny_dinov3.write,
    "exported-reader": images.write_llava,
    "exported-tiles": lambda folder: tiles.write(folder, "smolvlm"),
    "exported-oversized": lambda folder: tiles.write(folder, "lfm2_vl"),
    "exported-patches": lambda folder: contrast.write(folder, "siglip2"),
    "exported-grids": grids.write_qwen,
    "exported-gazer": images.write_gemma,
    "exported-hearer": tiny_qwen3_asr.write,
    "exported-listener": tiny_whisper.write_whisper,
    "exported-writer": tiny_moonshine.write_moonshine,
    "exported-speller": tiny_wav2vec2.write_wav2vec2,
}
"""Writes a checkpoint to a folder, or returns a module that was not published."""


def make(kind: str, work: Path, out: Path) -> None:
    """Export a bundle."""
    if kind == "exported-seq2seq":
        tiny_translators.write_bundle("t5", work)
        (work / "bundle").rename(out)
        return
    own = SOURCES[kind](work / "source")
    source = work / "source"
    options: dict[str, Any] = {}
    if kind in LOW_BIT:
        int4 = Int4(method="rtn", group_size=32)
        options = {"precision": int4, "options": ExportOptions(max_kl=5.0)}
    if kind == "exported-encoder":
        tokenizer = models_of_kinds.write_wrapping_tokenizer(work)
        options = {"options": ExportOptions(tokenizer=tokenizer)}
    ortolan.export(source if source.exists() else own, out, **options)
    if kind == "exported-packed":
        pack(open_bundle(out))


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        logging.getLogger("torch.__trace").disabled = True  # `quick_exports` would let it propagate
        quick_exports.install(Path(work, "traces"))
        for kind in EXPORTED:
            if not (folder / kind).exists():
                place = Path(work, kind)
                place.mkdir()
                make(kind, place, folder / kind)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
