"""Decoders that read images whole, against the processors and models of transformers."""

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tests.cases import FP32, QUICK, Case, Chat, Variant, low_bit
from tests.runtime.damaged_bundles import put
from tests.tiny.encoders import GEMMA3
from tests.tiny.encoders import LLAVA as LLAVA_CONFIG
from tests.tiny.media import answer_of, picture, png, write_checkpoint
from tests.tiny.tokenizers import of_characters
from tokenizers import Tokenizer
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

from ortolan.export.options import ExportOptions

FIRST, SECOND = picture(seed=1), picture(seed=2)

WIDE, TALL = picture(20, 30), picture(33, 9)


def in_words(prompt: Any, placeholder: str) -> str:
    """A prompt as a text with placeholders."""
    parts = [prompt] if isinstance(prompt, str) else prompt
    return "".join(part if isinstance(part, str) else placeholder for part in parts)


def images_of(prompt: Any) -> list[Any]:
    """The images of a prompt."""
    return [part["image"] for part in prompt if not isinstance(part, str)]


def answers(
    folder: Path, prompts: Sequence[Any], given: Callable[[Any], Mapping[str, Any]], **options: Any
) -> list[Any]:
    """Number of tokens of each prompt, and the answer of transformers to the inputs made of it."""
    model: Any = AutoModelForImageTextToText.from_pretrained(folder)
    inputs = map(given, prompts)
    return [(len(each["input_ids"][0]), answer_of(model, each, **options)) for each in inputs]


def processed(processor: Any, placeholder: str, prompt: Any) -> Mapping[str, Any]:
    """Inputs that a processor of transformers makes of a prompt."""
    images = [Image.fromarray(image) for image in images_of(prompt)]
    text = in_words(prompt, placeholder)
    made: Mapping[str, Any] = processor(images=[images], text=[text], return_tensors="pt")
    used = ("input_ids", "token_type_ids", "pixel_values", "pixel_attention_mask", "spatial_shapes")
    return {key: made[key] for key in used if key in made}


def data_url(data: bytes) -> str:
    """The URL of an image file."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def message(prompt: Any, image: Any, **text: str) -> Chat:
    """A message with an image, and the prompt that the template makes of it."""
    url = {"type": "image_url", "image_url": {"url": data_url(png(image)), "detail": "low"}}
    array = {"type": "image", "image": image}
    parts = {"data URL": url, "array": array, "bytes": array | {"image": png(image)}}
    return Chat(prompt=prompt, parts=parts, served=url, **{"text": "say", **text})


# --- LLaVA ----------------------------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}</s>{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)

VECTORS = 16
"""Vectors of an image of 8 by 8 pixels, in patches of 2."""


def write_llava(folder: Path) -> None:
    """Images of one size, each as the same number of tokens."""
    tokenizer = of_characters()
    tokenizer.add_special_tokens(["<image>"])
    text = LLAVA_CONFIG["text_config"] | {"max_position_embeddings": 400}
    token = tokenizer.token_to_id("<image>")
    sizes = {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}}
    write_checkpoint(
        folder,
        LLAVA_CONFIG | {"image_token_index": token, "text_config": text},
        tokenizer,
        template=TEMPLATE,
        processor={"image_processor_type": "CLIPImageProcessor", **sizes},
    )


def by_llava(folder: Path, prompts: Sequence[Any], **penalties: float) -> list[Any]:
    """Prompts whose placeholders are repeated, and the normalization of CLIP as published."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    mean = np.array([0.48145466, 0.4578275, 0.40821073])
    std = np.array([0.26862954, 0.26130258, 0.27577711])

    def given(prompt: Any) -> dict[str, Any]:
        ids = tokenizer.encode(in_words(prompt, "<image>" * VECTORS)).ids
        if not (images := images_of(prompt)):
            return {"input_ids": torch.tensor([ids])}
        pixels = ((np.stack(images) / 255 - mean) / std).transpose(0, 3, 1, 2)
        return {"input_ids": torch.tensor([ids]), "pixel_values": torch.tensor(pixels).float()}

    return answers(folder, prompts, given, **penalties)


_MANY = [{"image": picture(seed=seed)} for seed in range(3, 12)]
"""More than a block of the prefix cache."""


