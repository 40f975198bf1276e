"""Refuses a checkpoint whose class has a head that a bundle would not compute.

Without this check the head's weights would be left over, or a body without a head would be read as
a language model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ortolan.modeling.config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig
from ortolan.modeling.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Task:
    """The task of transformers' classes with a suffix.

    Attributes:
        meaning: completes "it is ...".
        kinds: configs of models with such a head.
    """

    meaning: str
    kinds: tuple[type[ModelConfig], ...] = ()
    remedy: str = "Ortolan has no family of such models."


_CLASSIFIERS = "Classifiers are supported in encoder families such as BERT, not in this one."

TASKS: Mapping[str, Task] = {
    "ForTokenClassification": Task(
        "a model that labels each token", (EncoderConfig,), _CLASSIFIERS
    ),
    "ForQuestionAnswering": Task(
        "a model that marks answers in a text", (EncoderConfig,), _CLASSIFIERS
    ),
    "ForMultipleChoice": Task("a model that chooses one of several texts"),
    "ForNextSentencePrediction": Task("a model that says whether one sentence follows another"),
    "ForSequenceClassification": Task("a classifier or reranker", (EncoderConfig,), _CLASSIFIERS),
    "ForSpeechSeq2Seq": Task("an encoder-decoder of speech"),
    "ForAudioClassification": Task("a classifier of sound"),
    "ForCTC": Task("a transcriber of speech", (EncoderConfig,)),
    "ForConditionalGeneration": Task("an encoder-decoder", (EncoderDecoderConfig,)),
}
"""By the suffix of the class. Families that read `architectures` themselves are stricter."""

_SPEECH = ("num_mel_bins", "input_feat_per_channel")
"""Keys in the config of a speech model."""


def check_architecture(values: Mapping[str, object], config: ModelConfig | None) -> None:
    """Refuse a checkpoint whose class has another head than its config."""
    name = architecture_of(values)
    kind: type[ModelConfig] = DecoderConfig if config is None else type(config)
    task = next((task for suffix, task in TASKS.items() if name.endswith(suffix)), None)
    if task is not None and kind not in task.kinds:
        raise _refusal(values, name, task)
    is_bare = name.endswith("Model") and not name.endswith(("LMHeadModel", "HeadsModel"))
    if is_bare and issubclass(kind, DecoderConfig):
        raise ConfigError(
            f"architectures: {name} has no head; it computes vectors, not text. To embed texts, "
            "add the files of sentence-transformers (modules.json). If its head is its "
            f"embedding, set architectures to {name.removesuffix('Model')}ForCausalLM."
        )


def check_known_task(values: Mapping[str, object]) -> None:
    """Refuse a task that no family has, before anything else about the checkpoint is checked."""
    name = architecture_of(values)
    for suffix, task in TASKS.items():
        if name.endswith(suffix) and not task.kinds:
            raise _refusal(values, name, task)


def architecture_of(values: Mapping[str, object]) -> str:
    """The class that a config.json names, or an empty string."""
    names = values.get("architectures")
    return str(names[0]) if isinstance(names, list) and names and names[0] else ""


def _refusal(values: Mapping[str, object], name: str, task: Task) -> ConfigError:
    meaning = task.meaning
    if name.endswith("ForConditionalGeneration") and any(key in values for key in _SPEECH):
        meaning += " of speech"
    return ConfigError(
        f"architectures: {name} is {meaning}, which cannot be exported. {task.remedy}"
    )
