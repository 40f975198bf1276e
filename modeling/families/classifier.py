"""The heads of encoders, and the labels and scores of classifiers.

Labels follow `PreTrainedConfig` of transformers, scores its pipelines for text and image
classification.
"""

from collections.abc import Mapping
from typing import Any

from ortolan.modeling.config import (
    ClassifierHead,
    Head,
    HeadLayer,
    LanguageModelHead,
    Pooling,
    ScoreFunction,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.reader import ConfigReader

BASE, MASKED, PRETRAINING = "Model", "ForMaskedLM", "ForPreTraining"
CLASSIFIER, TOKEN_CLASSIFIER = "ForSequenceClassification", "ForTokenClassification"
QUESTION_ANSWERING = "ForQuestionAnswering"

SPAN = ("start", "end")
"""Names of the logits of a head for question answering."""

PROBLEMS: dict[str, ScoreFunction] = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "none",
}
"""The function that transformers' pipelines apply for each `problem_type`."""

ACTIVATIONS: dict[str, ScoreFunction] = {
    "Identity": "none",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
}
"""Modules of PyTorch that a cross-encoder of sentence-transformers may apply."""

FIRST: Mapping[str, Pooling] = {"first": "first"}


def read_head(
    hf: ConfigReader,
    classes: str,
    language_model: LanguageModelHead,
    *,
    pretraining: bool = False,
    answers: bool = True,
    pooling: str = "first",
    poolings: Mapping[str, Pooling] = FIRST,
    layer: HeadLayer,
    token_layer: HeadLayer | None = None,
) -> Head | None:
    """The head that `architectures` names; None for the encoder alone."""
    suffixes = [BASE, MASKED, *([PRETRAINING] if pretraining else [])]
    suffixes += [CLASSIFIER, TOKEN_CLASSIFIER, *([QUESTION_ANSWERING] if answers else [])]
    suffix = hf.architecture(*(f"{classes}{known}" for known in suffixes)).removeprefix(classes)
    if suffix == BASE:
        return None
    if suffix in (MASKED, PRETRAINING):
        return language_model
    if suffix == TOKEN_CLASSIFIER:
        return read_token_classifier(hf, token_layer)
    if suffix == QUESTION_ANSWERING:
        return read_span_head(hf, token_layer)
    if pooling not in poolings:
        raise ConfigError(
            f"{hf.name}: classifier_pooling must be {' or '.join(poolings)} (got {pooling!r:.40}). "
            "This checkpoint cannot be loaded faithfully."
        )
    return read_classifier(hf, pooling=poolings[pooling], layer=layer)


def read_classifier(
    hf: ConfigReader,
    *,
    pooling: Pooling,
    layer: HeadLayer | None = None,
    distilled: bool = False,
) -> ClassifierHead:
    """Read the head of a classifier."""
    labels = read_labels(hf)
    function = read_score_function(hf, len(labels))
    return ClassifierHead(
        labels=labels, scores=function, pooling=pooling, layer=layer, distilled=distilled
    )


def read_token_classifier(hf: ConfigReader, layer: HeadLayer | None) -> ClassifierHead:
    """Read the head of a classifier of tokens, whose labels exclude each other."""
    # transformers always applies a softmax here.
    hf.skip("problem_type", "function_to_apply")
    labels = read_labels(hf)
    if len(labels) < 2:
        raise ConfigError(
            f"{hf.name}: a classifier of tokens needs at least two labels (got {len(labels)}). "
            "Correct id2label."
        )
    return ClassifierHead(labels=labels, pooling=None, layer=layer)


def read_span_head(hf: ConfigReader, layer: HeadLayer | None) -> ClassifierHead:
    """Read the head of a model for question answering: logits of the answer's start and end."""
    hf.skip("problem_type", "function_to_apply")
    if (count := len(read_labels(hf))) != len(SPAN):
        raise ConfigError(
            f"{hf.name}: a model for question answering needs two labels, of the start and the end "
            f"of the answer (got {count}). Correct id2label or num_labels."
        )
    return ClassifierHead(labels=SPAN, pooling=None, scores="none", layer=layer)


def read_labels(hf: ConfigReader) -> tuple[str, ...]:
    """The names of a classifier's outputs, in order; two of them by default.

    A `num_labels` that does not match `id2label` replaces its names, as in transformers.
    """
    named = hf.get("id2label", dict, None)
    count = hf.size("num_labels", None)
    by_id = {} if named is None else {_id(hf, key, named): name for key, name in named.items()}
    if named is None or (count is not None and count != len(by_id)):
        count = hf.size("_num_labels", 2) if count is None else count
        return tuple(f"LABEL_{i}" for i in range(count))
    names = [by_id.get(i) for i in range(len(by_id))]
    if not names or not all(type(name) in (str, int) for name in names):
        raise _bad_names(hf, named)
    return tuple(map(str, names))


