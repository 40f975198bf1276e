"""Decoders that read images."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.cases import QUICK, Case, Chat, Variant, low_bit
from tests.runtime.damaged_bundles import put
from tests.tiny.checkpoints import write_checkpoint
from tests.tiny.encoders import LLAVA as LLAVA_VALUES
from tests.tiny.media import answer_of, picture, png
from tests.tiny.tokenizers import of_characters
from transformers import AutoModelForImageTextToText

from ortolan.export.options import ExportOptions

FIRST, SECOND = picture(seed=1), picture(seed=2)


def in_words(parts: Any, placeholder: str) -> str:
    """A prompt as a text with placeholders."""
    parts = [parts] if isinstance(parts, str) else parts
    return "".join(part if isinstance(part, str) else placeholder for part in parts)


def images_of(parts: Any) -> list[Any]:
    """The images of a prompt."""
    return [part["image"] for part in parts if not isinstance(part, str)]


def data_url(data: bytes) -> str:
    """The URL of an image file."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


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
    text = LLAVA_VALUES["text_config"] | {"max_position_embeddings": 400}
    token = tokenizer.token_to_id("<image>")
    sizes = {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}}
    write_checkpoint(
        folder,
        LLAVA_VALUES | {"image_token_index": token, "text_config": text},
        tokenizer,
        template=TEMPLATE,
        processor={"image_processor_type": "CLIPImageProcessor", **sizes},
    )


def by_llava(folder: Path, prompts: Sequence[Any], **penalties: float) -> list[Any]:
    """Prompts whose placeholders are repeated, and the normalization of CLIP as published."""
    model: Any = AutoModelForImageTextToText.from_pretrained(folder)
    tokenizer = of_characters()
    tokenizer.add_special_tokens(["<image>"])
    mean = np.array([0.48145466, 0.4578275, 0.40821073])
    std = np.array([0.26862954, 0.26130258, 0.27577711])
    answers = []
    for parts in prompts:
        ids = tokenizer.encode(in_words(parts, "<image>" * VECTORS)).ids
        given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
        if images := images_of(parts):
            pixels = (np.stack(images) / 255 - mean) / std
            given["pixel_values"] = torch.tensor(pixels.transpose(0, 3, 1, 2), dtype=torch.float32)
        answers.append((len(ids), answer_of(model, given, **penalties)))
    return answers


_MANY = [{"image": picture(seed=seed)} for seed in range(3, 12)]
"""More than a block of the prefix cache."""

_URL = {"url": data_url(png(FIRST)), "detail": "low"}


def _said(part: Any) -> Any:
    content = [part, {"type": "text", "text": "say"}]
    return lambda model: model.chat([{"role": "user", "content": content}])


def _of_url(url: Any, **more: Any) -> Any:
    return _said({"type": "image_url", "image_url": url, **more})


def _asked(*parts: Any, **options: Any) -> Any:
    return lambda model: model.generate([*parts], **options)


LLAVA = Case(
    name="llava",
    write=write_llava,
    family="llava",
    reference=by_llava,
    features=frozenset({"generates", "drafts", "image"}),
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
        ([{"image": FIRST}, *_MANY, "?"], 0),
        ([{"image": SECOND}, *_MANY, "?"], 0),
        ([{"image": FIRST}, *_MANY, "?"], 128),
    ),
    chat=Chat(
        prompt=["user:", {"image": FIRST}, "say</s>A:"],
        text="say",
        parts={
            "data URL": {"type": "image_url", "image_url": _URL},
            "array": {"type": "image", "image": FIRST},
            "bytes": {"type": "image", "image": png(FIRST)},
        },
        served={"type": "image_url", "image_url": _URL},
    ),
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

CASES = (LLAVA,)
