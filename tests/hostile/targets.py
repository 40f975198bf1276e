"""Targets of random requests: models, services, sessions and conversations.

Each has a probe, a fixed request whose answer must never change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.hostile.arguments import Draw, arguments, image, maybe, prompt, several, sound

import ortolan
from ortolan import runtime
from ortolan.runtime import attention_maps
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.sound_sources import AudioSource, WaveSource


def probe(model: Any) -> object:
    """Answer a fixed request with a model of any kind."""
    source, wave = model.manifest.source, np.linspace(-1, 1, 9000, dtype=np.float32) ** 3
    match model.manifest.kind:
        case "encoder":
            value: Any = [1, 2, 3]
            if isinstance(source, ImageSource | PatchSource):
                value = np.zeros((8, 8, source.channels), np.uint8)
            name = model.manifest.output_kind.name
            if isinstance(source, WaveSource | AudioSource):
                name, value = "transcribe", wave
            return repr(
                getattr(model, {"labels": "classify", "embedding": "embed"}.get(name, name))(value)
            )
        case "encoder-decoder" if isinstance(source, WaveSource | AudioSource):
            return model.transcribe(wave)
        case "decoder" if model.manifest.features is not None:
            pixels = np.zeros((9, 20, 3), np.uint8)
            part = {"image": pixels} if model.manifest.media == "images" else {"audio": wave}
            return model.generate([part, "a b"], max_new_tokens=4).tokens
    return model.generate([1, 2, 3], max_new_tokens=4).tokens


def _same(receiver: Any) -> Any:
    return receiver


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A receiver of requests.

    Attributes:
        bundle: kind of bundle to load.
        methods: to call.
        open: creates the receiver from a model.
        each: creates the receiver of one request.
        inputs: draws what the model reads.
        probe: sends the fixed request.
        after: checks and closes the receiver of one request.
        close: closes the receiver.
    """

    bundle: str
    methods: Sequence[str]
    open: Callable[[Any], Any] = _same
    each: Callable[[Any], Any] = _same
    inputs: Draw = prompt
    probe: Callable[[Any], object] = probe
    after: Callable[[Any], object] = _same
    close: Callable[[Any], object] = _same

    def send(self, receiver: Any, random: Random) -> None:
        """Send a random request, and read its answer or abandon it."""
        method = random.choice(self.methods)
        values = arguments(random, getattr(receiver, method), self.inputs)
        self.call(receiver, method, values, random)

    def call(
        self, receiver: Any, method: str, values: dict[str, Any], random: Random | None = None
    ) -> None:
        """Send a request, and read its answer."""
        own = self.each(receiver)
        try:
            finish(getattr(own, method)(**values), random or Random(1))
        finally:
            self.after(own)


def finish(result: Any, random: Random) -> None:
    """Use what a request returned."""
    if isinstance(result, list):
        for item in result:
            finish(item, random)
    elif hasattr(result, "submit"):
        with result:
            result.submit([1, 2, 3], max_new_tokens=2).result()
    elif hasattr(result, "ask"):
        result.ask("a", max_new_tokens=1)
    elif hasattr(result, "rewind"):
        result.append(prompt(random))
    elif hasattr(result, "cancel"):
        _finish_ticket(result, random)
    elif hasattr(result, "__next__"):
        _read(result, random)


def _read(stream: Any, random: Random) -> None:
    """Read all pieces of a stream, or some of them and then close or abandon it."""
    most = random.choice([0, 1, 2, 100])
    for number, _ in enumerate(stream):
        if number >= most:
            break
    else:
        _whole(stream)
        return
    if random.random() < 0.7:
        stream.close()
        stream.close()
        _whole(stream)


def _whole(stream: Any) -> object:
    name = next((name for name in ("completion", "reply") if hasattr(stream, name)), None)
    return None if name is None else getattr(stream, name)


def _finish_ticket(ticket: Any, random: Random) -> None:
    match random.randrange(6):
        case 0:
            ticket.cancel()
        case 1:
            for _ in ticket:
                if random.random() < 0.3:
                    ticket.cancel()
                    break
        case 2:
            ticket.result(maybe(random, lambda _: None, 0.9))
        case 3:
            with ticket:
                next(ticket, None)
        case 4:
            return  # abandoned
    ticket.result()


