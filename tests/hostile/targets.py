"""Targets of random requests: models, services, sessions and conversations.

Each has a probe, a fixed request whose answer must never change.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.hostile.random_arguments import (
    anything,
    draft,
    maybe,
    options,
    prompt,
    random_image,
    random_sound,
)

import ortolan
from ortolan import runtime
from ortolan.runtime import attention_maps

Request = Callable[[Any, Random], object]

WHITE = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAACAkQBADs="


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A receiver of requests.

    Attributes:
        bundle: kind of bundle to load.
        open: creates the receiver from a model.
        requests: by name.
        probe: sends the fixed request.
        close: closes the receiver.
    """

    bundle: str
    open: Callable[[Any], Any]
    requests: Mapping[str, Request]
    probe: Callable[[Any], object]
    close: Callable[[Any], object] = lambda receiver: None


def _read(stream: Any, random: Random) -> None:
    """Read all pieces of a stream, or some of them and then close or abandon it."""
    most = random.choice([0, 1, 2, 100])
    for number, _ in enumerate(stream):
        if number >= most:
            break
    else:
        _ = getattr(stream, "completion", None) or stream.reply
        return
    if random.random() < 0.7:
        stream.close()
        stream.close()
        _ = getattr(stream, "completion", None) or stream.reply


def _prompts(random: Random) -> Any:
    if random.random() < 0.7:
        return prompt(random)
    return [prompt(random) for _ in range(random.choice([0, 1, 2, 4]))]


def _parts(random: Random) -> Iterator[Any]:
    """Parts of a message, some of which are images."""
    urls = (WHITE, WHITE[:40], "data:image/png;base64,", "file:///etc/passwd", "https://a/b.png")
    for _ in range(random.choice([0, 1, 2, 3])):
        url = maybe(random, lambda: random.choice(urls))
        yield random.choice(
            [
                {"type": "text", "text": maybe(random, lambda: "a <image>")},
                {"type": "image_url", "image_url": {"url": url} if random.random() < 0.9 else url},
                {"type": "image", "image": maybe(random, lambda: random_image(random))},
                anything(random),
            ]
        )


def _messages(random: Random) -> Any:
    def message() -> Any:
        roles = ("user", "assistant", "system", "tool", "developer", "x")
        content = [*_parts(random)] if random.random() < 0.2 else "a b"
        fields = {"role": random.choice(roles), "content": maybe(random, lambda: content)}
        if random.random() < 0.2:
            fields[random.choice(["tool_calls", "name", "tool_call_id", "x"])] = anything(random)
        return fields

    user = {"role": "user", "content": "a"}
    right = [*(message() for _ in range(random.choice([0, 0, 1, 2]))), user]
    return maybe(random, lambda: right)


def _chat_options(random: Random) -> dict[str, Any]:
    values = options(random)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for name, right in (("tools", [tool]), ("documents", [tool]), ("variables", None)):
        if random.random() < 0.1:
            values[name] = anything(random) if random.random() < 0.7 else right
    return values


def _serve(model: Any, random: Random) -> None:
    names = ("slots", "queue", "mode", "chunk", "cache_bytes", "cache_folder_bytes")
    right = {
        "slots": 2,
        "queue": 3,
        "mode": random.choice(["exact", "fast"]),
        "chunk": random.choice([None, 32, 128]),
        "cache_bytes": random.choice([0, 1 << 20]),
        "cache_folder_bytes": 1 << 20,
    }
    wrong = random.sample(names, random.choice([0, 1, 2]))
    # never a random cache folder: any text names one that would be created
    with model.serve(**right | {name: anything(random) for name in wrong}) as service:
        service.submit([1, 2, 3], max_new_tokens=2).completion()


def _logits(model: Any, random: Random) -> None:
    model.logits(prompt(random))


DECODER: dict[str, Request] = {
    "generate": lambda m, r: m.generate(_prompts(r), **options(r)),
    "generate n": lambda m, r: m.generate(
        prompt(r), n=maybe(r, lambda: 2, 0.5), draft=draft(r), **options(r)
    ),
    "stream": lambda m, r: _read(m.stream(_prompts(r), draft=draft(r), **options(r)), r),
    "chat": lambda m, r: m.chat(_messages(r), **_chat_options(r)),
    "chat stream": lambda m, r: _read(m.chat_stream(_messages(r), **_chat_options(r)), r),
    "serve": _serve,
    "logits": _logits,
    "load": lambda m, r: ortolan.load(
        m.bundle.path,
        maybe(r, lambda: None),
        device=maybe(r, lambda: "cpu"),
        threads=maybe(r, lambda: 1, 0.3),
        full_check=maybe(r, lambda: True),
        weights=maybe(r, lambda: "copy"),
    ),
    "load a path": lambda m, r: ortolan.load(anything(r)),
    "open a path": lambda m, r: runtime.open_bundle(anything(r)),
    "verify a path": lambda m, r: runtime.verify(anything(r), isolate=False),
    "load session": lambda m, r: m.load_session(anything(r)),
    "encode": lambda m, r: m.tokenizer.encode(anything(r)),
    "decode": lambda m, r: m.tokenizer.decode(prompt(r)),
    "labels": lambda m, r: m.tokenizer.labels(prompt(r)),
    "conversation": lambda m, r: m.conversation(
        system=maybe(r, lambda: "s", 0.5), variables=maybe(r, lambda: None, 0.5)
    ).ask("a", max_new_tokens=1),
}

