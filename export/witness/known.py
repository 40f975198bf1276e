"""Differences that are known, where the publisher's code is wrong and the bundle is not: data."""

ONE_COLUMN = "a picture that is one patch wide"
"""PyTorch 2.13 copies the first row when it resizes a table to one column with antialiasing, so
transformers gives each row of such a picture the position of the first. SigLIP 2 was trained in
JAX, which resizes it as bundles do."""

NO_TASK = "a transcript by a Whisper whose generation_config.json names no task"
"""transformers leaves out the token of the task, so the model chooses one. Bundles transcribe."""

SILENCE = "the silence after a sound that is shorter than a window of Whisper"
"""transformers transcribes it too, window by window. OpenAI's own Whisper and bundles stop where
the sound ends."""

PADDING = "a padding token within the target of an encoder-decoder"
"""M2M100 of transformers gives it no position in a whole text, and one in a cached step."""
