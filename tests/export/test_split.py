"""Split graphs where attention is not a single node."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.modeling.kinds import ATTENTION, BLOCK, RMS, VOCAB, decoder, decoder_config
from torch import Tensor, nn

import ortolan
from ortolan.export.options import ExportOptions, Graphs
from ortolan.modeling.config import BlockConfig, LatentConfig, RotaryPositions
from ortolan.modeling.state import State

pytestmark = pytest.mark.slow

PROMPT, STEPS = 11, 8


def layer(head_dim: int, rotated: int, **fields: Any) -> BlockConfig:
    rotary = RotaryPositions(dim=rotated, theta=30.0)
    return replace(
        BLOCK, mixer=replace(ATTENTION, head_dim=head_dim, rotary=rotary, **fields), norm=RMS
    )


LATENT = LatentConfig(query_rank=12, rank=10, rotated=6, norm=RMS, bias=False)

BLOCKS = {
    "heads of 12": layer(12, 12),
    "heads of 20": layer(20, 6, num_kv_heads=2, sliding_window=5),
    "6 rotated": layer(16, 6, query_key_norm=RMS),
    "latent": layer(14, 6, value_dim=10, latent=LATENT, qkv_bias=False),
}
"""Layers whose heads the fused kernel does not support."""


def assert_continues(folder: Path, whole: Tensor, ids: list[int]) -> None:
    """Compare a prompt and steps with the logits of PyTorch for the whole text."""
    model = ortolan.load(folder, ortolan.Decoder, threads=1)
    wanted = whole.numpy()
    limit = 1e-4 * float(np.abs(wanted).max())
    np.testing.assert_allclose(model.logits(ids), wanted, rtol=0, atol=limit)
    with model.session() as session:
        got = [session.append(ids[:PROMPT]), *(session.append([each]) for each in ids[PROMPT:])]
    np.testing.assert_allclose(got, wanted[PROMPT - 1 :], rtol=0, atol=limit)


@pytest.mark.parametrize(
    "name", ["heads of 12", *(pytest.param(name, marks=pytest.mark.slow) for name in [*BLOCKS][1:])]
)
def test_a_layer_without_a_kernel_continues_as_pytorch_computes_it(
    tmp_path: Path, name: str
) -> None:
    module = decoder(decoder_config(RotaryPositions(dim=6), (BLOCKS[name],)))
    options = ExportOptions(graphs="split", proof="quick")
    ortolan.export(module, tmp_path / "bundle", options=options)
    ids = torch.randint(VOCAB, (1, PROMPT + STEPS), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert_continues(tmp_path / "bundle", module(ids)[0], ids[0].tolist())


class Attentive(nn.Module):
    """Attention with an unsupported head width, optionally token by token."""

    context_length = 32

    def __init__(self, *, one_by_one: bool) -> None:
        super().__init__()
        self.one_by_one = one_by_one
        self.embed = nn.Embedding(VOCAB, 24)
        self.qkv = nn.Linear(24, 3 * 24)
        self.cell = nn.GRUCell(24, 24)

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        q, k, v = self.qkv(x).unflatten(-1, (6, 12)).transpose(1, 2).chunk(3, 1)
        x = x + state.attend(0, q, k, v).transpose(1, 2).flatten(2)
        if self.one_by_one:
            hidden, out = state.recall("hidden", (24,), x), []
            for token in state.tokens(x):
                hidden = self.cell(token, hidden)
                out.append(hidden)
            state.keep("hidden", hidden)
            x = x + torch.stack(out, 1)
        logits: Tensor = x @ self.embed.weight.T
        return logits


@pytest.mark.parametrize(
    ("one_by_one", "graphs"),
    [pytest.param(True, "unified", marks=pytest.mark.slow), (False, "split")],
)
def test_an_own_module_attends_in_steps_of_one_token(
    tmp_path: Path, one_by_one: bool, graphs: Graphs
) -> None:
    torch.manual_seed(0)
    module = Attentive(one_by_one=one_by_one).eval()
    options = ExportOptions(graphs=graphs, proof="quick")
    ortolan.export(module, tmp_path / "bundle", options=options)
    ids = torch.randint(VOCAB, (1, PROMPT + STEPS))
    with torch.inference_mode():
        assert_continues(tmp_path / "bundle", module(ids, State.whole())[0], ids[0].tolist())