def _files(model: Any) -> Any:
    """Functions that read bundles, of this bundle and of any path."""
    return SimpleNamespace(
        load=partial(ortolan.load, model.bundle.path),
        load_any=ortolan.load,
        open=runtime.open_bundle,
        verify=lambda path: runtime.verify(path, isolate=False),
        maps=partial(attention_maps.attention_maps, model.bundle, threads=1),
        model=model,
    )


def _begun(model: Any) -> Any:
    session = model.session()
    session.append([1, 2, 3])
    return session


def _session_probe(session: Any) -> object:
    other = session.fork()
    return session.tokens, other.append([4]).tobytes()


def _restored(session: Any) -> None:
    session.restore(session.snapshot())
    session.close()


def _check_pairs(conversation: Any) -> None:
    messages = conversation.messages
    if len(messages) % 2 or any(m["role"] not in ("user", "assistant") for m in messages):
        raise AssertionError(f"messages that are not pairs: {messages}")


def _asked(conversation: Any) -> object:
    conversation.reset()
    return conversation.ask("a", max_new_tokens=3).content


DECODER = (
    *("generate", "generate", "stream", "chat", "chat_stream", "conversation"),
    *("serve", "logits", "load_session"),
)
SEQ2SEQ = ("generate", "generate", "stream", "logits", "serve")
OUTPUTS = ("states", "logits", "embed", "classify", "classify_as", "classify_tokens", "fill")
LABELS = ("classify",) * 7 + OUTPUTS
LISTENER = ("transcribe", "transcribe", "listen", "generate", "logits")

PROMPTS, IMAGES, SOUNDS = several(prompt), several(image), several(sound)

TARGETS: dict[str, Target] = {
    "decoder": Target(bundle="decoder", methods=DECODER, inputs=PROMPTS),
    "recurrent": Target(bundle="recurrent", methods=DECODER, inputs=PROMPTS),
    "hybrid": Target(bundle="exported-hybrid", methods=DECODER, inputs=PROMPTS),
    "reader": Target(bundle="exported-reader", methods=DECODER, inputs=PROMPTS),
    "seq2seq": Target(
        bundle="exported-seq2seq",
        methods=SEQ2SEQ,
        inputs=PROMPTS,
    ),
    "listener": Target(bundle="exported-listener", methods=LISTENER, inputs=SOUNDS),
    "writer": Target(bundle="exported-writer", methods=LISTENER, inputs=SOUNDS),
    "speller": Target(
        bundle="exported-speller",
        methods=("transcribe",) * 3 + ("logits",) * 4 + OUTPUTS,
        inputs=SOUNDS,
    ),
    "encoder": Target(bundle="encoder", methods=LABELS, inputs=PROMPTS),
    "embedder": Target(bundle="embedder", methods=("embed",) * 7 + OUTPUTS, inputs=PROMPTS),
    "images": Target(bundle="image-encoder", methods=LABELS, inputs=IMAGES),
    "tokenizer": Target(
        bundle="decoder",
        open=lambda model: model.tokenizer,
        methods=("encode", "decode", "labels"),
        probe=lambda tokenizer: tokenizer.encode("a b"),
    ),
    "files": Target(
        bundle="encoder",
        open=_files,
        methods=("load", "load", "load_any", "open", "verify", "maps"),
        probe=lambda files: probe(files.model),
    ),
    "service": Target(
        bundle="decoder",
        open=lambda model: model.serve(slots=3, queue=4),
        methods=("submit", "submit", "submit", "chat", "stats"),
        probe=lambda service: service.submit([1, 2, 3], max_new_tokens=4).result().tokens,
        close=lambda service: service.close(0),
    ),
    "session": Target(
        bundle="decoder",
        open=_begun,
        each=lambda session: session.fork(),
        methods=("append", "append", "rewind", "restore", "fork", "save"),
        probe=_session_probe,
        after=_restored,
    ),
    "conversation": Target(
        bundle="decoder",
        open=lambda model: model.conversation(),
        methods=("ask", "ask", "stream", "load", "save"),
        probe=_asked,
        after=_check_pairs,
    ),
}
