"""Small user modules that read other tokens only through their state."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.state import State

VOCAB, WIDTH, HEADS = 61, 16, 2


class Base(nn.Module):
    """An embedding, attention through the state, an mlp, and a head."""

    context_length = 640

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.head = nn.Linear(WIDTH, VOCAB)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2).chunk(3, 1)
        return q, k, v

    def block(self, x: Tensor, state: State, **options: Any) -> Tensor:
        x = x + state.attend(0, *self.heads(x), **options).transpose(1, 2).flatten(2)
        out: Tensor = x + self.mlp(x)
        return out

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        return x

    def after(self, x: Tensor) -> Tensor:
        return x

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x = self.after(self.block(self.before(ids, state), state))
        logits: Tensor = self.head(x)
        return logits


class LearnedPositions(Base):
    """A table of positions and a tied head, as in GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(self.context_length, WIDTH)

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x = self.embed(ids) + self.places(state.positions(ids))
        return F.linear(self.block(x, state), self.embed.weight)


class OwnRotary(Base):
    """Queries and keys rotated before attention by the module itself."""

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        rates = 100.0 ** (-torch.arange(0, 8, 2) / 8)
        angles = state.positions(ids)[:, None, :, None] * rates
        cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
        q, k, v = self.heads(x)

        def turn(y: Tensor) -> Tensor:
            first, second = y.chunk(2, -1)
            return y * cos + torch.cat([-second, first], -1) * sin

        x = x + state.attend(0, turn(q), turn(k), v, window=33).transpose(1, 2).flatten(2)
        out: Tensor = self.head(x)
        return out


class TableRotary(Base):
    """Tables of the whole context passed to the state, and a softcap of scores and logits."""

    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(self.context_length)[:, None] * 10.0 ** -torch.arange(4)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x = self.block(self.embed(ids), state, rotary=(self.cos, self.sin), softcap=20.0)
        return 5 * torch.tanh(self.head(F.rms_norm(x, (WIDTH,))) / 5)


class Alibi(Base):
    """Attention with distances in the scores, over the keys of all tokens so far."""

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        q, k, v = (y.transpose(1, 2).flatten(2) for y in self.heads(x))
        keys, seen = state.extend("keys", torch.cat([k, v], -1))
        k, v = keys.chunk(2, -1)
        distance = state.positions(ids)[..., None] - torch.arange(keys.shape[1])
        scores = (q @ k.transpose(1, 2)) / math.sqrt(WIDTH) - 0.1 * distance
        weights = scores.masked_fill(~seen, -1e9).softmax(-1)
        out: Tensor = self.head(x + weights @ v)
        return out


class Experts(Base):
    """The two best of four experts for each token, over flattened rows."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.Parameter(torch.randn(4, WIDTH, WIDTH) / 4)

    def after(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        routed = torch.zeros(flat.shape[0], 4).scatter(1, chosen, weights / weights.sum(-1, True))
        out = torch.einsum("nw,ewv->nev", flat, self.experts)
        return x + (out * routed[..., None]).sum(1).view_as(x)


class GatheredExperts(Experts):
    """The weights of the best expert gathered for each token, and through one-hot vectors."""

    def after(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        best = self.router(flat).argmax(-1)
        share = self.router(flat).softmax(-1)[torch.arange(flat.shape[0]), best]
        out = torch.einsum("nw,nwv->nv", flat, self.experts[best])
        hot: Tensor = F.one_hot(best, 4).to(x.dtype) @ self.router.weight
        mixed: Tensor = out * share[:, None] + hot
        return x + mixed.view_as(x)


class Convolved(Base):
    """Channels convolved by the state, and a group norm within each token."""

    def __init__(self) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.randn(WIDTH, 4) / 4)
        self.groups = nn.GroupNorm(4, WIDTH)

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        x = x + F.silu(state.convolve("taps", x.transpose(1, 2), self.taps)).transpose(1, 2)
        flat: Tensor = self.groups(x.flatten(0, 1))
        return flat.view_as(x)


class Summed(Base):
    """A continued sum, and every token joined with the one before it."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        sums = x.cumsum(1) + state.recall("sum", (WIDTH,), x)[:, None]
        state.keep("sum", sums[:, -1])
        last = state.recall("last", (WIDTH,), x)
        shifted = torch.cat([last[:, None], x[:, :-1]], 1)
        state.keep("last", x[:, -1])
        return x + torch.tanh(sums) * 0.1 + (x - shifted) * 0.3


