"""Tiny models of several types, whose bundles transformers reads as we do."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases.comparison import findings, save_tiny
from tests.runtime.tiny_tokenizers import KINDS
from tests.tiny import CONFIGS
from tests.tiny.tokenizers import with_ends
from tokenizers import pre_tokenizers

import ortolan
from ortolan.export.witness.brief import Finding
from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.topics.completions import COMPLETIONS

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{% endfor %}"


def with_digits() -> Any:
    """Like SmolLM2, whose class in transformers 5 drops the digits."""
    tokenizer = KINDS["byte_level"]()
    parts = [pre_tokenizers.Digits(individual_digits=True), tokenizer.pre_tokenizer]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return tokenizer


def with_cls() -> Any:
    """Like BERT."""
    return with_ends(KINDS["wordpiece"](), "[CLS] $A [SEP]")


def with_mask() -> Any:
    """Like RoBERTa, whose words begin with a space."""
    tokenizer = KINDS["byte_level"]()
    tokenizer.add_special_tokens(["<mask>"])
    return tokenizer


TOKENIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (with_digits, {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>"}),
    "mistral": (KINDS["sentencepiece"], {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
    "gemma2": (KINDS["gemma"], {"tokenizer_class": "GemmaTokenizer", "bos_token": "<s>"}),
    "qwen2": (KINDS["byte_level"], {"tokenizer_class": "PreTrainedTokenizerFast"}),
    "bert": (with_cls, {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
    "roberta": (with_mask, {"tokenizer_class": "RobertaTokenizer", "mask_token": "<mask>"}),
    "t5": (KINDS["metaspace"], {"tokenizer_class": "PreTrainedTokenizerFast"}),
}
"""Tokenizers and their configs by type of the model."""

ARCHITECTURES = {"roberta": {"architectures": ["RobertaForMaskedLM"]}}
"""Other classes than those of the tiny configs."""


def save(model_type: str, folder: Path) -> None:
    """A tiny checkpoint with a tokenizer, as users have them."""
    make, config = TOKENIZERS[model_type]
    tokenizer = make()
    values = CONFIGS[model_type] | ARCHITECTURES.get(model_type, {})
    values |= {"vocab_size": tokenizer.get_vocab_size() + 8}
    model = save_tiny(values, folder, spread=0.2)
    if model_type in ARCHITECTURES:  # the likeliest words begin with a space
        words = [token for text, token in tokenizer.get_vocab().items() if text[0] == "Ġ"]
        model.lm_head.bias.data[words] += 100
        model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(config | {"chat_template": TEMPLATE})
    (folder / "tokenizer_config.json").write_text(text)


def asked(source: Path, bundle: Path) -> dict[str, Finding]:
    """Findings about a new bundle, by topic."""
    ortolan.export(source, bundle)
    return findings(source, bundle)


QUICK = ("llama", "bert")


@pytest.mark.parametrize(
    "model_type",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in TOKENIZERS],
)
def test_a_type_agrees(model_type: str, tmp_path: Path) -> None:
    save(model_type, tmp_path / "source")

    found = asked(tmp_path / "source", tmp_path / "bundle")

    assert [finding.first for finding in found.values() if finding.first] == []
    assert found["texts"].questions >= 60
    assert all(finding.unasked is None for finding in found.values())


def test_a_tokenizer_with_other_digits_differs(tmp_path: Path) -> None:
    source, bundle = tmp_path / "source", tmp_path / "bundle"
    save("llama", source)
    ortolan.export(source, bundle)
    path = source / "tokenizer.json"
    content = json.loads(path.read_text())
    content["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = False
    content["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True
    path.write_text(json.dumps(content))

    assert "ids" in (findings(source, bundle)["texts"].first or "")


@pytest.mark.slow
def test_the_class_without_a_head_names_an_encoder_decoder(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save_tiny(CONFIGS["mt5"], source, spread=0.2)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["MT5Model"]}))

    logits = asked(source, tmp_path / "bundle")["logits"]

    assert logits.agreed == logits.questions > 0


@pytest.mark.slow
def test_a_completion_goes_on_after_its_end(tmp_path: Path) -> None:
    source, bundle = tmp_path / "source", tmp_path / "bundle"
    save_tiny(CONFIGS["llama"], source, spread=0.2)
    ortolan.export(source, bundle)
    prompts = COMPLETIONS.questions(Bundled(bundle))["a batch of two"]
    (completion, _) = ortolan.load(bundle).generate(prompts, max_new_tokens=8, ignore_eos=True)
    config = json.loads((source / "config.json").read_text())
    config["eos_token_id"] = completion.tokens[2]
    (source / "config.json").write_text(json.dumps(config))
    (source / "generation_config.json").unlink()

    completions = asked(source, tmp_path / "ended")["completions"]

    assert completions.agreed == completions.questions == 2


@pytest.mark.slow
def test_biases_of_falcon_are_added_once(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save_tiny(CONFIGS["falcon"] | {"alibi": True}, source, spread=0.2)

    logits = asked(source, tmp_path / "bundle")["logits"]

    assert logits.agreed == logits.questions > 0
