"""What an export tells the subprocess of its witness, and what that finds."""

import msgspec


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare.

    Attributes:
        bundle: folder of the new bundle.
        checkpoint: folder of the checkpoint, or a GGUF file.
        adapter: folder of a PEFT adapter that was merged.
        has_own_tokenizer: the user passed another tokenizer than the checkpoint's.
        memory: most bytes that the subprocess may allocate; None for no limit.
        threads: threads of PyTorch; None for its default.
    """

    bundle: str
    checkpoint: str
    adapter: str | None = None
    has_own_tokenizer: bool = False
    memory: int | None = None
    threads: int | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of one topic, compared.

    Attributes:
        topic: its name.
        by: the library and its version.
        questions: number that the library answered.
        agreed: number of equal answers.
        largest: largest relative difference of numbers.
        first: the first difference, in words.
        unasked: why some questions have no answer.
    """

    topic: str
    by: str
    questions: int = 0
    agreed: int = 0
    largest: float | None = None
    first: str | None = None
    unasked: str | None = None
