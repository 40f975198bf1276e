"""How a bundle converses: what is asked by its template, and how what it writes is read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.chat.call_frame import Frame, frame_of
from ortolan.runtime.chat.chat_options import ChatOptions, split
from ortolan.runtime.chat.formats import Format, format_of
from ortolan.runtime.chat.messages import Message
from ortolan.runtime.chat.parser import ReplyParser
from ortolan.runtime.chat.reply import Reply, reply_of
from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.chat.template_file import read_chat_template
from ortolan.runtime.chat.tool_choice import checked_choice, offered, with_grammar
from ortolan.runtime.chat.tool_grammar import call_grammar, no_call_grammar
from ortolan.runtime.errors import ChatError
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.grammar import Grammar
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
        parser: makes what takes a reply apart.
    """

    prompt: list[int]
    options: Options
    tokenizer: Tokenizer
    parser: Callable[[], ReplyParser]

    def reply(self, completion: Completion) -> Reply:
        """Take a whole reply apart."""
        parser = self.parser()
        return reply_of([*parser.feed(completion.text), *parser.finish()], completion)


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

    def question(self, messages: Sequence[Message], options: ChatOptions) -> Question:
        """What to generate for an answer to some messages.

        Raises:
            ChatError: as for `ChatTemplate.prompt`, or there are tools and nobody knows how the
                model writes calls.
            ChatTemplateError: as there.
        """
        own, request = split(options)
        chosen = own.pop("tool_choice", None)
        prompt = self.template.prompt(messages, **own)
        request = {"sampling": "model", **request}
        tools = own.get("tools") or ()
        choice = checked_choice(chosen, tools)
        form = format_of(self.template.source, with_tools=bool(tools))
        if tools and form.calls is None:
            raise ChatError(
                "tools: this chat template offers them, but in no format of calls that Ortolan "
                "reads, so a call would be mistaken for an answer. Leave tools out."
            )
        if not prompt.text.endswith(form.begun):
            form = replace(form, begun="")
        opened = form.reasoning is not None and prompt.text.rstrip().endswith(form.reasoning.open)
        is_reasoning = prompt.continues == "reasoning_content" or (opened and not prompt.continues)
        if tools and choice != "auto":
            is_begun = prompt.continues == "content"
            if choice != "none" and is_begun and form.calls is not None and form.calls.bare:
                raise ChatError(
                    "tool_choice: an answer of this model that has begun can hold no call. Let a "
                    "new answer begin."
                )
            grammar = self._grammar(choice, tools, form, is_reasoning=is_reasoning)
            request = with_grammar(request, grammar)
        if choice == "none":
            form = replace(form, calls=None)
        return Question(
            prompt=prompt.ids,
            options=self._ended(request, form),
            tokenizer=self._showing(form.markers),
            parser=partial(
                ReplyParser,
                form,
                tools=tools,
                is_reasoning=is_reasoning,
                is_continued=prompt.continues != "",
                calls_before=sum(len(each.get("tool_calls") or ()) for each in messages),
            ),
        )

    def _grammar(
        self, choice: str, tools: Sequence[Message], form: Format, *, is_reasoning: bool
    ) -> Grammar:
        """What a reply may be by a choice of tools."""
        if choice == "none":
            return no_call_grammar(form, self.template.control)
        return call_grammar(
            self._frame,
            form,
            [each for each in offered(tools) if choice in ("required", each["name"])],
            self.template.control,
            is_reasoning=is_reasoning,
            several=choice == "required",
        )

    @cached_property
    def _frame(self) -> Frame:
        return frame_of(self.template, format_of(self.template.source, with_tools=True))

    def _ended(self, options: Options, form: Format) -> Options:
        """Options that end the answer where the turn ends, whatever the manifest says."""
        end = self.template.end_of_turn
        ends = [*self.template.tokens(form.ends), *([] if end is None else [end])]
        missing = [end for end in ends if end not in self._manifest.tokens.eos]
        if not missing or options.get("ignore_eos", False):
            return options
        return {**options, "stop_tokens": [*options.get("stop_tokens", ()), *missing]}
