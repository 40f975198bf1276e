"""The request to the subprocess of a witness, and its findings."""

import msgspec


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle, and the files that it was exported from.

    Attributes:
        bundle: folder of the new bundle.
        checkpoint: folder of the checkpoint, or a GGUF file.
        adapter: folder of a PEFT adapter that was merged.
        max_context: longest context that the user asked for.
        has_own_tokenizer: the user passed another tokenizer than the checkpoint's.
        memory: most bytes that the subprocess may allocate; None for no limit.
        weights: number that can be loaded and asked in time; None for any number.
        least_layers: layers that a shorter model has at least; None if it must not be shorter.
        first_layers: folder of the certificate of a shorter model, which appears once the depth is
            known.
        run_time_adapter: folder whose certificate replaces the bundle's; numbers alone are asked.
        is_long: texts of any length have the rotary frequencies of long ones.
        gguf_keys: names of what a GGUF file says of its model.
        mapped: bytes of the checkpoint's weights; maps of them count as allocated.
        threads: threads of PyTorch; None for its default.
        windows: tokens that each layer of a decoder attends to, None for all; empty if a family of
            ours did not read them.
    """

    bundle: str
    checkpoint: str
    adapter: str | None = None
    max_context: int | None = None
    has_own_tokenizer: bool = False
    memory: int | None = None
    weights: int | None = None
    least_layers: int | None = None
    first_layers: str | None = None
    run_time_adapter: str | None = None
    is_long: bool = False
    gguf_keys: tuple[str, ...] = ()
    mapped: int = 0
    threads: int | None = None
    windows: tuple[int | None, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of one topic, compared.

    Attributes:
        topic: its name; empty before the first one.
        by: the library and its version.
        questions: number that the library answered.
        agreed: number of equal answers.
        largest: largest relative difference of numbers.
        first: the first difference, in words.
        unasked: why some questions have no answer.
        plan: names of the topics that follow.
        layers: depth of the model that is compared; None for all layers.
        is_whole: no question of the topic follows.
    """

    topic: str
    by: str
    questions: int = 0
    agreed: int = 0
    largest: float | None = None
    first: str | None = None
    unasked: str | None = None
    plan: tuple[str, ...] = ()
    layers: int | None = None
    is_whole: bool = True
