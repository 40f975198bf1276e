"""How decoders that read sounds write down what they hear, by `model_type`."""

from collections.abc import Mapping

from ortolan.runtime.bundle.parts import Dictation

_QWEN3_ASR = {
    "ar": "Arabic",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fa": "Persian",
    "fi": "Finnish",
    "fil": "Filipino",
    "fr": "French",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "mk": "Macedonian",
    "ms": "Malay",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "th": "Thai",
    "tr": "Turkish",
    "vi": "Vietnamese",
    "yue": "Cantonese",
    "zh": "Chinese",
}

DICTATIONS: Mapping[str, Dictation] = {
    "qwen3_asr": Dictation(language="language ", text="<asr_text>", languages=_QWEN3_ASR),
}
"""Qwen3-ASR (Qwen Team 2026) writes `language English<asr_text>Hello.`"""
