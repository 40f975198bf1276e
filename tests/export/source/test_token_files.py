"""Tokenizers saved by transformers and edited as fine-tuners do, compared with its loader."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.tiny_tokenizers import CORPUS, KINDS
from tokenizers import AddedToken, normalizers
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    GPT2Tokenizer,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
    RobertaTokenizer,
)

from ortolan.export.exportable import Companion, content_of
from ortolan.export.source.companions import companions_of, tokenizer_of
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.chat.template_file import read_chat_template
from ortolan.runtime.inputs.tokenizer import Tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|user|>{{ m.content }}{{ eos_token }}"
    "{{ sep_token }}{{ pad_token }}{{ user_token }}{% endfor %}"
)
TEXTS = (
    *CORPUS,
    "a<|user|>hello <|im_end|> <tool>x</tool>",
    "<s>[CLS] [MASK]  <|endoftext|></s> <pad>[PAD]<extra>",
)
Save = Callable[[Path], None]


def library(kind: str) -> Any:
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens(["<s>", "</s>", "<|endoftext|>"])
    return tokenizer


def fast(kind: str, **named: Any) -> Any:
    auto: Any = PreTrainedTokenizerFast
    return auto(tokenizer_object=library(kind), **named)


def base(kind: str = "byte_level", **named: Any) -> Any:
    tokenizer = fast(kind, **({"bos_token": "<s>", "eos_token": "</s>"} | named))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def vocabulary(kind: str) -> dict[str, Any]:
    model = json.loads(KINDS[kind]().to_str())["model"]
    merges = [tuple(pair) for pair in model.get("merges", [])]
    return {"vocab": model["vocab"]} | ({"merges": merges} if merges else {})


def edited(change: Callable[[Any], Any], kind: str = "byte_level") -> Save:
    """Change a tokenizer before it is saved."""

    def save(folder: Path) -> None:
        tokenizer = base(kind)
        change(tokenizer)
        tokenizer.save_pretrained(folder)

    return save


def files(kind: str = "byte_level", *, drop: tuple[str, ...] = (), **contents: Any) -> Save:
    """Change files after the tokenizer was saved; keys of the config are merged."""

    def save(folder: Path) -> None:
        base(kind).save_pretrained(folder)
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text())
        for key in drop:
            config.pop(key, None)
        path.write_text(json.dumps(config | contents.pop("config", {})))
        for name, content in contents.items():
            file = folder / name.replace("__", "/")
            file.parent.mkdir(exist_ok=True)
            text = content if isinstance(content, str) else json.dumps(content)
            file.with_suffix(".jinja" if isinstance(content, str) else ".json").write_text(text)

    return save


def saved(make: Callable[[], Any], **config: Any) -> Save:
    """Save a tokenizer, and change keys of its config."""

    def save(folder: Path) -> None:
        tokenizer = make()
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(folder)
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))

    return save


def of_siglip2(*, has_lower_case: bool) -> Save:
    """A tokenizer like Gemma's; that of transformers also has lower case."""

    def save(folder: Path) -> None:
        kept = KINDS["gemma"]()
        if has_lower_case:
            kept.normalizer = normalizers.Sequence([normalizers.Lowercase(), kept.normalizer])
        kept.save(str(folder / "tokenizer.json"))
        ends = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
        config = ends | {"tokenizer_class": "GemmaTokenizer", "chat_template": TEMPLATE}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "config.json").write_text(json.dumps({"model_type": "siglip2"}))

    return save


def added(content: str, **properties: Any) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": content, **plain, "special": True, **properties}


N = len(base())
"""Size of the vocabulary, hence the id of the next token."""

