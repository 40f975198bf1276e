"""Tensors that quantizers and training leave in a checkpoint next to its weights."""

import re

IDLE = re.compile(
    # of the KV cache, and of the inputs and outputs of products, which stay floats here
    r"\.([kvq]|prob|input|output|activation)_(scale|zero_point|global_scale)$"
    # the state of bitsandbytes next to a weight that was dequantized
    r"|\.weight\.((nested_)?(absmax|quant_map)|quant_state\.bitsandbytes__\w+)$"
    r"|\.(SCB|weight_format)$"
)
"""Names of tensors that change nothing next to weights that are floats."""

ADVICE = {
    r"\.(lora_\w+|base_layer|modules_to_save|original_module)\.": (
        "It holds an unmerged PEFT adapter. Save merge_and_unload() of the PeftModel, or export "
        "the base checkpoint with --adapter."
    ),
    r"fake_quant|activation_post_process|_quantizer\.": (
        "It was saved while it was trained for quantization. Convert it to plain weights first, "
        "with the tool that it was trained with."
    ),
    r"\.(q?weight_packed|qweight|qzeros|g_idx|scales|weight_(scale(_inv)?|zero_point|shape))$": (
        "Its weights were quantized, but config.json does not describe how. Restore its "
        "quantization_config, or export the checkpoint that this one was quantized from."
    ),
    r"_(orig|mask)$": (
        "It was saved while it was pruned. Call torch.nn.utils.prune.remove, and save it again."
    ),
    r"\.parametrizations\.": (
        "It was saved with parametrizations. Call "
        "torch.nn.utils.parametrize.remove_parametrizations, and save it again."
    ),
}
"""Advice about unexpected tensors, by a pattern of their names."""


def is_idle(name: str) -> bool:
    """Whether a tensor that a model does not expect changes nothing, because weights are floats."""
    return IDLE.search(name) is not None


def advice(problem: str) -> str | None:
    """Return advice about an unexpected tensor; None if no pattern matches its name."""
    return next((text for pattern, text in ADVICE.items() if re.search(pattern, problem)), None)
