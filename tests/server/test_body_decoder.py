"""Bodies: unknown fields that ask for nothing are left out, and all others are errors."""

import msgspec
import pytest

from ortolan.server.api.chat_completions import ChatBody
from ortolan.server.api.completions import CompletionBody
from ortolan.server.api.rerank import RerankBody
from ortolan.server.body_decoder import BodyDecoder


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ('"typical_p": 0.9', "unknown field `typical_p`"),
        ('"bad_words": ["a"]', "unknown field `bad_words`"),
        ('"mirostat": 2', "unknown field `mirostat`"),
        ('"structured_outputs": {"grammar": "a"}', "unknown field `grammar`"),
        ('"seed": 1.5', "got `float`"),
        ('"seed": 1e300', "got `float`"),
        ('"temperature": 1e999', r"out of range - at `\$.temperature`"),
        ('"guided_json": null, "seed": "1"', "got `str`"),
        ('"guided_json": null, "x": 99999999999999999999999', "unknown field"),
    ],
)
def test_fields_that_ask_for_something_are_errors(field: str, problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        BodyDecoder(ChatBody).decode(f'{{"messages": [], {field}}}'.encode())


def test_off_values_stay_where_the_field_is_known() -> None:
    body = BodyDecoder(CompletionBody).decode(
        b'{"prompt": [5.0, "x", [6.0]], "echo": false, "best_of": 1.0, "temperature": 1.0, '
        b'"seed": 99999999999999999999999, "a": null}'
    )
    assert (body.prompt, body.echo, body.best_of) == ([5, "x", [6]], False, 1)


def test_data_of_the_client_stays_as_it_is() -> None:
    message = {"role": "user", "content": "1.0", "name": None}
    data = {"messages": [message], "chat_template_kwargs": {"x": None, "grammar": ""}, "rid": None}
    body = BodyDecoder(ChatBody).decode(msgspec.json.encode(data))
    assert (body.messages, body.chat_template_kwargs) == ([message], data["chat_template_kwargs"])


def test_lists_of_structures_are_read_inside() -> None:
    body = BodyDecoder(RerankBody).decode(
        b'{"query": "a", "documents": ["b", {"text": "c", "title": null}], "rank_fields": null}'
    )
    assert [d if isinstance(d, str) else d.text for d in body.documents] == ["b", "c"]
