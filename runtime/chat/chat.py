"""The chat side of a bundle: its template for prompts, its reply format for answers."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.parts import Wrapping
from ortolan.runtime.chat.call_frame import Frame, frame_of
from ortolan.runtime.chat.chat_options import PROMPT_OPTIONS, ChatOptions, check_choice
from ortolan.runtime.chat.formats import NO_CALLS, Format, format_of
from ortolan.runtime.chat.messages import Message, check_messages, check_only_text
from ortolan.runtime.chat.parser import ReplyParser
from ortolan.runtime.chat.reply import Reply, reply_of
from ortolan.runtime.chat.template import ChatTemplate, RenderedPrompt
from ortolan.runtime.chat.template_file import read_chat_template
from ortolan.runtime.chat.tool_grammar import call_grammar, no_call_grammar
from ortolan.runtime.errors import ChatError
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.grammar import Grammar
from ortolan.runtime.generation.options import Options
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.inputs.media import MediaPrompt, wrapped
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation that waits for an answer.

    The end of the turn is one of the stop tokens, and the tokenizer shows the markers that the
    parser looks for. The ids of tool calls follow from the parser's `seed`.
    """

    prompt: list[int] | MediaPrompt
    options: Options
    tokenizer: Tokenizer
    parser: Callable[..., ReplyParser]

    def reply(self, completion: Completion) -> Reply:
        """Parse a complete reply."""
        parser = self.parser()
        return reply_of([*parser.feed(completion.text), *parser.finish()], completion)

    def again(self) -> "Question":
        """The question for another reply, whose tool calls have ids of their own."""
        return replace(self, parser=partial(self.parser, seed=secrets.token_bytes(16)))


class Chat:
    """The chat template of a bundle and the format of its replies. Thread-safe."""

    def __init__(self, bundle: Bundle, tokenizer: Tokenizer | None) -> None:
        if tokenizer is None:
            raise no_tokenizer("chat")
        source, special_tokens = read_chat_template(bundle, tokenizer)
        self._manifest = bundle.manifest
        features, images = bundle.manifest.features, None
        if features is not None and isinstance(features.wrapping, Wrapping):
            # what the template writes for an image, and what the model reads instead
            text = wrapped(tokenizer.text_of(features.token), features)
            images = features.wrapping.marker, text
        self.template = ChatTemplate(source, tokenizer, special_tokens, images)
        self._showing = cache(tokenizer.showing)

    def question(self, messages: Sequence[Message], options: ChatOptions) -> Question:
        """Turn messages into a request."""
        request: Any = {"sampling": "model", **options}
        of_prompt = {name: request.pop(name) for name in PROMPT_OPTIONS & request.keys()}
        requested_choice = of_prompt.pop("tool_choice", None)
        valid = check_messages(messages)
        if self._manifest.features is None:
            check_only_text(valid)
        most = self._manifest.context_length
        prompt = self.template.prompt(valid, **of_prompt, max_tokens=most)
        tools = of_prompt.get("tools") or ()
        choice = check_choice(requested_choice, tools)
        form = format_of(self.template.source, with_tools=bool(tools))
        if tools and form.calls is NO_CALLS:
            raise ChatError(
                "This chat template writes tool calls in a format that Ortolan does not read, so "
                "a call would look like an answer. Leave tools out."
            )
        if not prompt.text.endswith(form.begun):
            form = replace(form, begun="")
        opens = form.reasoning.open
        is_reasoning = opens != "" and prompt.text.rstrip().endswith(opens)
        if prompt.continues:
            is_reasoning = prompt.continues == "reasoning_content"
        if tools and choice != "auto":
            if request.get("grammar") is not None:
                raise ChatError("Use tool_choice or grammar, not both.")
            request["grammar"] = self._grammar(
                choice, tools, form, prompt, is_reasoning=is_reasoning
            )
        if choice == "none":
            form = replace(form, calls=NO_CALLS)
        return Question(
            prompt=MediaPrompt(prompt.ids, valid.media) if valid.media else prompt.ids,
            options=self._with_end(request),
            tokenizer=self._showing(form.markers),
            parser=partial(
                ReplyParser,
                form,
                tools=tools,
                is_reasoning=is_reasoning,
                is_continued=prompt.continues != "",
                seed=secrets.token_bytes(16),
            ),
        )

    def dictation(
        self, samples_N: NDArray[np.float32], begun: str | None, most_tokens: int
    ) -> Question:
        """Ask to write down a sound."""
        message = {"role": "user", "content": [{"type": "audio", "audio": samples_N}]}
        question = self.question(
            [message], {"max_new_tokens": most_tokens, "logprobs": 0, "sampling": Sampling()}
        )
        if begun is None or not isinstance(question.prompt, MediaPrompt):
            return question
        ids = question.tokenizer.encode(begun, add_special_tokens=False)
        prompt = replace(question.prompt, ids=[*question.prompt.ids, *ids])
        return replace(question, prompt=prompt)

    def _grammar(
        self,
        choice: str,
        tools: Sequence[Mapping[str, Any]],
        form: Format,
        prompt: RenderedPrompt,
        *,
        is_reasoning: bool,
    ) -> Grammar:
        """The grammar of a reply that follows a choice of tools."""
        if choice == "none":
            return no_call_grammar(form, self.template.control)
        if prompt.continues == "content" and form.calls.bare:
            raise ChatError(
                "This model cannot call a tool in the middle of an answer. Start a new answer, or "
                "use tool_choice='auto'."
            )
        offered = [tool["function"] for tool in tools]
        return call_grammar(
            self._frame,
            form,
            [function for function in offered if choice in ("required", function["name"])],
            self.template.control,
            is_reasoning=is_reasoning,
            several=choice == "required",
        )

    @cached_property
    def _frame(self) -> Frame:
        return frame_of(self.template, format_of(self.template.source, with_tools=True))

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Control tokens that end an answer, besides the manifest's."""
        control, end = self.template.control, self.template.end_of_turn
        named = format_of(self.template.source, with_tools=False).reasoning.ends
        ends = [token for token, text in control.items() if text in named]
        ends += [] if end is None else [end]
        return tuple(end for end in ends if end not in self._manifest.tokens.eos)

    def _with_end(self, options: Options) -> Options:
        if not self.ends or options.get("ignore_eos", False):
            return options
        return {**options, "stop_tokens": [*options.get("stop_tokens", ()), *self.ends]}