def _said(part: Any) -> Any:
    content = [part, {"type": "text", "text": "say"}]
    return lambda model: model.chat([{"role": "user", "content": content}])


def _of_url(url: Any, **more: Any) -> Any:
    return _said({"type": "image_url", "image_url": url, **more})


def _asked(*parts: Any, **options: Any) -> Any:
    return lambda model: model.generate([*parts], **options)


OF_LLAVA = Case(
    name="llava",
    write=write_llava,
    family="llava",
    reference=by_llava,
    features=frozenset({"generates", "drafts", "exact", "rewinds", "every role"}),
    part="vision",
    inputs={
        "no image": "what is this",
        "an image": [{"image": FIRST}, "what is this"],
        "another image": [{"image": SECOND}, "what is this"],
        "an image at the end": ["what is ", {"image": FIRST}],
        "two images": ["a ", {"image": FIRST}, " and ", {"image": SECOND}, " say"],
        "two images in a row": [{"image": SECOND}, {"image": FIRST}, "say"],
        "an image twice": [{"image": FIRST}, "and", {"image": FIRST}],
    },
    prefixes=(
        [
            ([{"image": FIRST}, *_MANY, "?"], 0),
            ([{"image": SECOND}, *_MANY, "?"], 0),
            ([{"image": FIRST}, *_MANY, "?"], 128),
        ],
    ),
    chat=message(["user:", {"image": FIRST}, "say</s>A:"], FIRST),
    variants=(
        QUICK,
        low_bit("int4", graphs="split"),
        Variant(name="fp16", precision="fp16"),
        Variant(name="portable", options=ExportOptions(attention="portable"), tolerance=1e-4),
        Variant(name="webgpu", device="webgpu", tolerance=1e-4),
        Variant(name="cuda", device="cuda", precision="fp16"),
    ),
    refusals={
        "a URL of the web": _of_url({"url": "https://example.com/a.png"}),
        "a URL of a file": _of_url({"url": "file:///etc/passwd"}),
        "no base64": _of_url({"url": "data:image/png;base64,???"}),
        "a text as URL": _of_url("data:"),
        "no URL": _said({"type": "image_url"}),
        "a key too many": _of_url({"url": data_url(png(FIRST))}, text=""),
        "a path as text": _said({"type": "image", "image": "/etc/passwd"}),
        "no image": _said({"type": "image"}),
        "a video": _said({"type": "video", "video": b""}),
        "a sound": _said({"type": "audio", "audio": np.zeros(9, np.float32)}),
        "an empty file in a message": _said({"type": "image", "image": b""}),
        "another file in a message": _said({"type": "image", "image": b"no image"}),
        "an empty file": _asked({"image": b""}),
        "another file": _asked({"image": b"no image"}),
        "the text of a URL": _asked({"image": data_url(png(FIRST)).encode()}),
        "a missing file": _asked({"image": "missing.png"}),
        "a number": _asked({"image": FIRST}, 3),
        "another key": _asked({"picture": b""}),
        "a further key": _asked({"image": b"", "detail": "low"}),
        "a placeholder too many": _asked({"image": FIRST}, "<image>"),
        "floats": _asked({"image": np.zeros((8, 8, 3))}),
        "the sound of a prompt": _asked({"audio": np.zeros(9, np.float32)}),
        "log-probabilities of vectors": _asked({"image": FIRST}, prompt_logprobs=1),
        "a transcript": lambda model: model.transcribe(np.zeros(9, np.float32)),
    },
    edits={
        "vision: mean": put("source", "mean", value=[0.5, 0.5, 0.5]),
        "token": put("images", "token", value=7),
        "no such token": put("images", "token", value=10_000),
        "vectors": put("images", "vectors", value=4),
        "size": put("images", "size", value=8),
    },
)


# --- Gemma 3: vectors of an image see each other --------------------------------------------------

