"""How a bundle converses: what is asked by its template, and how what it writes is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.chat.formats import format_of
from ortolan.runtime.chat.messages import Message
from ortolan.runtime.chat.parser import ReplyParser
from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.chat.template_file import read_chat_template
from ortolan.runtime.generation.options import Options
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer

__all__ = ["Chat", "Question"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation that waits for an answer.

    Attributes:
        prompt: ids.
        options: of the request, the end of the turn among its stop tokens.
        tokenizer: its texts show the markers that the parser looks for.
        parser: takes the reply apart.
    """

    prompt: list[int]
    options: Options
    tokenizer: Tokenizer
    parser: ReplyParser


class Chat:
    """The chat template of a bundle, and the format of its replies. Threads may share it.

    Attributes:
        template: of the bundle.

    Raises:
        ChatTemplateError: it has none, or a broken one.
        TokenizerError: it has no tokenizer.
    """

    def __init__(self, bundle: Bundle, tokenizer: Tokenizer | None) -> None:
        if tokenizer is None:
            raise no_tokenizer("chat")
        source, special_tokens = read_chat_template(bundle, tokenizer)
        self.template = ChatTemplate(source, tokenizer, special_tokens)
        self._manifest = bundle.manifest
        self._showing = cache(tokenizer.showing)

    def question(
        self,
        messages: Sequence[Message],
        options: Options,
        *,
        tools: Sequence[Message] | None = None,
        documents: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Question:
        """What to generate for an answer to some messages.

        Raises:
            ChatError: as for `ChatTemplate.prompt`.
            ChatTemplateError: as there.
        """
        prompt = self.template.prompt(
            messages, tools=tools, documents=documents, variables=variables
        )
        form = format_of(self.template.source, with_tools=bool(tools))
        thinks = form.reasoning is not None and prompt.text.rstrip().endswith(form.reasoning.open)
        return Question(
            prompt=prompt.ids,
            options=self._ended(options),
            tokenizer=self._showing(form.markers),
            parser=ReplyParser(
                form,
                tools=tools or (),
                is_reasoning=thinks,
                calls_before=sum(len(each.get("tool_calls") or ()) for each in messages),
            ),
        )

    def _ended(self, options: Options) -> Options:
        """Options that end the answer where the turn ends, whatever the manifest says."""
        end = self.template.end_of_turn
        if end is None or end in self._manifest.tokens.eos or options.get("ignore_eos", False):
            return options
        return {**options, "stop_tokens": [*options.get("stop_tokens", ()), end]}
