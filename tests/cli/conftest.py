"""The command line in tests, and one tiny checkpoint exported through it."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from ortolan.cli import main

REPOSITORY = Path(__file__).parents[2]

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def run_here(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command line in this process, which has already imported the slow packages."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    words = ["ortolan", *map(str, arguments)]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", words)
        patch.setattr(sys.modules["__main__"], "__package__", None)  # usage names no `python -m`
        patch.setattr("ortolan.cli.progress.FIRST_LINE_S", 3600)  # a busy machine takes its time
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            main()
    assert isinstance(end.value.code, int)
    written = (stream.detach().getvalue() for stream in (out, err))
    return subprocess.CompletedProcess(words, end.value.code, *written)


def run_in_subprocess(
    *arguments: str | Path, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "ortolan", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": "src"},
        check=False,
    )


def error_line(*arguments: str | Path, stdin: bytes = b"") -> str:
    """Run a command that must fail, and return its only line."""
    done = run_here(*arguments, stdin=stdin)
    assert done.returncode == 2
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("ortolan: ")
    return line


@pytest.fixture(scope="session")
def ortolan() -> Run:
    """The command line."""
    return run_here


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with a byte-level tokenizer."""
    import torch
    from tests.runtime.tiny_tokenizers import byte_level

    from ortolan import modeling
    from ortolan.modeling.checkpoint.folder import config_from_hf

    folder, tokenizer = tmp_path_factory.mktemp("checkpoint"), byte_level()
    torch.manual_seed(0)
    config = config_from_hf({**CONFIG, "vocab_size": tokenizer.get_vocab_size()})
    modeling.save(modeling.DecoderModel(config), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def bundle(ortolan: Run, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of that checkpoint."""
    path = tmp_path_factory.mktemp("bundles") / "tiny"
    done = ortolan("export", checkpoint, path)
    assert done.returncode == 0, done.stderr.decode()
    return path