GEMMA_SPECIAL = (
    *("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
)

GEMMA_TEMPLATE = (
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{% if m.content is string %}"
    "{{ m.content }}{% else %}{% for part in m.content %}{% if part.type == 'image' %}"
    "<start_of_image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def write_gemma(folder: Path, *, text: Mapping[str, Any] | None = None, **processor: Any) -> None:
    """A tokenizer that joins line breaks; 16 vectors of an image of 16 by 16 pixels.

    Args:
        folder: where to.
        text: changes to the config of the language model.
        processor: changes to the keys of the image processor.
    """
    breaks = ["\n" * count for count in range(1, 5)]
    merges = [("\n", "\n"), ("\n\n", "\n\n"), ("\n\n", "\n")]
    own = of_characters(GEMMA_SPECIAL[:3], breaks, merges)
    own.add_special_tokens([*GEMMA_SPECIAL])
    values = GEMMA3 | {
        "image_token_index": own.token_to_id("<image_soft_token>"),
        "boi_token_index": own.token_to_id("<start_of_image>"),
        "eoi_token_index": own.token_to_id("<end_of_image>"),
        "text_config": GEMMA3["text_config"] | {"max_position_embeddings": 800, **(text or {})},
    }
    keys = {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": 16, "width": 16},
        "image_seq_length": 16,
        "do_pan_and_scan": None,
    }
    write_checkpoint(folder, values, own, template=GEMMA_TEMPLATE, processor=keys | processor)


def gemma_processor(folder: Path) -> Any:
    """The processor of transformers."""
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folder / "tokenizer.json"),
        extra_special_tokens=named | {"image_token": "<image_soft_token>"},
    )
    images = transformers.Gemma3ImageProcessorPil.from_pretrained(folder)
    return transformers.Gemma3Processor(images, tokenizer, image_seq_length=16)


def by_gemma(folder: Path, prompts: Sequence[Any]) -> list[Any]:
    """Its own processor and model."""
    processor = gemma_processor(folder)
    return answers(folder, prompts, partial(processed, processor, "<start_of_image>"))


def _within(before: int, cached: int) -> list[tuple[Any, int]]:
    """A block of the prefix cache ends within an image; the last prompt has another image."""
    start: list[Any] = ["x" * before, {"image": WIDE}]
    other: list[Any] = ["x" * before, {"image": TALL}, "who?"]
    return [([*start, "what?"], 0), ([*start, "who?"], cached), (other, 0)]


_GEMMA: dict[str, Any] = {
    "family": "gemma3",
    "reference": by_gemma,
    "part": "vision",
    "features": frozenset({"generates", "drafts", "exact", "rewinds"}),
    "inputs": {
        "first": [{"image": WIDE}, "what is this"],
        "last, after a line break": ["what is\n", {"image": TALL}],
        "two, one in a row": ["a ", {"image": WIDE}, {"image": TALL}, "\n say"],
        "beyond windows": ["so long. " * 40, {"image": WIDE}, " and " * 30, {"image": TALL}, "?"],
    },
    "chat": message(
        [
            "<start_of_turn>user\n",
            {"image": WIDE},
            "say<end_of_turn>\n<start_of_turn>model\n",
        ],
        WIDE,
    ),
}

GEMMA_WHOLE = Case(
    name="gemma3, all tokens kept",
    write=write_gemma,
    variants=(
        FP32,
        low_bit("int4", graphs="split"),
        Variant(
            name="maps", options=ExportOptions(graphs="split", attention_maps=True), tolerance=1e-4
        ),
    ),
    prefixes=(_within(115, 127), _within(116, 128)),
    refused={
        "pan and scan": {"do_pan_and_scan": True},
    },
    edits={
        "text before": put("images", "wrapping", "before", value="\n<start_of_image>"),
        "marker": put("images", "wrapping", "marker", value="x"),
        "attention": put("images", "attention", value="causal"),
    },
    **_GEMMA,
)

GEMMA_WINDOWS = Case(
    name="gemma3, last tokens kept",
    write=partial(
        write_gemma,
        text={
            **{"head_dim": 128, "query_pre_attn_scalar": 128},
            **{"num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 112},
        },
    ),
    variants=(
        FP32,
        low_bit("int8"),
        low_bit("int4", cache="int8"),
        Variant(name="fp16", precision="fp16"),
    ),
    prefixes=(_within(115, 127), _within(116, 128)),
    **_GEMMA,
)
"""Heads of 128 channels have the smallest steps."""

CASES = (OF_LLAVA, GEMMA_WHOLE, GEMMA_WINDOWS)