ENDS = {"bos_token", "eos_token"}
CASES: dict[str, Save] = {
    # edits before saving
    "special tokens added": edited(
        lambda t: t.add_special_tokens({"pad_token": "<pad>", "sep_token": "<|im_end|>"})
    ),
    "plain tokens added": edited(lambda t: t.add_tokens(["<|user|>", "hello"])),
    "tokens that strip spaces": edited(
        lambda t: t.add_tokens([AddedToken("<|im_end|>", lstrip=True, rstrip=True, special=True)])
    ),
    "a token of a single word": edited(
        lambda t: t.add_tokens([AddedToken("fox", single_word=True, normalized=True)])
    ),
    "eos replaced": edited(lambda t: setattr(t, "eos_token", "<|endoftext|>")),
    "bos replaced by a new token": edited(
        lambda t: t.add_special_tokens({"bos_token": "<|user|>"})
    ),
    "pad is eos": edited(lambda t: setattr(t, "pad_token", t.eos_token)),
    "extra tokens as a list": edited(
        lambda t: t.add_special_tokens({"extra_special_tokens": ["<|user|>", "<extra>"]})
    ),
    "extra tokens by name": saved(
        lambda: base(extra_special_tokens={"user_token": "<|user|>", "end_token": "<|im_end|>"})
    ),
    "pad added to pieces": edited(
        lambda t: t.add_special_tokens({"pad_token": "<pad>"}), "sentencepiece"
    ),
    "tokens added to Unigram": edited(lambda t: t.add_tokens(["<|user|>", "日本"]), "metaspace"),
    "tokens added to WordPiece": edited(
        lambda t: t.add_tokens(["<|user|>", "[mask]"]), "wordpiece"
    ),
    "several templates": edited(
        lambda t: setattr(t, "chat_template", {"default": TEMPLATE, "tool_use": "tools"})
    ),
    # classes of models
    "GPT-2": saved(lambda: GPT2Tokenizer(**vocabulary("byte_level"), pad_token="<pad>")),
    "Qwen2": saved(lambda: Qwen2Tokenizer(**vocabulary("byte_level"))),
    "RoBERTa": saved(lambda: RobertaTokenizer(**vocabulary("byte_level"))),
    "RoBERTa with spaces": saved(
        lambda: RobertaTokenizer(**vocabulary("byte_level"), add_prefix_space=True)
    ),
    "BERT": saved(lambda: BertTokenizer(**vocabulary("wordpiece"))),
    "BERT with cases": saved(lambda: BertTokenizer(**vocabulary("wordpiece"), do_lower_case=False)),
    # files that transformers 4 wrote, and edits of files
    "added_tokens_decoder": files(
        config={
            "added_tokens_decoder": {str(N): added("<|user|>"), str(N + 1): added("<|im_end|>")}
        }
    ),
    "added_tokens_decoder makes a token special": files(
        config={"added_tokens_decoder": {"400": added("<tool>", normalized=True)}}
    ),
    "added_tokens.json": files(
        added_tokens={"<|user|>": N, "<|im_end|>": N + 1}, config={"sep_token": "<|im_end|>"}
    ),
    "special_tokens_map.json alone": files(
        drop=("bos_token", "eos_token"),
        special_tokens_map={"bos_token": "<s>", "eos_token": added("</s>"), "pad_token": "<pad>"},
    ),
    "special_tokens_map.json contradicts the config": files(
        special_tokens_map={"bos_token": "<|endoftext|>", "additional_special_tokens": ["<extra>"]}
    ),
    "special_tokens_map.json does not count": files(
        config={"added_tokens_decoder": {}},
        special_tokens_map={"bos_token": "<|endoftext|>", "pad_token": "<pad>"},
    ),
    "additional_special_tokens": files(
        config={
            "additional_special_tokens": ["<|user|>", {"__type": "AddedToken", **added("<extra>")}]
        }
    ),
    "tokens with a type": files(
        config={"bos_token": {"__type": "AddedToken", **added("<|user|>", lstrip=True)}}
    ),
    "names of one model": files(config={"user_token": "<|user|>", "add_bos_token": True}),
    "extra tokens by name in a file": files(
        config={"extra_special_tokens": {"user_token": "<|user|>"}},
        special_tokens_map={"extra_special_tokens": ["<extra>"]},
    ),
    "extra tokens with properties": files(
        config={"extra_special_tokens": [{"__type": "AddedToken", **added("<extra>", rstrip=True)}]}
    ),
    "pad from special_tokens_map.json for Unigram": files(
        "metaspace", special_tokens_map={"pad_token": "<pad>", "cls_token": "[CLS]"}
    ),
    "template in the config": files(
        config={"chat_template": "{{ eos_token }}{{ messages[0].content }}"}
    ),
    "templates in a folder": files(additional_chat_templates__rag="{{ documents }}"),
}
CASES |= {
    f"BERT with {key}": saved(lambda: BertTokenizer(**vocabulary("wordpiece")), **{key: False})
    for key in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
}
CASES |= {
    f"SigLIP 2{name}": of_siglip2(has_lower_case=has_lower_case)
    for name, has_lower_case in {"": False, " in lower case": True}.items()
}
REFUSED: dict[str, Save] = {
    "other ids": files(added_tokens={"<|user|>": N + 7}),
    "beyond the model": files(added_tokens={f"<{n}>": N + n for n in range(99)}),
    "split special tokens": files(config={"split_special_tokens": True}),
    "versions": files(config={"fast_tokenizer_files": ["tokenizer.4.json"]}),
    "spaces": saved(lambda: GPT2Tokenizer(**vocabulary("byte_level")), add_prefix_space=True),
    "no token": files(config={"added_tokens_decoder": {"5": 6}}),
    "no ids": files(added_tokens={"<|user|>": "x"}),
}


