"""Draws where the heads of the Neural Turing Machine look while it copies.

    python models/copying/addressing.py build/addressing.png

Needs the extra `plot` beside `train`.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from ortolan.cli.attention_picture import Panel, draw
from ortolan.modeling import RecurrentModel, load
from ortolan.modeling.models.addressing import addressing

CHECKPOINT = Path(__file__).parent / "ntm"

PROMPTS = ("copy c a f e b a d g h a c e |", "repeat b e d c a 3 |")


def panels(prompt: str, checkpoint: Path = CHECKPOINT) -> list[Panel]:
    """The weights of each head, slots against the tokens of the prompt and of the answer."""
    model = load(checkpoint, RecurrentModel)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = answered(model, tokenizer.encode(prompt).ids)
    tokens = tuple(str(tokenizer.id_to_token(token)) for token in ids)
    found = addressing(model, torch.tensor([ids]))
    return [
        Panel(
            row=f"{kind} {head}",
            title=f"{kind} head",
            shares=weights_SN.T.numpy(),
            queries=tuple(map(str, range(weights_SN.shape[1]))),
            keys=tokens,
        )
        for kind, weights in (("write", found.write), ("read", found.read))
        for head, weights_SN in enumerate(weights[0])
    ]


@torch.no_grad()
def answered(model: RecurrentModel, ids: list[int]) -> list[int]:
    """A prompt with its greedy answer, without the token that ends it."""
    while len(ids) < model.config.context_length:
        token = int(model(torch.tensor([ids]))[0, -1].argmax())
        if token in model.config.eos_token_ids:
            break
        ids = [*ids, token]
    return ids


if __name__ == "__main__":
    draw([panel for prompt in PROMPTS for panel in panels(prompt)], Path(sys.argv[1]))
