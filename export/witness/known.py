"""Differences that are known, where the publisher's code is wrong and the bundle is not: data."""

from collections.abc import Mapping

ONE_COLUMN = "a picture that is one patch wide"
"""PyTorch 2.13 copies the first row when it resizes a table to one column with antialiasing, so
transformers gives each row of such a picture the position of the first. SigLIP 2 was trained in
JAX, which resizes it as bundles do."""

NO_TASK = "a transcript by a Whisper whose generation_config.json names no task"
"""transformers leaves out the token of the task, so the model chooses one. Bundles transcribe."""

SILENCE = "the silence after a sound that is shorter than a window of Whisper"
"""transformers transcribes it too, window by window. OpenAI's own Whisper and bundles stop where
the sound ends."""

PADDING = "a padding token within a text that a decoder continues"
"""M2M100 and RoBERTa of transformers give it no position in a whole text, and one in a cached
step."""

LABELS = "labels of one name"
"""Pipelines of transformers tell them apart by order alone. Bundles number them."""

ACTIVATION = "the activation of a cross-encoder with several labels"
"""sentence-transformers writes Identity for each, whatever it was trained for. Bundles return the
probabilities of transformers' pipelines."""

BIASED: Mapping[str, str] = {"falcon": "alibi"}
"""The key of a type that turns on biases of distances which PyTorch's operations one by one add
twice: to the mask, and to the scores. Fused attention adds them once, as in training."""

TYPES = "token types for a model that reads none"
"""Models of transformers fail on them. Bundles leave them out."""

POSITIONS = "a limit of tokens beyond a model's positions"
"""transformers and sentence-transformers fail on longer texts. Bundles cut them."""

SPARSE = "texts beyond which attention is sparse"
"""BigBird of transformers attends to all tokens of shorter texts, and bundles cut longer ones."""
