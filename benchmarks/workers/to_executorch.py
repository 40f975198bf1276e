"""Convert a Llama checkpoint to a program of ExecuTorch for XNNPACK, with its own exporter.

    python -m workers.to_executorch CHECKPOINT FOLDER [GROUP_SIZE EMBEDDING]

Without the last two, weights stay in float32. GROUP_SIZE is of 4-bit matrices, and EMBEDDING is
BITS,GROUP_SIZE of the table, as in ExecuTorch's configuration. Supports only Llama.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from executorch.examples.models.llama.export_llama_lib import export_llama
from executorch.extension.llm.export.config.llm_config import LlmConfig
from safetensors.torch import load_file

CONTEXT = 1024  # tokens; the program plans its memory for them

NAMES = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "model.layers": "layers",
    "lm_head": "output",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}
"""Parts of the names of weights, and ExecuTorch's names of them."""


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All weights by ExecuTorch's names, in float32; the head is stored even if it is tied."""
    named = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            for theirs, ours in NAMES.items():
                name = name.replace(theirs, ours)
            named[name] = tensor.float()
    named.setdefault("output.weight", named["tok_embeddings.weight"])
    return named


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's configuration by ExecuTorch's names.

    Raises:
        ValueError: the checkpoint is not a Llama.
    """
    if config["model_type"] != "llama":
        raise ValueError(f"the checkpoint must be a llama (got {config['model_type']}).")
    scaling = config.get("rope_scaling") or {"rope_type": "default"}
    rotary = config.get("rope_parameters") or {"rope_theta": config["rope_theta"], **scaling}
    scaled = rotary["rope_type"] == "llama3"
    return {
        "dim": config["hidden_size"],
        "hidden_dim": config["intermediate_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "head_dim": config["head_dim"],
        "vocab_size": config["vocab_size"],
        "norm_eps": config["rms_norm_eps"],
        "rope_theta": rotary["rope_theta"],
        "use_hf_rope": True,
        "use_scaled_rope": scaled,
        **({"rope_scale_factor": int(rotary["factor"])} if scaled else {}),
    }


def main() -> None:
    """Write FOLDER/model.pte."""
    checkpoint, folder, *quantized = sys.argv[1:]
    out = Path(folder)
    out.mkdir()
    config = json.loads((Path(checkpoint) / "config.json").read_text(encoding="utf-8"))
    params, stored = out / "params.json", out / "weights.pth"
    params.write_text(json.dumps(parameters(config)), encoding="utf-8")
    torch.save(weights(Path(checkpoint)), stored)
    export = LlmConfig()
    export.base.checkpoint, export.base.params = str(stored), str(params)
    export.model.use_kv_cache = export.model.use_sdpa_with_kv_cache = True
    export.export.max_seq_length = export.export.max_context_length = CONTEXT
    export.export.output_name = str(out / "model.pte")
    export.backend.xnnpack.enabled = export.backend.xnnpack.extended_ops = True
    if quantized:
        group_size, embedding = quantized
        export.quantization.qmode = "8da4w"
        export.quantization.group_size = int(group_size)
        export.quantization.embedding_quantize = embedding
    export_llama(export)
    stored.unlink()
    params.unlink()


if __name__ == "__main__":
    main()
