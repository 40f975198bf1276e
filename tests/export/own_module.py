"""A user's own module, as unusual as they come."""

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.state import State

VOCAB, WIDTH = 61, 32


class Rotation(nn.Module):
    """Tables of cosines and sines, `(P, R/2)` each."""

    cos: Tensor
    sin: Tensor

    def __init__(self, channels: int, positions: int) -> None:
        super().__init__()
        rates = 100.0 ** (-torch.arange(0, channels, 2) / channels)
        angles = torch.arange(positions)[:, None] * rates
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self) -> tuple[Tensor, Tensor]:
        return self.cos, self.sin


class Layer(nn.Module):
    """Queries, perhaps keys and values of its own, and an mlp."""

    def __init__(self, heads: int, kv_heads: int, width: int) -> None:
        super().__init__()
        self.shape = heads, kv_heads, width
        self.norm = nn.RMSNorm(WIDTH)
        self.q = nn.Linear(WIDTH, heads * width)
        self.kv = nn.Linear(WIDTH, 2 * kv_heads * width, bias=False) if kv_heads else None
        self.out = nn.Linear(heads * width, WIDTH, bias=False)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH)
        )

    def queries(self, x: Tensor) -> Tensor:
        return torch.unflatten(self.q(x), -1, (self.shape[0], -1)).transpose(1, 2)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert self.kv is not None
        key, value = (
            torch.unflatten(self.kv(x), -1, (2 * self.shape[1], -1)).transpose(1, 2).chunk(2, 1)
        )
        return key, value


class Unusual(nn.Module):
    """A convolution, a window, two widths of attention, and a layer with the keys of another."""

    context_length = 64

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.taps = nn.Parameter(torch.randn(WIDTH, 3) / 3)
        self.layers = nn.ModuleList([Layer(4, 2, 16), Layer(2, 1, 24), Layer(4, 0, 16)])
        self.rotation = Rotation(16, self.context_length)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        x = x + F.silu(state.convolve("taps", x.transpose(1, 2), self.taps)).transpose(1, 2)
        for number, layer in enumerate(cast(Iterable[Layer], self.layers)):
            h = layer.norm(x)
            if number == 0:
                key, value = layer.keys(h)
                out = state.attend(
                    0, layer.queries(h), key, value, rotary=self.rotation(), window=7
                )
            elif number == 1:
                out = state.attend(1, layer.queries(h), *layer.keys(h), softcap=20.0)
            else:
                out = state.attend(0, layer.queries(h), rotary=self.rotation())
            x = x + layer.out(out.transpose(1, 2).flatten(2))
            x = x + layer.mlp(x)
        return F.linear(self.norm(x), self.embed.weight)


def unusual() -> Unusual:
    """With weights large enough that each of them matters."""
    torch.manual_seed(0)
    module = Unusual()
    for parameter in module.parameters():
        parameter.data.normal_(0, 0.3)
    return module.eval()
