"""Finds the texts that a chat template writes around messages, for hosts that cannot render Jinja.

The template is a black box: words that it does not contain show what it writes around messages, and
many other conversations show whether it does anything else.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

import msgspec

from ortolan.runtime import limits
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.chat_form import DATE, TRIMS, ChatForm, Role, Trim
from ortolan.runtime.chat.chat import Chat
from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.errors import ChatError, ChatTemplateError
from ortolan.runtime.inputs.tokenizer import Tokenizer

Messages = list[tuple[Role, str]]

_Write = Callable[[Messages, datetime], str]

_NOW = datetime(2031, 7, 9, 5, 4, 3)

_MARGINS = "\n\n \n", " \n\n"
"""White space before and after a word, of which each trim leaves something else."""

_LITERAL = re.compile(r"""'([^'\\\n]{1,60})'|"([^"\\\n]{1,60})\"""")
"""A string in a template, which may be one that it looks for in messages."""

_CONTENTS = (
    "Hello.",
    "",
    "  two spaces\n\n\tand a tab \n",
    "\n\n \u00a0Größe? 你好 🙂\u2003\x1f\n",
    "1. {{ a }} {% if b %} <b>&amp;</b> \\n 'c' \"d\"",
    "def f(x):\n    return x\n" * 40,
)


def chat_form(bundle: Bundle, tokenizer: Tokenizer | None) -> ChatForm | None:
    """The chat template of a bundle as texts around messages.

    `None` if the bundle has no valid template, or one that looks into messages or does more than a
    form can express.
    """
    manifest = bundle.manifest
    if tokenizer is None or manifest.kind != "decoder" or manifest.features is not None:
        return None
    try:
        chat = Chat(bundle, tokenizer)
        form = form_of(chat.template)
    except (ChatError, ChatTemplateError):
        return None
    return None if form is None else msgspec.structs.replace(form, ends=chat.ends)


def form_of(template: ChatTemplate) -> ChatForm | None:
    """The form of a template without the tokens that end an answer; `None` if it has none."""

    def write(messages: Messages, now: datetime) -> str:
        conversation = [{"role": role, "content": text} for role, text in messages]
        return template.prompt(conversation, now=now).text

    control, special = template.control, template.tokenizer.special_ids()
    try:
        form = _form(write)
        if form is None or not _is_exact(form, write, _pool(template.source, control)):
            return None
    except (ChatError, ChatTemplateError, ValueError):
        return None
    return msgspec.structs.replace(
        form, control=tuple(token for token in sorted(control) if token not in special)
    )


class _Marked(datetime):
    """A date that every format shows as `DATE`; the formats are kept."""

    def strftime(self, format: str) -> str:
        self.formats = [*getattr(self, "formats", ()), format]
        return DATE


def _form(write: _Write) -> ChatForm | None:
    """The form that explains a few conversations, if there is one."""
    date = _Marked(2031, 7, 9)
    first, reply, second, rules = "Quillwort", "Saxifrage", "Umbellifer", "Zinnia"
    question: Messages = [("user", first)]
    more: Messages = [*question, ("assistant", reply), ("user", second)]
    opening, closing = _around(write(question, date), [first])
    _, answer, next_, _ = _around(write(more, date), [first, reply, second])
    form = ChatForm(opening=opening, answer=answer, next=next_, closing=closing)
    try:
        system, after, _ = _around(write([("system", rules), *question], date), [rules, first])
        form = msgspec.structs.replace(form, system=(system, after))
        if not write([("system", rules), *more], date).startswith(system + rules):
            system = system.removeprefix(opening)
            form = msgspec.structs.replace(form, system=(system, after), system_place="last")
    except ChatError:  # the template accepts no system message
        rules = ""
    formats = {*getattr(date, "formats", ())}
    texts = [opening, answer, next_, closing, *(form.system or ())]
    if len(formats) > 1 or max(map(len, texts)) > limits.MAX_CHAT_TEXT:
        return None
    return msgspec.structs.replace(
        form, date=next(iter(formats), None), trims=_trims(write, has_system=rules != "")
    )


def _around(text: str, words: Sequence[str]) -> list[str]:
    """The texts around words, each of which comes once, in order; otherwise ValueError."""
    pieces = re.split("|".join(words), text)
    if len(pieces) != len(words) + 1 or any(word not in text for word in words):
        raise ValueError("the template drops or repeats a message")
    return pieces


def _trims(write: _Write, *, has_system: bool) -> dict[Role, Trim]:
    """What the template cuts off the contents of each role."""
    before, after = _MARGINS
    words: Messages = [("user", "Tansy"), ("assistant", "Yarrow"), ("user", "Tansy")]
    if has_system:
        words = [("system", "Sorrel"), *words]
    text = write([(role, f"{before}{word}{after}") for role, word in words], _NOW)
    trims: dict[Role, Trim] = {}
    for role, word in words:
        whole = f"{before}{word}{after}"
        names = {trim(whole): name for name, trim in TRIMS.items()}
        if whole not in text:
            # the longest, since every trim leaves the word
            trims[role] = names[max((cut for cut in names if cut in text), key=len)]
    return trims


def _pool(source: str, control: dict[int, str]) -> list[str]:
    """Contents to check with: ordinary ones, and what the template may look for."""
    literals = {text for pair in _LITERAL.findall(source) for text in pair if text}
    texts = [*_CONTENTS, *sorted(literals)]
    return [text for text in texts if not any(token in text for token in control.values())]


def _is_exact(form: ChatForm, write: _Write, pool: Sequence[str]) -> bool:
    """Whether the form writes what the template writes."""
    return all(
        form.write(messages, _NOW) == write(messages, _NOW)
        for messages in _conversations(pool, has_system=form.system is not None)
    )


def _conversations(pool: Sequence[str], *, has_system: bool) -> Iterator[Messages]:
    """Conversations of one to four questions, with each content in each role."""
    for start, text in enumerate(pool):
        others = [pool[(start + step) % len(pool)] for step in range(1, 8)]
        roles: list[Role] = ["user", "assistant"]
        yield [("user", text)]
        yield [("user", others[0]), ("assistant", text), ("user", others[1])]
        if has_system and text:
            turns: Messages = [(roles[n % 2], own) for n, own in enumerate(others)]
            yield [("system", text), ("user", others[0])]
            yield [("system", text), *turns]
