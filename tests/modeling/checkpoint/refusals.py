"""How a checkpoint is refused."""

from pathlib import Path

import pytest

from ortolan.modeling import CheckpointError, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint


def refused(source: Path, adapter: Path | None = None) -> str:
    """The one-line message with which a checkpoint is refused."""
    with pytest.raises(CheckpointError) as caught:
        load(open_checkpoint(source, adapter=adapter))
    message = str(caught.value)
    assert "\n" not in message
    return message