class Looped(Base):
    """A cell that reads its tokens one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        hidden = state.recall("hidden", (WIDTH,), x)
        outputs = []
        for token in state.tokens(x):
            hidden = self.cell(token, hidden)
            outputs.append(hidden)
        state.keep("hidden", hidden)
        out: Tensor = self.head(x + torch.stack(outputs, 1))
        return out


class Linear(Base):
    """Linear attention with decay: a matrix within the chunk, a state before it."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        q, k, v = (y.transpose(1, 2).flatten(2) for y in self.heads(x))
        count = x.shape[1]
        place = torch.arange(count)
        decay = torch.where(
            place[:, None] >= place, 0.9 ** (place[:, None] - place).clamp(min=0).float(), 0.0
        )
        before = state.recall("sums", (WIDTH, WIDTH), x)
        inside = (q @ k.transpose(1, 2) * decay) @ v
        out = inside + (q * 0.9 ** (place + 1)[:, None].float()) @ before
        rest = (k * 0.9 ** (count - 1 - place)[:, None].float()).transpose(1, 2) @ v
        state.keep("sums", before * 0.9**count + rest)
        return x + out / 4


class Shared(Base):
    """A second layer reads the keys of the first; parallel branches, a gate, an unused mean."""

    def after(self, x: Tensor) -> Tensor:
        self.balance = x.mean((0, 1)).square().sum()  # a training loss
        return x * torch.sigmoid(x.mean(-1, keepdim=True)) + x.sort(-1).values + x.cumsum(-1) / 9

    def block(self, x: Tensor, state: State, **options: Any) -> Tensor:
        x = super().block(x, state)
        q = self.heads(x)[0]
        return x + state.attend(0, q).transpose(1, 2).flatten(2)


class Normed(Base):
    """Batch norm with running statistics, masked padding, a branch on positions."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(WIDTH)

    def before(self, ids: Tensor, state: State) -> Tensor:
        x = self.embed(ids).masked_fill((ids == 3)[..., None], 0.25)
        x = self.batch(x.transpose(1, 2)).transpose(1, 2)
        place = state.positions(ids)[..., None]
        return torch.where(place > 200, x * 2, x) + torch.zeros(x.shape[1], WIDTH)


class Rare(Base):
    """Rare operators along channels, and the previous token by its id."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        last = state.recall("last", (1,), self.embed.weight[:1].expand(ids.shape[0], -1))
        before = torch.cat([last.long(), ids[:, :-1]], 1)
        state.keep("last", ids[:, -1:].to(last.dtype))
        pair: Tensor = self.embed(ids) + self.embed((ids * 31 + before * 7) % VOCAB)
        return pair

    def after(self, x: Tensor) -> Tensor:
        x = F.normalize(x, dim=-1) + x.logsumexp(-1, keepdim=True)
        x = x + x.unfold(-1, 2, 2).sum(-1).repeat(1, 1, 2)
        x = x + F.glu(torch.cat([x, x], -1)).repeat(1, 1, 2)[..., :WIDTH]
        with torch.no_grad():
            return torch.stack([self.mlp(x), x, x.argsort(-1).float()], -1).mean(-1)


class Grouped(Base):
    """Fewer keys than queries, values wider than keys, a window, and sinks."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, 4 * 8), nn.Linear(WIDTH, 8 + 12)
        self.sinks, self.out = nn.Parameter(torch.randn(4)), nn.Linear(4 * 12, WIDTH)

    def block(self, x: Tensor, state: State, **options: Any) -> Tensor:
        q = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = self.kv(x)[:, None].split((8, 12), -1)
        out = state.attend(0, q, k, v, window=21, scale=0.2, sinks=self.sinks)
        mixed: Tensor = x + self.out(out.transpose(1, 2).flatten(2))
        return mixed


class Delta(Base):
    """Linear attention of the state with a decay and the delta rule."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        q, k, v = self.heads(x)
        k = F.normalize(k, dim=-1)
        decay = F.logsigmoid(x[..., :HEADS].transpose(1, 2)) / 8
        rate = torch.sigmoid(x[..., -HEADS:].transpose(1, 2))
        out = state.recur("delta", q, k, v, decay=decay, rate=rate, scale=0.3)
        return x + out.transpose(1, 2).flatten(2)


class Selective(Base):
    """A selective scan token by token after a convolution, without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.taps, self.rates = nn.Parameter(torch.randn(WIDTH, 3) / 3), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        x = F.silu(state.convolve("taps", x.transpose(1, 2), self.taps)).transpose(1, 2)
        hidden, out = state.recall("hidden", (WIDTH,), x), []
        for token in state.tokens(x):
            rate = torch.sigmoid(self.rates(token))
            hidden = rate * hidden + (1 - rate) * token
            out.append(hidden)
        state.keep("hidden", hidden)
        logits: Tensor = self.head(torch.stack(out, 1) + x)
        return logits


class Retained(Base):
    """Retention with decaying weights, over the vectors of all tokens so far."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        vectors, seen = state.extend("vectors", x)
        distance = state.positions(ids)[..., None] - torch.arange(vectors.shape[1])
        weights = torch.where(seen, 0.9 ** distance.clamp(min=0).float(), 0.0)
        return x + (x @ vectors.transpose(1, 2) * weights) @ vectors / 16


