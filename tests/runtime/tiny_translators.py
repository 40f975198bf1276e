"""Encoder-decoders of transformers with random weights that generate varied sequences.

With weights of a single scale such a model repeats one token for every source, and beams would test
nothing.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from tests.modeling.tiny_encoders import ragged
from tests.modeling.tiny_models import reference_model
from tests.tiny.encoders import BART, MARIAN, T5
from tests.tiny.tokenizers import of_characters, with_ends
from torch import nn
from transformers import PreTrainedModel

import ortolan

START = 1

SOURCES = ragged(*(1 + 7 * index % 19 for index in range(20)))
"""20 sources of 1 to 19 tokens."""

EOS = tuple(range(2, 40, 3))
"""Many EOS tokens, since a random model rarely chooses a particular one."""

_LAYERS = {"encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 40}

_T5 = T5 | {"num_decoder_layers": T5["num_layers"]}
"""transformers allocates as many cache layers as the encoder has."""

FAMILIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "marian": ("MarianMTModel", MARIAN | _LAYERS, 0),
    "bart": ("BartForConditionalGeneration", BART | _LAYERS, 9),
    # head width that no kernel supports
    "t5": ("T5ForConditionalGeneration", _T5 | {"d_kv": 12}, 0),
    "t5wide": ("T5ForConditionalGeneration", _T5, 0),
}
"""Class, config and seed."""


def translator(family: str) -> PreTrainedModel:
    """Return a random model whose next token depends on the source and on the last token."""
    architecture, values, seed = FAMILIES[family]
    if family.startswith("t5"):
        return reference_model(values, architecture=architecture, spread=0.45)
    model = reference_model(values, architecture=architecture, seed=seed)
    constants = [(name, b) for name, b in model.named_buffers() if name == "final_logits_bias"]
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *constants]:
            if isinstance(parameter, nn.Parameter) and not parameter.requires_grad:
                continue  # a fixed table
            if name.endswith("bias"):
                parameter.mul_(0.1)
            elif "decoder.layers" in name and parameter.dim() == 2:
                parameter.mul_(0.3 if "attn" in name else 3.0)
    return model


def reference(family: str) -> PreTrainedModel:
    """Return the model that `write_bundle` exports."""
    model = translator(family)
    model.generation_config.eos_token_id = list(EOS)
    return model


FORMS = ("marian", "bart", "t5", "marian-split", "t5wide-split")
"""Families, with the form of their graphs if not unified."""


def family_of(form: str) -> str:
    """Return the family of a form."""
    return form.partition("-")[0]


def write_bundle(form: str, folder: Path) -> None:
    """Export a model to `folder / "bundle"`, with a tokenizer of single letters."""
    reference(family_of(form)).save_pretrained(folder / "checkpoint")
    made = with_ends(of_characters(), "$A </s>")
    made.save(str(folder / "checkpoint" / "tokenizer.json"))
    graphs: Literal["split", "unified"] = "split" if form.endswith("-split") else "unified"
    options = ortolan.ExportOptions(graphs=graphs)
    ortolan.export(folder / "checkpoint", folder / "bundle", options=options)
