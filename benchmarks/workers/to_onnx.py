"""Export an encoder with transformers' own exporter, for onnxruntime's CPU kernels.

python -m workers.to_onnx CHECKPOINT MODEL fp32|int8

fp32 uses the exporter's fusions. int8 uses its dynamic quantization, which rejects fused graphs.
"""

import sys
from typing import Any

import torch
from transformers import AutoModel
from transformers.exporters.configs import OnnxConfig
from transformers.exporters.exporter_onnx import OnnxExporter
from transformers.exporters.quantizers.quantizer_onnxruntime import (
    OnnxRuntimeDynamicConfig,
    OnnxRuntimeQuantizer,
)

if __name__ == "__main__":
    checkpoint, folder, precision = sys.argv[1:]
    model: Any = AutoModel.from_pretrained(checkpoint, dtype=torch.float32, add_pooling_layer=False)
    ids = torch.ones(2, 8, dtype=torch.int64)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if precision == "fp32":
        config = OnnxConfig(dynamic=True, ort_fusions="cpu")
    else:
        quantizer = OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig())
        config = OnnxConfig(dynamic=True, quantizer=quantizer)
    exporter: Any = OnnxExporter  # its constructor has no annotations
    exporter().export(model.eval(), inputs, config=config).save_pretrained(folder)