BY_IDS = {name: ask for name, ask in DECODER.items() if name not in ("encode", "decode", "labels")}
"""Requests for a model without a tokenizer."""

SEQ2SEQ: dict[str, Request] = {
    "generate": lambda m, r: m.generate(_prompts(r), **options(r)),
    "beams": lambda m, r: m.generate(
        _prompts(r),
        beams=maybe(r, lambda: r.choice([1, 2, 4])),
        n_best=maybe(r, lambda: r.choice([1, 2])),
        length_penalty=maybe(r, lambda: r.choice([1.0, 0.0, -1.0, 1e30])),
        early_stopping=maybe(r, lambda: r.choice([True, False, "never"])),
        max_new_tokens=maybe(r, lambda: 4, 0.05),
    ),
    "first": lambda m, r: m.generate(prompt(r), first=maybe(r, lambda: 5, 0.5), max_new_tokens=2),
    "stream": lambda m, r: _read(m.stream(_prompts(r), **options(r)), r),
    "logits": lambda m, r: m.logits(_prompts(r), prompt(r)),
    "serve": lambda m, r: m.serve(slots=anything(r)),
}


def _transcribe(model: Any, random: Random) -> object:
    sounds = [maybe(random, lambda: random_sound(random)) for _ in range(random.choice([1, 1, 2]))]
    sound = sounds[0] if random.random() < 0.7 else sounds
    return model.transcribe(sound, **_hearing(random))


def _listen(model: Any, random: Random) -> object:
    blocks = [random_sound(random) for _ in range(random.choice([0, 1, 3]))]
    return list(model.listen(maybe(random, lambda: blocks), **_hearing(random)))


def _hearing(random: Random) -> dict[str, Any]:
    some: dict[str, Any] = {
        "language": maybe(random, lambda: random.choice(["en", "de", "xx", None])),
        "translate": maybe(random, lambda: random.random() < 0.5),
        "timestamps": maybe(random, lambda: random.random() < 0.5),
        "tokens_per_second": maybe(random, lambda: random.choice([0, 6.5, 40, -1.0])),
        "rate": maybe(random, lambda: random.choice([None, 16_000, 8000, 999, 44_100])),
        "cancel": maybe(random, lambda: None),
    }
    return {name: value for name, value in some.items() if random.random() < 0.3}


LISTENER: dict[str, Request] = {
    "transcribe": _transcribe,
    "listen": _listen,
    "generate": lambda m, r: m.generate(random_sound(r), **options(r)),
    "logits": lambda m, r: m.logits(random_sound(r), prompt(r)),
    "maps": lambda m, r: attention_maps.attention_maps(
        m.bundle, random_sound(r), target=maybe(r, lambda: None), threads=1
    ),
}


def _encode(model: Any, random: Random) -> object:
    method = model.manifest.output_kind.use.split(".")[-1]
    values = {"truncate": maybe(random, lambda: True)} if random.random() < 0.3 else {}
    if method == "embed" and random.random() < 0.3:
        values["prompt"] = maybe(random, lambda: "", 0.5)
    return getattr(model, method)(_inputs(model, random), **values)


def _inputs(model: Any, random: Random) -> Any:
    if hasattr(model.manifest.source, "channels") and random.random() < 0.8:
        image = np.zeros((random.choice([4, 9, 1]), 6, random.choice([3, 3, 1])), np.uint8)
        return random.choice([image, [image], [image, image], b"GIF89a", anything(random)])
    return _prompts(random)


SPELLER: dict[str, Request] = {
    "transcribe": _transcribe,
    "logits": lambda m, r: m.logits(random_sound(r)),
    "another output": lambda m, r: getattr(m, r.choice(["embed", "classify", "states"]))(
        random_sound(r)
    ),
}

ENCODER: dict[str, Request] = {
    "encode": _encode,
    "another output": lambda m, r: getattr(m, r.choice(["embed", "classify", "states", "logits"]))(
        _inputs(m, r)
    ),
    "maps": lambda m, r: attention_maps.attention_maps(
        m.bundle, _inputs(m, r), target=maybe(r, lambda: None), threads=1
    ),
}


