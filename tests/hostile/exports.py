"""Exports the bundles in `bundles.EXPORTED`, which takes a minute.

python -m tests.hostile.exports FOLDER
"""

import argparse
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests import quick_exports
from tests.export import (
    models_of_kinds,
    tiny_contrast,
    tiny_dinov3,
    tiny_gemma3,
    tiny_llava,
    tiny_models,
    tiny_qwen3_asr,
    tiny_qwen3_vl,
    tiny_tiles,
)
from tests.export.test_hybrids import every_kind
from tests.modeling.kinds import decoder
from tests.runtime import tiny_translators
from tests.runtime.transcription import tiny_moonshine, tiny_wav2vec2, tiny_whisper

import ortolan
from ortolan.export.options import ExportOptions, Int4
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.pack.write import pack

Make = Callable[[Path, Path], object]
"""Function of a working folder and of the folder for the bundle."""

INT4 = Int4(method="rtn", group_size=32)
COARSE = ExportOptions(max_kl=5.0)


def _decoder(work: Path, out: Path) -> None:
    source = tiny_models.write_checkpoint(work / "source", tiny_models.decoder(tiny_models.llama()))
    ortolan.export(source, out)


def _int4(work: Path, out: Path) -> None:
    source = tiny_models.write_checkpoint(work / "source", tiny_models.decoder(tiny_models.gpt2()))
    ortolan.export(source, out, precision=INT4, options=COARSE)


def _packed(work: Path, out: Path) -> None:
    _int4(work, out)
    pack(open_bundle(out))


def _hybrid(work: Path, out: Path) -> None:
    ortolan.export(decoder(every_kind()), out)


def _encoder(work: Path, out: Path) -> None:
    tokenizer = models_of_kinds.write_wrapping_tokenizer(work)
    module = models_of_kinds.module_of(models_of_kinds.encoder_config())
    ortolan.export(module, out, options=ExportOptions(tokenizer=tokenizer))


def _images(work: Path, out: Path) -> None:
    ortolan.export(models_of_kinds.module_of(models_of_kinds.image_config()), out)


def _registers(work: Path, out: Path) -> None:
    tiny_dinov3.write(work / "source")
    ortolan.export(work / "source", out)


def _reader(work: Path, out: Path) -> None:
    tiny_llava.write(work / "source")
    ortolan.export(work / "source", out)


def _tiles(work: Path, out: Path) -> None:
    tiny_tiles.write(work / "source", "smolvlm")
    ortolan.export(work / "source", out)


def _gazer(work: Path, out: Path) -> None:
    tiny_gemma3.write(work / "source")
    ortolan.export(work / "source", out)


def _patches(work: Path, out: Path) -> None:
    tiny_contrast.write(work / "source", "siglip2")
    ortolan.export(work / "source", out)


def _oversized(work: Path, out: Path) -> None:
    tiny_tiles.write(work / "source", "lfm2_vl")
    ortolan.export(work / "source", out)


def _grids(work: Path, out: Path) -> None:
    tiny_qwen3_vl.write(work / "source")
    ortolan.export(work / "source", out)


def _hearer(work: Path, out: Path) -> None:
    tiny_qwen3_asr.write(work / "source")
    ortolan.export(work / "source", out)


def _listener(work: Path, out: Path) -> None:
    tiny_whisper.write_whisper(work / "source")
    ortolan.export(work / "source", out)


def _speller(work: Path, out: Path) -> None:
    tiny_wav2vec2.write_wav2vec2(work / "source")
    ortolan.export(work / "source", out)


def _writer(work: Path, out: Path) -> None:
    tiny_moonshine.write_moonshine(work / "source")
    ortolan.export(work / "source", out)


def _seq2seq(work: Path, out: Path) -> None:
    tiny_translators.write_bundle("t5", work)
    (work / "bundle").rename(out)


MAKES: dict[str, Make] = {
    "exported-decoder": _decoder,
    "exported-int4": _int4,
    "exported-packed": _packed,
    "exported-hybrid": _hybrid,
    "exported-encoder": _encoder,
    "exported-images": _images,
    "exported-registers": _registers,
    "exported-reader": _reader,
    "exported-tiles": _tiles,
    "exported-patches": _patches,
    "exported-oversized": _oversized,
    "exported-grids": _grids,
    "exported-gazer": _gazer,
    "exported-hearer": _hearer,
    "exported-listener": _listener,
    "exported-writer": _writer,
    "exported-speller": _speller,
    "exported-seq2seq": _seq2seq,
}


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        logging.getLogger("torch.__trace").disabled = True  # `quick_exports` would let it propagate
        quick_exports.install(Path(work, "traces"))
        for kind, make in MAKES.items():
            if not (folder / kind).exists():
                place = Path(work, kind)
                place.mkdir()
                make(place, folder / kind)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
