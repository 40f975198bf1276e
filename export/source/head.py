"""Opens a decoder with its head that predicts further tokens."""

from dataclasses import replace
from pathlib import Path

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.source.family import UNBUILT, open_family
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.modeling.checkpoint.folder import read_config_and_keys
from ortolan.modeling.checkpoint.mtp import mtp_checkpoint
from ortolan.modeling.config import DecoderConfig, ModelConfig
from ortolan.modeling.families.reader import ConfigKeys
from ortolan.runtime.bundle.parts import MTP, HiddenStates


def open_with_head(
    config: ModelConfig,
    keys: ConfigKeys,
    checkpoint: Checkpoint,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
    accept_unknown: tuple[str, ...] = (),
) -> Exportable:
    """A decoder whose graphs return states, with the head that reads them."""
    part = mtp_checkpoint(checkpoint)
    if not isinstance(config, DecoderConfig):
        raise OptionError("mtp needs a decoder. Leave it out.")

    def open_part(config: DecoderConfig, keys: ConfigKeys, source: Checkpoint) -> Exportable:
        config = replace(config, gives_states=True)
        return open_family(config, keys, source, tokenizer=tokenizer, max_context=max_context)

    size = config.hidden_size
    of_head = read_config_and_keys(part, DecoderConfig, accept_unknown=accept_unknown)
    mtp_head = replace(open_part(*of_head, part), hidden=HiddenStates(size=size))
    model = open_part(config, keys, checkpoint)
    hidden = HiddenStates(size=size, head=UNBUILT)
    return replace(model, hidden=hidden, parts={**model.parts, MTP: mtp_head})