def read_score_function(hf: ConfigReader, labels: int) -> ScoreFunction:
    """The function that turns the logits of a classifier into scores.

    `problem_type` decides. Without it, several labels exclude each other, and a single one has a
    probability of its own, unless the checkpoint is a cross-encoder that says otherwise.
    """
    problem = hf.get("problem_type", str, None)
    if problem is not None and problem not in PROBLEMS:
        raise ConfigError(
            f"{hf.name}: problem_type must be {', '.join(PROBLEMS)} (got {problem!r:.60}). "
            "Correct it."
        )
    if problem == "single_label_classification" and labels == 1:
        raise ConfigError(
            f"{hf.name}: a single label cannot have the problem_type {problem}. Correct one of "
            "id2label and problem_type."
        )
    function = PROBLEMS.get(problem or "", "softmax" if labels > 1 else "sigmoid")
    own = _cross_encoder(hf)
    # sentence-transformers writes Identity for every model of several labels
    if problem is None and own is not None and (labels == 1 or own != "none"):
        function = own
    _check_named_function(hf, function)
    if labels == 1 and function == "softmax":
        raise ConfigError(
            f"{hf.name}: a softmax of a single label is always 1. Remove the activation function "
            "from the config, or name the other labels."
        )
    return function


def _check_named_function(hf: ConfigReader, function: ScoreFunction) -> None:
    """Refuse a `function_to_apply` that transformers' pipelines would not obey."""
    named = hf.get("function_to_apply", str, None)
    if named is not None and named.lower() != function:
        raise ConfigError(
            f"{hf.name}: function_to_apply is {named!r:.40}, but transformers applies {function!r} "
            f"to this model. Remove the key to do the same, or set problem_type to one of "
            f"{', '.join(PROBLEMS)}."
        )


def _cross_encoder(hf: ConfigReader) -> ScoreFunction | None:
    """The function that sentence-transformers applies to the logits, or None."""
    library = hf.nested("sentence_transformers")
    named = None if library is None else library.get("activation_fn", str, None)
    if library is not None:
        library.skip("version")
    old = hf.get("sbert_ce_default_activation_function", str, None)
    named = old if named is None else named
    if named is None:
        return None
    kind = named.rpartition(".")[2]
    if not named.startswith("torch.nn.") or kind not in ACTIVATIONS:
        raise ConfigError(
            f"{hf.name}: the activation function of this cross-encoder must be one of "
            f"{', '.join(ACTIVATIONS)} of torch.nn (got {named!r:.80}). Remove it to apply what "
            "transformers applies."
        )
    return ACTIVATIONS[kind]


def _id(hf: ConfigReader, key: object, named: dict[Any, Any]) -> int:
    """The number of a label, which JSON writes as a string."""
    try:
        return int(str(key))
    except ValueError:
        raise _bad_names(hf, named) from None


def _bad_names(hf: ConfigReader, named: dict[Any, Any]) -> ConfigError:
    return ConfigError(
        f"{hf.name}: id2label must name the labels 0, 1, ... (got {named!r:.80}). Correct it."
    )


def head_hf_config(head: Head | None, classes: str, *, kind: str = "") -> dict[str, object]:
    """The keys that name a model's head."""
    match head:
        case LanguageModelHead(tied=tied):
            return {"architectures": [f"{classes}{MASKED}"], "tie_word_embeddings": tied}
        case ClassifierHead(pooling=None, scores="none"):
            return {"architectures": [f"{classes}{QUESTION_ANSWERING}"]}
        case ClassifierHead(labels=labels, pooling=pooling):
            suffix = TOKEN_CLASSIFIER if pooling is None else kind or CLASSIFIER
            return {
                **problem_of(head),
                "architectures": [f"{classes}{suffix}"],
                "id2label": {str(i): label for i, label in enumerate(labels)},
                "label2id": {label: i for i, label in enumerate(labels)},
            }
        case _:
            return {"architectures": [f"{classes}{BASE}"]}


def problem_of(head: ClassifierHead) -> dict[str, str]:
    """`problem_type` for a published config, where transformers needs it."""
    usual = ("softmax",) if len(head.labels) > 1 else ("softmax", "sigmoid")
    if head.scores in usual:
        return {}
    names = {function: name for name, function in PROBLEMS.items()}
    return {"problem_type": names[head.scores]}