def _submit(service: Any, random: Random) -> None:
    ticket = service.submit(
        prompt(random), priority=maybe(random, lambda: random.choice([0, 0, 3])), **options(random)
    )
    match random.randrange(6):
        case 0:
            ticket.cancel()
        case 1:
            for _ in ticket:
                if random.random() < 0.3:
                    ticket.cancel()
                    break
        case 2:
            ticket.completion(anything(random))
        case 3:
            with ticket:
                next(ticket, None)
        case 4:
            return  # abandoned
    ticket.completion()


SERVICE: dict[str, Request] = {"submit": _submit, "stats": lambda service, random: service.stats()}


def _append(session: Any, random: Random) -> None:
    """Take a session somewhere else and back again."""
    before = session.snapshot()
    try:
        session.append(prompt(random))
        session.rewind(maybe(random, lambda: random.choice([0, 1, 5, 500]), 0.3))
        session.restore(maybe(random, lambda: before, 0.3))
    finally:
        session.restore(before)


SESSION: dict[str, Request] = {
    "append": _append,
    "fork": lambda s, r: s.fork().append(prompt(r)),
    "save": lambda s, r: s.save(Path("/nowhere") / f"{r.random()}"),
}


def _begun(model: Any) -> Any:
    session = model.session()
    session.append([1, 2, 3])
    return session


def _session_probe(session: Any) -> object:
    other = session.fork()
    return session.tokens, other.append([4]).tobytes()


def _ask(conversation: Any, random: Random) -> None:
    try:
        if random.random() < 0.5:
            conversation.ask(maybe(random, lambda: "b"), **options(random))
        else:
            _read(conversation.stream(maybe(random, lambda: "b"), **options(random)), random)
    finally:
        messages = conversation.messages
        if len(messages) % 2 or any(m["role"] not in ("user", "assistant") for m in messages):
            raise AssertionError(f"messages that are not pairs: {messages}")
        conversation.reset()


CONVERSATION: dict[str, Request] = {
    "ask": _ask,
    "load": lambda c, r: c.load(maybe(r, lambda: "/nowhere", 0.5)),
}


def _tokens(model: Any) -> object:
    return model.generate([1, 2, 3], max_new_tokens=4).tokens


def _seen(model: Any) -> object:
    image = np.zeros((8, 8, 3), np.uint8)
    return model.generate([{"image": image}, "a"], max_new_tokens=4).tokens


def _heard(model: Any) -> object:
    return model.transcribe(np.linspace(-1, 1, 20_000, dtype=np.float32) ** 3)


def _encoded(model: Any) -> object:
    value: Any = [1, 2, 3]
    source = model.manifest.source
    if hasattr(source, "channels"):
        value = np.zeros((source.height, source.width, source.channels), np.uint8)
    names = {"labels": "classify", "embedding": "embed"}
    kind = model.manifest.output_kind.name
    return repr(getattr(model, names.get(kind, kind))(value))


TARGETS: dict[str, Target] = {
    "decoder": Target(bundle="decoder", open=lambda m: m, requests=DECODER, probe=_tokens),
    "recurrent": Target(bundle="recurrent", open=lambda m: m, requests=DECODER, probe=_tokens),
    "hybrid": Target(bundle="exported-hybrid", open=lambda m: m, requests=BY_IDS, probe=_tokens),
    "seq2seq": Target(bundle="exported-seq2seq", open=lambda m: m, requests=SEQ2SEQ, probe=_tokens),
    "listener": Target(
        bundle="exported-listener", open=lambda m: m, requests=LISTENER, probe=_heard
    ),
    "writer": Target(bundle="exported-writer", open=lambda m: m, requests=LISTENER, probe=_heard),
    "speller": Target(bundle="exported-speller", open=lambda m: m, requests=SPELLER, probe=_heard),
    "reader": Target(bundle="exported-reader", open=lambda m: m, requests=DECODER, probe=_seen),
    "encoder": Target(bundle="encoder", open=lambda m: m, requests=ENCODER, probe=_encoded),
    "embedder": Target(bundle="embedder", open=lambda m: m, requests=ENCODER, probe=_encoded),
    "images": Target(bundle="image-encoder", open=lambda m: m, requests=ENCODER, probe=_encoded),
    "service": Target(
        bundle="decoder",
        open=lambda m: m.serve(slots=3, queue=4),
        requests=SERVICE,
        probe=lambda service: service.submit([1, 2, 3], max_new_tokens=4).completion().tokens,
        close=lambda service: service.close(0),
    ),
    "session": Target(bundle="decoder", open=_begun, requests=SESSION, probe=_session_probe),
    "conversation": Target(
        bundle="decoder",
        open=lambda m: m.conversation(),
        requests=CONVERSATION,
        probe=lambda conversation: (
            conversation.ask("a", max_new_tokens=3).content,
            conversation.reset(),
        ),
    ),
}
