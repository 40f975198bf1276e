"""Texts and conversations of the questions: data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TEXTS: tuple[str, ...] = (
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "\t\tif x:\n\t\t\treturn y  # done\n",
    "Hello",
    " Hello",
    "  Hello",
    "Hello ",
    "Hello  world,   how are   you?",
    "Wait , is it so ? We do n't know .",
    "Don't you'll we've I'm they're she'd it's",
    "The quick brown fox jumps over the lazy dog.",
    "THE QUICK BROWN FOX",
    "camelCase snake_case kebab-case SCREAMING_CASE",
    "1234567890",
    "3.14159, 2,718 and 1e-10",
    "On 2024-02-29 at 23:59:59, 100 % of 7 x 8 = 56.",
    "$12.50 or €11.80 or £9.99",
    "https://example.org/a/b?c=d&e=f#g",
    "someone@example.org",
    "C:\\Users\\me\\file.txt and /usr/local/bin",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n",
    "SELECT name FROM birds WHERE song LIKE '%tril%';",
    '{"key": [1, 2.5, null, true], "other": "va\\"lue"}',
    "<html><body class='x'>&amp; text</body></html>",
    "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }",
    "a\r\nb\rc\nd",
    "a\u00a0b\u2003c\u200bd",
    "“Curly quotes”, ‘single’ — and a dash – too…",
    "Füße, Größe, Straße, ÄÖÜ",
    "déjà vu, garçon, œuvre, l'été",
    "e\u0301 is not é, A\u030a is not Å",
    "¿Qué tal, señor? ¡Muy bien!",
    "São Paulo, informação, pão",
    "Zażółć gęślą jaźń",
    "Příliš žluťoučký kůň",
    "İstanbul'da ılık bir gün, ŞĞÜ",
    "Đường phố Hà Nội, tiếng Việt",
    "Съешь же ещё этих мягких булок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "שלום עולם, דג סקרן שט בים",
    "مرحبا بالعالم، نص حكيم",
    "नमस्ते दुनिया, ऋषियों को",
    "สวัสดีชาวโลก เป็นมนุษย์",
    "你好，世界。我能吞下玻璃而不伤身体。",
    "繁體中文與「引號」",
    "こんにちは世界、いろはにほへと",
    "ｶﾀｶﾅ　全角ＡＢＣ１２３",
    "안녕하세요 세계, 키스의 고유조건은",
    "🙂 👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷",
    "x² + y₂ = ½ ∑ ∞ ≠ ≤ √2",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒷𝑜𝓁𝒹",
    "ﬁnal ﬂow ™ ® № ℃",
    "\u0007bell and \u001b escape",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!???...,,,;;;:::",
    "Donaudampfschifffahrtsgesellschaftskapitän",
    "A bird sings before sunrise. " * 12,
)
"""Sixty texts: spaces, code, numbers, languages, signs, emoji, and a long one."""

SENTENCES: Mapping[str, str] = {
    "a sentence": "Ada Lovelace lives in Paris and works in London.",
    "languages": "Déjà vu in Łódź: naïve 👩‍👧, 你好 and привет",
    "signs": " (Größe) it's\nhere,  x_1 = 3.5%",
    "a word": "bird",
}
"""Texts that encoders read."""

FILLER = "A bird sings before sunrise, and Ada listens in Paris. "
"""Repeated until a text is long."""

PAIRS: Mapping[str, tuple[str, str]] = {
    "a pair": ("Where does Ada live?", "Ada lives in Paris."),
    "a pair of languages": ("Größe?", "naïve 👩‍👧, 你好"),
}
"""Pairs of texts for classifiers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A text or a pair for an encoder.

    Attributes:
        is_long: longer than the bundle reads.
        is_padded: the encoder reads padding up to its limit.
    """

    texts: tuple[str, ...]
    is_long: bool = False
    is_padded: bool = False

    @property
    def value(self) -> str | tuple[str, ...]:
        """The text alone, or both."""
        return self.texts[0] if len(self.texts) == 1 else self.texts


_QUESTION = {"role": "user", "content": "What is the capital of France?"}
_ANSWER = {"role": "assistant", "content": "Paris."}
_SYSTEM = {"role": "system", "content": "You are brief."}

_MORE = {"role": "user", "content": "And of Spain?"}

CONVERSATIONS: Mapping[str, list[dict[str, Any]]] = {
    "a question": [_QUESTION],
    "a system message": [_SYSTEM, _QUESTION],
    "two turns": [_QUESTION, _ANSWER, _MORE],
    "a system message and two turns": [_SYSTEM, _QUESTION, _ANSWER, _MORE],
    "an empty message": [{"role": "user", "content": ""}],
    "spaces and lines": [{"role": "user", "content": "  two spaces\n\n\tand a tab \n"}],
    "code and languages": [
        {"role": "user", "content": "def f(x):\n    return x\n\nÜbersetze: 你好, مرحبا 🙂"},
    ],
}
"""Conversations of texts alone."""

BEGUN: list[dict[str, Any]] = [_QUESTION, {"role": "assistant", "content": "It is"}]
"""A conversation whose last answer is to be continued."""

REASONED: list[dict[str, Any]] = [
    _QUESTION,
    {**_ANSWER, "reasoning_content": "An easy question about Europe."},
    _MORE,
]
"""A conversation with a chain of thought, for a template that reads it."""

_CALL = {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}

CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Will it rain?"},
    {
        "role": "assistant",
        "content": "",
        # nine letters and digits, as Mistral's templates demand
        "tool_calls": [{"id": "abcdef123", "type": "function", "function": _CALL}],
    },
    {
        "role": "tool",
        "tool_call_id": "abcdef123",
        "name": "weather",
        "content": '{"rain": "in the <b>evening</b>"}',
    },
]
"""A conversation with a call of `TOOLS` and its result."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name of the city."},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    }
]
