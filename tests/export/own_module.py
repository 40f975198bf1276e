"""An unusual module of a user, and one with the common layers of PyTorch."""

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
    """Queries, optional keys and values, and an mlp."""

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
    """A convolution, a window, two widths of attention, and a layer that shares keys."""

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
    """A module whose weights are large enough to matter."""
    torch.manual_seed(0)
    module = Unusual()
    for parameter in module.parameters():
        parameter.data.normal_(0, 0.3)
    return module.eval()


class Ordinary(nn.Module):
    """The common operators of PyTorch modules, once each."""

    context_length = 32

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH), nn.GroupNorm(4, WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.prelu = nn.PReLU()
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        layer_norm, rms_norm, group_norm = self.norms
        q, k, v = self.qkv(layer_norm(x)).unflatten(-1, (12, 8)).transpose(1, 2).chunk(3, 1)
        x = x + state.attend(0, q, k, v).transpose(1, 2).flatten(2)
        activations = (
            *(F.relu, F.relu6, F.silu, F.gelu, F.elu, F.selu, F.celu, F.mish, F.softplus),
            *(F.leaky_relu, F.hardswish, F.hardsigmoid, F.hardtanh, F.softsign, F.logsigmoid),
            *(torch.tanh, torch.sigmoid, torch.erf, torch.sin, torch.cos, torch.abs, torch.sign),
            *(torch.floor, torch.ceil, torch.round, torch.square, torch.neg, self.prelu),
        )
        for activation in activations:
            x = x + activation(x) / len(activations)
        y = rms_norm(x)
        positive = y.abs() + 1
        x = x + positive.log() + positive.sqrt() + positive.rsqrt() + positive.reciprocal()
        x = x + positive.pow(0.7) + torch.exp(-positive) + torch.log1p(positive)
        x = x + torch.minimum(y, x) + torch.maximum(y, -x) + y.clamp(-1, 1)
        x = x + torch.where((y > 0.5) | (y <= -0.5), y, -y) + y.masked_fill(~(y < x), 0.25)
        x = x + (y >= x).to(x.dtype) + (ids == 3).logical_and(ids != 4)[..., None].to(x.dtype)
        x = x + y.softmax(-1) + y.log_softmax(-1) + y.cumsum(-1) / WIDTH
        sums = y.mean(-1, keepdim=True) + y.amax(-1, keepdim=True) + y.amin(-1, keepdim=True)
        x = x + sums + y.var(-1, keepdim=True) + y.norm(dim=-1, keepdim=True)
        x = x + y.logsumexp(-1, keepdim=True) + y.prod(-1, keepdim=True)
        x = x + torch.einsum("btc,dc->btd", y, self.qkv.weight[:WIDTH])
        x = x + torch.cat([y[..., ::2], y.flip(-1)[..., 1::2]], -1) + y.roll(1, -1)
        x = x + group_norm(y.flatten(0, 1)).unflatten(0, ids.shape)
        x = x + F.normalize(y, dim=-1) + y.repeat(1, 1, 2)[..., :WIDTH]
        logits: Tensor = self.head(F.glu(torch.cat([x, y], -1)))
        return logits


def ordinary() -> Ordinary:
    """With random weights."""
    torch.manual_seed(0)
    return Ordinary().eval()


class Attentive(nn.Module):
    """Attention with an unsupported head width, optionally token by token."""

    context_length = 32

    def __init__(self, *, one_by_one: bool) -> None:
        super().__init__()
        self.one_by_one = one_by_one
        self.embed = nn.Embedding(31, 24)
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
