"""Draw where the heads of the Neural Turing Machine look while it copies: slots against tokens.

`python models/copying/pictures.py build/addressing.png` needs the extras `plot` and `train`.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer

from ortolan.cli.attention_picture import Panel, draw
from ortolan.modeling import RecurrentModel, load
from ortolan.modeling.models.addressing import addressing

HERE = Path(__file__).parent

PROMPTS = ("copy c a f e b a d g h a c e |", "repeat b e d c a 3 |")

VISIBLE = 0.01
"""Hide slots after the last one with this much attention."""


def addressing_panels(prompt: str, checkpoint: Path = HERE / "ntm") -> list[Panel]:
    """Attention of each head to the slots, by token of the prompt and of the answer."""
    model = load(checkpoint, RecurrentModel)
    ids, tokens = answered(model, checkpoint, prompt)
    heads = addressing(model, torch.tensor([ids]))
    used = int((torch.cat((heads.read, heads.write), 1) > VISIBLE).nonzero()[:, 3].max()) + 1
    return [
        Panel(
            row=f"{kind} {head}",
            title=f"{kind} head",
            shares=weights_SN.T[:used].numpy(),
            queries=tuple(map(str, range(used))),
            keys=tokens,
        )
        for kind, weights in (("write", heads.write), ("read", heads.read))
        for head, weights_SN in enumerate(weights[0])
    ]


@torch.no_grad()
def answered(
    model: RecurrentModel, checkpoint: Path, prompt: str
) -> tuple[list[int], tuple[str, ...]]:
    """A prompt with its greedy answer, without EOS: ids, and the tokens."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = tokenizer.encode(prompt).ids
    while len(ids) < model.config.context_length:
        token = int(model(torch.tensor([ids]))[0, -1].argmax())
        if token in model.config.eos_token_ids:
            break
        ids = [*ids, token]
    return ids, tuple(str(tokenizer.id_to_token(token)) for token in ids)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    draw([panel for prompt in PROMPTS for panel in addressing_panels(prompt)], out)