class Averaged(Base):
    """The mean of all tokens so far: a sum that is continued, and positions."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        sums = x.cumsum(1) + state.recall("sum", (WIDTH,), x)[:, None]
        state.keep("sum", sums[:, -1])
        return x + sums / (state.positions(ids)[..., None] + 1)


class Largest(Base):
    """The largest value so far, which is continued."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        largest = state.recall("largest", (WIDTH,), x)
        place = torch.arange(x.shape[1])
        earlier = (place[:, None] >= place)[..., None]
        within = torch.where(earlier, x[:, None], -torch.inf).amax(2)
        so_far = torch.maximum(within, largest[:, None])
        state.keep("largest", so_far[:, -1])
        return x + so_far / 2


class Trigram(Base):
    """Every id with the two before it, as numbers in a table."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        early = state.recall("ids", (2,), self.embed.weight[:1, :1].expand(ids.shape[0], -1)).long()
        padded = torch.cat([early, ids], 1)
        state.keep("ids", padded[:, -2:].to(self.embed.weight.dtype))
        hashed = (padded[:, 2:] * 7 + padded[:, 1:-1] * 31 + padded[:, :-2] * 17) % VOCAB
        x: Tensor = self.embed(ids) + self.embed(hashed)
        return x


class OwnRules(Base):
    """Rules on a token's own id, position, and values."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        x = self.embed(ids) * torch.where(ids == 7, 3.0, 1.0)[..., None]
        return torch.where(state.positions(ids)[..., None] >= 64, -x, x)

    def after(self, x: Tensor) -> Tensor:
        return torch.where(x.abs().amax(-1, keepdim=True) > 4, x / 2, x)


class Sinusoidal(Base):
    """Sines and cosines of positions, and attention to normalized keys."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        rates = 100.0 ** -(torch.arange(WIDTH // 2) / 8)
        angles = state.positions(ids)[..., None] * rates
        x: Tensor = self.embed(ids) + torch.cat([angles.sin(), angles.cos()], -1)
        return x

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v


class Differential(Base):
    """The difference of two softmaxes, with a learned factor without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.4))

    def block(self, x: Tensor, state: State, **options: Any) -> Tensor:
        q, k, v = self.heads(x)
        out = state.attend(0, q, k, v) - self.factor * state.attend(1, q.flip(-1), k, v)
        return x + out.transpose(1, 2).flatten(2)


class Deep(Base):
    """Twelve layers with dropout that is off, and tables made in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.table: Tensor | None = None

    def before(self, ids: Tensor, state: State) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0.5, 1.5, WIDTH)
        x: Tensor = self.drop(super().before(ids, state)) * self.table
        return x

    def block(self, x: Tensor, state: State, **options: Any) -> Tensor:
        for layer in range(12):
            out = state.attend(layer, *self.heads(x)).transpose(1, 2).flatten(2)
            x = self.drop(x + out)
            x = x + self.mlp(x)
        return x


class Rounded(Base):
    """Activations rounded to few levels: a number between two hangs on its last bits."""

    def after(self, x: Tensor) -> Tensor:
        return (x * 8).round() / 8


class Chaotic(Looped):
    """A cell with large weights, in which roundings grow from token to token."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.cell.parameters():
            parameter.data *= 4


class LoudLogits(Base):
    """Logits that are far larger than 1."""

    def forward(self, ids: Tensor, state: State) -> Tensor:
        return super().forward(ids, state) * 3000


class QuietLogits(Base):
    """Vectors and logits that are far smaller than 1."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        return super().before(ids, state) / 500

    def forward(self, ids: Tensor, state: State) -> Tensor:
        return F.linear(self.block(self.before(ids, state), state), self.head.weight) / 1000


class Penalized(Base):
    """Logits of ids that a text contains are lowered, by counts that are continued."""

    def forward(self, ids: Tensor, state: State) -> Tensor:
        logits = super().forward(ids, state)
        hot = F.one_hot(ids, VOCAB).to(logits.dtype)
        counts = hot.cumsum(1) + state.recall("counts", (VOCAB,), logits)[:, None]
        state.keep("counts", counts[:, -1])
        return logits - counts.clamp(max=3)


HONEST: tuple[type[Base], ...] = (
    *(Base, LearnedPositions, OwnRotary, TableRotary, Alibi, Experts, GatheredExperts),
    *(Convolved, Summed, Looped, Linear, Shared, Normed, Rare),
    *(Grouped, Delta, Selective, Retained, Averaged, Largest, Trigram, OwnRules, Sinusoidal),
    *(Differential, Deep, Rounded, Chaotic, LoudLogits, QuietLogits, Penalized),
)
