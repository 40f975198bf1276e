"""Transcripts: what was said, and when."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word of a sound.

    Attributes:
        start: seconds from the start of the sound.
        end: seconds from the start of the sound.
        text: without spaces.
    """

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a sound, usually a sentence.

    Attributes:
        start: seconds from the start of the sound.
        end: seconds from the start of the sound.
        text: what was said, without spaces around it; empty if the bundle has no tokenizer.
        tokens: ids of the text and of its times; of a model with CTC, the numbers of its symbols.
        logprob: mean log-probability of the tokens, or of a model with CTC at each vector. OpenAI's
            own Whisper retries below -1.
        words: of the text, from a model with CTC; others give no times of words.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    logprob: float
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The text of a sound.

    Attributes:
        segments: in the order of time.
        seconds: length of the sound.
        language: code of the language, given or recognized; `None` for a model of one language.
    """

    segments: tuple[Segment, ...]
    seconds: float
    language: str | None = None

    @property
    def text(self) -> str:
        """All that was said."""
        return " ".join(segment.text for segment in self.segments if segment.text)

    @property
    def srt(self) -> str:
        """Subtitles in the format SubRip, for video players."""
        blocks = [
            f"{number}\n{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}\n"
            f"{segment.text}\n"
            for number, segment in enumerate(self._spoken, 1)
        ]
        return "\n".join(blocks)

    @property
    def vtt(self) -> str:
        """Subtitles in the format WebVTT, for browsers."""
        blocks = [
            f"{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}\n"
            f"{_escaped(segment.text)}\n"
            for segment in self._spoken
        ]
        return "\n".join(["WEBVTT\n", *blocks])

    @property
    def _spoken(self) -> list[Segment]:
        return [segment for segment in self.segments if segment.text]


def _clock(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds: `00:01:02,500`."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}{point}{milliseconds:03}"


def _escaped(text: str) -> str:
    """Text whose characters have no meaning in WebVTT."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
