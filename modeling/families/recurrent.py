"""Recurrent networks, with attention or with a memory, in a format of Ortolan's own.

`config.json` is flat. `cell` is `rnn`, `gru` or `lstm`, or with a memory `feed_forward` too;
`attention_size` adds additive attention to the network's own states (Bahdanau et al. 2015),
`memory_slots` makes it a Neural Turing Machine (Graves et al. 2014).
"""

from typing import cast, get_args

from ortolan.modeling.config import CellKind, MemoryConfig, RecurrentConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Table, Target

_NAMES = (
    "embedding.weight",
    *(f"cells.{{}}.{kind}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")),
    *(f"cells.{{}}.{kind}" for kind in ("weight", "bias")),
    "attention.query.weight",
    "attention.key.weight",
    "attention.key.bias",
    "attention.score.weight",
    "memory.heads.weight",
    "memory.heads.bias",
    "memory.initial",
    "join.weight",
    "join.bias",
    "head.weight",
)

_WEIGHTS: Table = {name: Target(name) for name in _NAMES}


def _config(hf: ConfigReader) -> RecurrentConfig:
    cell = hf.get("cell", str)
    if cell not in get_args(CellKind):
        raise ConfigError(
            f"{hf.name}: cell must be one of {', '.join(get_args(CellKind))} (got {cell!r:.80}). "
            "Correct it."
        )
    return RecurrentConfig(
        **hf.model_fields(),
        hidden_size=hf.size("hidden_size"),
        vocab_size=hf.size("vocab_size"),
        context_length=hf.size("max_position_embeddings"),
        cell=cast(CellKind, cell),
        num_layers=hf.size("num_hidden_layers", 1, most=MAX_LAYERS),
        attention_size=hf.size("attention_size", None),
        memory=_memory(hf),
        tied_head=hf.get("tie_word_embeddings", bool, False),
    )


def _hf_config(config: RecurrentConfig) -> dict[str, object]:
    memory = config.memory
    values: dict[str, object] = {
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "cell": config.cell,
        "num_hidden_layers": config.num_layers,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "pad_token_id": config.pad_token_id,
    }
    if config.attention_size is not None:
        values["attention_size"] = config.attention_size
    if memory is not None:
        values |= {
            "memory_slots": memory.slots,
            "memory_width": memory.width,
            "read_heads": memory.read_heads,
            "write_heads": memory.write_heads,
            "shift_range": memory.shift_range,
        }
    return values


def _memory(hf: ConfigReader) -> MemoryConfig | None:
    slots = hf.size("memory_slots", None)
    if slots is None:
        return None
    return MemoryConfig(
        slots=slots,
        width=hf.size("memory_width"),
        read_heads=hf.size("read_heads", 1),
        write_heads=hf.size("write_heads", 1),
        shift_range=hf.size("shift_range", 1),
    )


FAMILIES: dict[str, Family[RecurrentConfig]] = {
    "recurrent": Family(config=_config, weights=_WEIGHTS, hf_config=_hf_config)
}
