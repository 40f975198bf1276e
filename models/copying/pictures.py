"""Draws what the recurrent networks look at while they copy.

    python models/copying/pictures.py build/addressing.png build/attention.png

The first is of the Neural Turing Machine: slots of its memory against tokens. The second is of the
network with attention: its past states against tokens. Needs the extra `plot` beside `train`.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from ortolan.cli.attention_picture import Panel, draw
from ortolan.modeling import RecurrentModel, load
from ortolan.modeling.models.addressing import addressing
from ortolan.modeling.models.attention_maps import attention_maps

HERE = Path(__file__).parent

PROMPTS = ("copy c a f e b a d g h a c e |", "repeat b e d c a 3 |")

VISIBLE = 0.01
"""Slots after the last that any head gives so much to are left out."""

ATTENDED = ("copy c a f e b a d g |", "repeat b e d 3 |")


def addressing_panels(prompt: str, checkpoint: Path = HERE / "ntm") -> list[Panel]:
    """The weights of each head, slots against the tokens of the prompt and of the answer."""
    model = load(checkpoint, RecurrentModel)
    ids, tokens = answered(model, checkpoint, prompt)
    found = addressing(model, torch.tensor([ids]))
    used = int((torch.cat((found.read, found.write), 1) > VISIBLE).nonzero()[:, 3].max()) + 1
    return [
        Panel(
            row=f"{kind} {head}",
            title=f"{kind} head",
            shares=weights_SN.T[:used].numpy(),
            queries=tuple(map(str, range(used))),
            keys=tokens,
        )
        for kind, weights in (("write", found.write), ("read", found.read))
        for head, weights_SN in enumerate(weights[0])
    ]


@torch.no_grad()
def attention_panel(prompt: str, checkpoint: Path = HERE / "attentive-rnn") -> Panel:
    """How much of its state after each token (columns) the network sees after others (rows)."""
    model = load(checkpoint, RecurrentModel)
    ids, tokens = answered(model, checkpoint, prompt)
    (weights,) = attention_maps(model, torch.tensor([ids]))
    shares = weights[0, 0].numpy()
    return Panel(row="attention", title="attention", shares=shares, queries=tokens, keys=tokens)


@torch.no_grad()
def answered(
    model: RecurrentModel, checkpoint: Path, prompt: str
) -> tuple[list[int], tuple[str, ...]]:
    """A prompt with its greedy answer, without the token that ends it: ids, and their names."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = tokenizer.encode(prompt).ids
    while len(ids) < model.config.context_length:
        token = int(model(torch.tensor([ids]))[0, -1].argmax())
        if token in model.config.eos_token_ids:
            break
        ids = [*ids, token]
    return ids, tuple(str(tokenizer.id_to_token(token)) for token in ids)


if __name__ == "__main__":
    for place in sys.argv[1:3]:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
    draw([panel for prompt in PROMPTS for panel in addressing_panels(prompt)], Path(sys.argv[1]))
    draw([attention_panel(prompt) for prompt in ATTENDED], Path(sys.argv[2]))
