"""Opens a decoder with its head that predicts further tokens."""

from dataclasses import replace
from pathlib import Path

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.source.family import UNBUILT, open_family
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.modeling.checkpoint.folder import read_config
from ortolan.modeling.checkpoint.mtp import mtp_checkpoint
from ortolan.modeling.config import DecoderConfig, ModelConfig
from ortolan.runtime.bundle.parts import HiddenStates


def open_with_head(
    config: ModelConfig,
    checkpoint: Checkpoint,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
    accept_unknown: tuple[str, ...] = (),
) -> Exportable:
    """A decoder whose graphs return states, with the head that reads them.

    Same options and errors as `open_exportable`.
    """
    part = mtp_checkpoint(checkpoint)
    if not isinstance(config, DecoderConfig):
        raise OptionError("mtp needs a decoder. Leave it out.")

    def open_part(config: DecoderConfig, source: Checkpoint) -> Exportable:
        config = replace(config, gives_states=True)
        return open_family(
            config,
            source,
            tokenizer=tokenizer,
            max_context=max_context,
            accept_unknown=accept_unknown,
        )

    size = config.hidden_size
    head = open_part(read_config(part, accept_unknown=accept_unknown), part)
    head = replace(head, hidden=HiddenStates(size=size))
    model = open_part(config, checkpoint)
    return replace(model, hidden=HiddenStates(size=size, head=UNBUILT), head=head)
