"""The config of a PEFT adapter, and which of them are plain LoRA."""

from pathlib import Path

from ortolan.modeling.checkpoint.json_file import read_json
from ortolan.modeling.errors import CheckpointError

CONFIG = "adapter_config.json"

MAX_CONFIG_BYTES = 1 << 20

MERGE = "Merge it with PEFT, merge_and_unload(), and export the saved result."

READ = (
    *("peft_type", "lora_alpha", "alpha_pattern", "use_rslora", "init_lora_weights"),
    "base_model_name_or_path",
)
"""Config keys that decide what an adapter computes or where it belongs."""

INERT = (
    *("task_type", "auto_mapping", "peft_version", "revision", "inference_mode", "runtime_config"),
    # The names and shapes of the stored tensors tell these.
    *("r", "rank_pattern", "target_modules", "exclude_modules", "modules_to_save", "bias"),
    *("layers_to_transform", "layers_pattern", "fan_in_fan_out", "ensure_weight_tying"),
    # Only for training.
    *("lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
    *("megatron_config", "megatron_core", "qalora_group_size"),
)
"""Config keys that change nothing here. Any other one belongs to a method other than plain LoRA,
and must be off."""

STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base checkpoint unchanged."""


def read_adapter_config(folder: Path) -> dict[str, object]:
    """Read the config of an adapter."""
    file = folder / CONFIG
    if not file.is_file():
        inner = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}"))
        where = f"Pass one of its folders: {', '.join(inner):.200}." if inner else "Check the path."
        raise CheckpointError(f"{folder}: not a PEFT adapter; it has no {CONFIG}. {where}")
    values = read_json(file, MAX_CONFIG_BYTES)
    if values.get("peft_type") != "LORA":
        raise _unsupported(file, "peft_type", values.get("peft_type"))
    for key in sorted(values.keys() - {*READ, *INERT}):
        if values[key]:
            raise _unsupported(file, key, values[key])
    start = values.get("init_lora_weights")
    if start not in STARTS:
        # The others change the weights of the checkpoint.
        raise _unsupported(file, "init_lora_weights", start)
    return values


def _unsupported(file: Path, key: str, value: object) -> CheckpointError:
    return CheckpointError(f"{file}: {key} {value!r:.80} is not supported. {MERGE}")
