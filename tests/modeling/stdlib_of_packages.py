"""A standard library of a few small files for each package, and recipes that learn from it."""

from pathlib import Path

from ortolan.modeling.training.corpora.snippets import PACKAGES

FILES = 4
"""Of each package; one of them is held out."""

MODEL = """
[model]
model_type = "bert"
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 1
num_attention_heads = 2
max_position_embeddings = 64
type_vocab_size = 1
"""

TOKENIZER = """
[tokenizer]
vocab_size = 400
"""

DATA = """
[data]
source = "snippets"
objective = "{objective}"
exclude = ["vendored/*"]
"""

TRAINING = """
[training]
steps = 150
batch_size = 16
sequence_length = 48
learning_rate = 3e-3
warmup_steps = 10
evaluate_every = 75
"""

MASKED = MODEL + TOKENIZER + DATA.format(objective="masked") + TRAINING

SCRATCH = MODEL + TOKENIZER + DATA.format(objective="classification") + TRAINING

STARTED = MODEL + DATA.format(objective="classification") + 'start = "pretrained"\n' + TRAINING


def write_stdlib(root: Path) -> Path:
    """Files whose lines tell their package, with imports that give it away."""
    for package in PACKAGES:
        for number in range(FILES):
            lines = [f"import {package}", f"from {package}.part import thing", "from . import near"]
            for line in range(30):
                lines += [f"def {package[::-1]}(x{line}):", f"    return {number + line}", ""]
            path = root / package / f"file{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines))
    others = {
        "top.py": "value = 1\n\n\nother = 2\n" * 40,
        "vendored/far.py": "import asyncio\n" * 40,
        "test/test_json/test_one.py": "assert loads('1') == 1\n" * 24,
        "test/test_urllib2.py": "assert quote('1') == '1'\n" * 24,
        "test/test_other.py": "assert True\n" * 24,
    }
    for name, text in others.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "json" / "latin1.py").write_bytes("# é\n".encode("latin-1"))
    return root
