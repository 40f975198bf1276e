"""The head of a checkpoint that predicts one more token (multi-token prediction, "MTP").

Published as the layer after the last one (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2). Here it
is a checkpoint of its own: a decoder of one layer that reads, with each token, the state of the
model before it. It shares the embedding and the output head of the model.
"""

from collections.abc import Mapping
from dataclasses import replace

from ortolan.modeling.checkpoint.checkpoint import Checkpoint, Source, open_checkpoint
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.families.reader import READS_STATES

KINDS: Mapping[str, Mapping[str, object]] = {
    name: {"num_hidden_layers": 1, "first_k_dense_replace": 0}
    for name in ("deepseek_v3", "glm4_moe")
}
"""Values of the head's config that differ from the model's, by `model_type`."""

SHARED = ("model.embed_tokens.weight", "lm_head.weight")

JOINED = {name: f"model.{name}" for name in ("enorm.weight", "hnorm.weight", "eh_proj.weight")}

RENAMED: Mapping[str, str | None] = {
    **JOINED,
    "shared_head.norm.weight": "model.norm.weight",
    # copies of the model's
    "embed_tokens.weight": None,
    "shared_head.head.weight": None,
}
"""Names of a layer's tensors in the head's checkpoint, unless they are those of any layer."""


def mtp_checkpoint(source: Source) -> Checkpoint:
    """The head of a checkpoint that predicts one more token, for `load` and `read_config`."""
    whole = open_checkpoint(source)
    model_type, layers = whole.values.get("model_type"), whole.values.get("num_hidden_layers")
    kind = KINDS.get(model_type) if isinstance(model_type, str) else None
    if kind is None:
        raise CheckpointError(
            f"{model_type}: no head that predicts further tokens is known for this model type; "
            f"only for {', '.join(KINDS)}. Leave out mtp."
        )
    layer = f"model.layers.{layers}."
    if not any(name.startswith(layer) for name in whole.tensors):
        raise CheckpointError(
            f"{whole.folder}: this checkpoint has no head that predicts further tokens; it would "
            f"be {layer}*. Leave out mtp."
        )

    def rename(name: str) -> str | None:
        own = name.removeprefix(layer)
        if own == name:
            return name if name in SHARED else None
        return RENAMED.get(own, f"model.layers.0.{own}")

    return replace(
        whole,
        values={**whole.values, **kind, READS_STATES: True},
        open_tensors=lambda: whole.opened.of_part(rename),
    )