def companions(folder: Path, *, vocab_size: int) -> Mapping[str, Companion]:
    return companions_of(folder, None, vocab_size=vocab_size, has_vocabulary=True, has_decoder=True)


def chat_template(found: Mapping[str, Companion], tokenizer: Tokenizer) -> ChatTemplate:
    """The template of a bundle with these files."""
    names = [SimpleNamespace(name=name) for name in found]
    bundle: Any = SimpleNamespace(
        manifest=SimpleNamespace(files=names, tokens=Tokens(bos=None, eos=(), pad=None)),
        read=lambda name: content_of(found[name]),
    )
    source, special = read_chat_template(bundle, tokenizer)
    return ChatTemplate(source, tokenizer, special)


@pytest.mark.parametrize("name", CASES)
def test_ids_texts_and_prompts_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path)
    auto: Any = AutoTokenizer
    reference = auto.from_pretrained(tmp_path)

    found = companions(tmp_path, vocab_size=1000)
    tokenizer = tokenizer_of(found, 1000)

    assert tokenizer is not None
    for text in TEXTS:
        ids = reference(text)["input_ids"]
        assert tokenizer.encode(text) == ids
        for skip in (True, False):
            decoded = reference.decode(ids, skip_special_tokens=skip)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == decoded
    template = chat_template(found, tokenizer)
    messages = [{"role": "user", "content": "hello"}]
    expected = reference.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert template.prompt(messages).ids == expected


@pytest.mark.parametrize("file", ["special_tokens_map", "added_tokens", "config"])
def test_padding_without_a_row_in_the_model_is_left_out(
    file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = {"added_tokens_decoder": {str(N): added("[PAD]")}, "pad_token": "[PAD]"}
    contents: dict[str, Any] = {
        "special_tokens_map": {"special_tokens_map": {"pad_token": "[PAD]"}},
        "added_tokens": {"added_tokens": {"[PAD]": N}, "config": {"pad_token": "[PAD]"}},
        "config": {"config": decoder},
    }
    files(**contents[file])(tmp_path)

    tokenizer = tokenizer_of(companions(tmp_path, vocab_size=N), N)

    assert tokenizer is not None
    assert max(tokenizer.encode("a [PAD] b </s>")) < N
    assert "'[PAD]' is left out" in caplog.text


def test_further_tokens_without_a_row_are_refused_with_the_padding(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    files(added_tokens={"<|user|>": N}, special_tokens_map={"pad_token": "[PAD]"})(tmp_path)
    assert refusal(lambda: companions(tmp_path, vocab_size=N), tmp_path) == snapshot


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_cannot_be_honored_are_refused(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    REFUSED[name](tmp_path)
    assert refusal(lambda: companions(tmp_path, vocab_size=N + 50), tmp_path) == snapshot
