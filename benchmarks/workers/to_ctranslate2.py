"""Convert a checkpoint with CTranslate2's own converter.

python -m workers.to_ctranslate2 CHECKPOINT MODEL QUANTIZATION
"""

import sys

from ctranslate2.converters import TransformersConverter  # type: ignore[import-not-found]

if __name__ == "__main__":
    checkpoint, model, quantization = sys.argv[1:]
    converter = TransformersConverter(checkpoint, copy_files=["tokenizer.json"])
    converter.convert(model, quantization=quantization)
