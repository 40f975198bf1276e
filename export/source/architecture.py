"""The class that a checkpoint was saved from, which says what its model is for.

Heads of some tasks have no place in a bundle. Without this check their weights would be left over,
or a body without a head would be read as a language model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ortolan.modeling.config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig
from ortolan.modeling.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Task:
    """What the models of a class suffix are for.

    Attributes:
        meaning: in words, after "is".
        kinds: configs of ours that have such a head.
        remedy: what to do instead.
    """

    meaning: str
    kinds: tuple[type[ModelConfig], ...] = ()
    remedy: str = "Ortolan has no family of such models."


_CLASSIFIERS = "Classifiers are supported in encoder families such as BERT, not in this one."

TASKS: Mapping[str, Task] = {
    "ForTokenClassification": Task("a model that labels each token"),
    "ForQuestionAnswering": Task("a model that marks answers in a text"),
    "ForMultipleChoice": Task("a model that chooses one of several texts"),
    "ForNextSentencePrediction": Task("a model that says whether one sentence follows another"),
    "ForSequenceClassification": Task("a classifier or reranker", (EncoderConfig,), _CLASSIFIERS),
    "ForSpeechSeq2Seq": Task("an encoder-decoder of speech"),
    "ForAudioClassification": Task("a classifier of sound"),
    "ForCTC": Task("a transcriber of speech"),
    "ForConditionalGeneration": Task("an encoder-decoder", (EncoderDecoderConfig,)),
}
"""By the end of the class's name. Families that read `architectures` themselves narrow it."""

_SPEECH = ("num_mel_bins", "input_feat_per_channel")
"""Keys of configs whose models hear."""

_LANGUAGE_MODEL_KEY = "ForCausalLM"


def check_architecture(values: Mapping[str, object], config: ModelConfig | None) -> None:
    """Refuse a checkpoint whose class has a head that a bundle would not compute.

    Args:
        values: of its config.json; without `architectures` nothing is checked.
        config: as its family reads it; None for a causal language model of transformers.

    Raises:
        ConfigError: names the class, what it is, and what to do.
    """
    name = architecture_of(values)
    kind: type[ModelConfig] = DecoderConfig if config is None else type(config)
    task = next((task for suffix, task in TASKS.items() if name.endswith(suffix)), None)
    if task is not None and kind not in task.kinds:
        raise _refused(values, name, task)
    is_bare = name.endswith("Model") and not name.endswith(("LMHeadModel", "HeadsModel"))
    if is_bare and issubclass(kind, DecoderConfig):
        body = name.removesuffix("Model")
        raise ConfigError(
            f"architectures: {name} is a model without a head; it computes vectors, no text. "
            "To embed texts with it, add the files of sentence-transformers (modules.json). If its "
            f"head is its embedding, set architectures to {body}{_LANGUAGE_MODEL_KEY}."
        )


def check_known_task(values: Mapping[str, object]) -> None:
    """Refuse a class whose task no family has, before anything else about it seems wrong.

    Raises:
        ConfigError: as `check_architecture`.
    """
    name = architecture_of(values)
    for suffix, task in TASKS.items():
        if name.endswith(suffix) and not task.kinds:
            raise _refused(values, name, task)


def architecture_of(values: Mapping[str, object]) -> str:
    """The class that a config.json names; empty where it names none."""
    names = values.get("architectures")
    return str(names[0]) if isinstance(names, list) and names and names[0] else ""


def _refused(values: Mapping[str, object], name: str, task: Task) -> ConfigError:
    meaning = task.meaning
    if name.endswith("ForConditionalGeneration") and any(key in values for key in _SPEECH):
        meaning += " of speech"
    return ConfigError(
        f"architectures: {name} is {meaning}, which cannot be exported. {task.remedy}"
    )
