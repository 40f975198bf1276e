"""How well a low-bit encoder still compares sentences.

    python benchmarks/embedding_quality.py CHECKPOINT --text FILE... --name minilm

Lines of the files become vectors, the means of their tokens' states. Every setting is compared with
float32 in PyTorch: by the cosine of the two vectors of a line, and by the ranking of all pairs of
lines by similarity. Prints a table and writes embeddings-NAME.json, .md and .png, keeping rows that
were measured earlier over the same lines.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

import report
from catalog import OPENVINO, TRANSFORMERS
from encoding import ONNXRUNTIME
from prepare import all_versions, program, say, trained_checkpoint
from quality import merged
from result_charts import draw_result
from rounds import Program, Worker
from script import add_folders, count, exit_status, names
from settings import GROUP_SIZES, Setting, chosen, ours, point
from sizes import sizes_of
from texts import without_separators

CHARACTERS = range(20, 300)  # shorter lines say little, longer ones would be truncated
REFERENCE = replace(TRANSFORMERS, worker="workers.bert_eager")
OPTIMUM = (
    *("{bin}/optimum-cli", "export", "openvino", "-m", "{checkpoint}"),
    *("--task", "feature-extraction", "--library", "transformers", "--weight-format"),
)

Vectors = NDArray[np.float32]


def own(line: str, label: str, *arguments: str, precision: str = "int4") -> Setting:
    """Ortolan, exporting an encoder with some arguments."""
    setting = ours(line, label, *arguments, precision=precision)
    return replace(setting, peer=replace(setting.peer, worker="workers.ortolan_encoder"))


def nncf(label: str, precision: str, *arguments: str) -> Setting:
    """OpenVINO at a precision, with some arguments."""
    peer = replace(OPENVINO, worker="workers.openvino_encoder")
    command = (*OPTIMUM, precision, "{model}", *arguments)
    return point("openvino", label, peer, *command, precision=precision)


SETTINGS = (
    own("", "fp32", precision="fp32"),
    own("", "int8", precision="int8"),
    own("", "int8 activations too", "--prefill-precision", "int8", precision="int8"),
    own("", "int4"),
    *(
        own(method, f"g{size}", "--method", method, "--group-size", str(size))
        for method in ("rtn", "hqq", "gptq")
        for size in GROUP_SIZES
    ),
    point("onnxruntime", "int8", ONNXRUNTIME, *ONNXRUNTIME.convert["int8"], precision="int8"),
    nncf("int8", "int8"),
    *(
        nncf(f"g{size} {form}", "int4", "--group-size", str(size), *arguments)
        for size in (32, 64, 128)
        for form, arguments in (("sym", ("--sym",)), ("asym", ()))
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Vectors of lines compared with those of the reference.

    Attributes:
        cosine: mean cosine of the two vectors of a line.
        worst_cosine: smallest cosine of any line.
        spearman: rank correlation of the similarities of all pairs of lines.
        nearest: share of lines with the same most similar other line.
    """

    cosine: float
    worst_cosine: float
    spearman: float
    nearest: float

    @classmethod
    def of(cls, reference_NE: Vectors, vectors_NE: Vectors) -> Self:
        """Compare vectors of length 1."""
        cosines = (reference_NE * vectors_NE).sum(axis=1)
        expected_NN, actual_NN = reference_NE @ reference_NE.T, vectors_NE @ vectors_NE.T
        pairs = np.triu_indices(len(vectors_NE), k=1)
        expected_ranks, ranks = ranks_of(expected_NN[pairs]), ranks_of(actual_NN[pairs])
        for similarities in (expected_NN, actual_NN):
            np.fill_diagonal(similarities, -np.inf)
        return cls(
            cosine=float(cosines.mean()),
            worst_cosine=float(cosines.min()),
            # Ranks without ties all have the same variance, so only the covariance differs.
            spearman=float((expected_ranks * ranks).mean() / (ranks**2).mean()),
            nearest=float((expected_NN.argmax(axis=1) == actual_NN.argmax(axis=1)).mean()),
        )


def ranks_of(values: Vectors) -> NDArray[np.float64]:
    """Rank of each value, centered at zero."""
    ranks: NDArray[np.float64] = np.argsort(np.argsort(values)) - np.float64(len(values) - 1) / 2
    return ranks


def lines_of(files: Sequence[Path], count: int) -> list[str]:
    """Distinct lines, evenly spaced over the files.

    Raises:
        ValueError: there are not enough.
    """
    text = "".join(without_separators(file.read_text(encoding="utf-8")) for file in files)
    lines = [line for line in map(str.strip, text.splitlines()) if len(line) in CHARACTERS]
    lines = list(dict.fromkeys(lines))
    if len(lines) < count:
        raise ValueError(f"--text: {count} lines are needed, but there are {len(lines)}.")
    return [lines[number * len(lines) // count] for number in range(count)]


def vectors_of(running: Program, texts: Sequence[Sequence[int]]) -> Vectors:
    """Mean state of each text, scaled to length 1, `(texts, width)`."""
    lengths = sorted({len(ids) for ids in texts})
    means_by_text: dict[int, Vectors] = {}
    with Worker(running) as worker, tempfile.TemporaryDirectory() as folder:
        for length in lengths:  # without padding, whose effect is another question
            numbers = [number for number, ids in enumerate(texts) if len(ids) == length]
            request = {"texts": [texts[number] for number in numbers], "folder": folder}
            means = np.load(worker.answer(request)["path"]).mean(axis=1)
            means_by_text.update(zip(numbers, means, strict=True))
    vectors = np.stack([means_by_text[number] for number in range(len(texts))])
    normed: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normed


def markdown(document: report.Document) -> str:
    """The measurement as text and a table, one row per setting."""
    header = ["", "MB", "1 - cosine", "1 - worst", "Spearman", "same nearest line"]
    rows = [
        [
            f"{entry['tool']} {entry['label']}",
            f"{entry['file_bytes'] / 1e6:.1f}",
            f"{entry['lost_cosine']:.2g}",
            f"{1 - entry['worst_cosine']:.2g}",
            f"{entry['spearman']:.4f}",
            f"{entry['nearest']:.3f}",
        ]
        for entry in document["settings"]
    ]
    return "\n\n".join(
        [
            f"# Quality of the embeddings of {document['checkpoint']}",
            f"Compared with float32 in PyTorch: {document['text']}. Spearman is the rank "
            "correlation of the similarities of all pairs. MB are millions of bytes of weight "
            "files, without "
            "tokenizers.",
            report.table(header, rows),
            report.with_versions(document["versions"]),
        ]
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure the quality of low-bit encoders.")
    parser.add_argument("checkpoint", type=Path, help="checkpoint folder")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="text files")
    parser.add_argument("--lines", type=count, default=512, help="number of lines to use")
    parser.add_argument("--name", help="name of the result; the folder's name by default")
    parser.add_argument("--only", type=names, default=(), help="TOOL,PATTERN: settings to measure")
    parser.add_argument("--reuse", action="store_true", help="keep Ortolan's earlier exports")
    parser.add_argument("--threads", type=count, default=2)
    add_folders(parser)
    return parser.parse_args(arguments)


def publish(document: report.Document, path: Path) -> None:
    """Write the rows together with those of earlier runs over the same lines."""
    if path.exists():
        earlier = json.loads(path.read_text(encoding="utf-8"))
        document = merged(earlier, document)
    report.write(path, document, markdown(document))
    draw_result(document, path.with_suffix(".png"))


def programs(settings: Sequence[Setting], args: argparse.Namespace) -> Iterator[Program]:
    """Convert the model for each setting if needed, and yield the program that runs it."""
    checkpoint = trained_checkpoint(args.checkpoint)
    checkpoint = replace(checkpoint, name=args.name or checkpoint.name)
    for setting in settings:
        peer = replace(setting.peer, reuse=setting.peer.reuse or args.reuse)
        precision, threads = setting.precision, args.threads
        yield program(peer, checkpoint, args.work, precision=precision, threads=threads)


def compare(args: argparse.Namespace) -> None:
    """Measure every requested setting; print and write the result after each."""
    settings = chosen(args.only, SETTINGS)
    tokenizer = Tokenizer.from_file(str(args.checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = [encoding.ids for encoding in tokenizer.encode_batch(lines_of(args.text, args.lines))]
    versions = all_versions(setting.peer for setting in settings)
    first = Setting(tool="transformers", label="fp32", precision="fp32", peer=REFERENCE)
    reference = vectors_of(next(programs([first], args)), texts)
    name = args.name or args.checkpoint.resolve().name
    path = args.out / f"embeddings-{name}.json"
    for setting, running in zip(settings, programs(settings, args), strict=True):
        agreement = Agreement.of(reference, vectors_of(running, texts))
        entry = {
            **{"tool": setting.tool, "label": setting.label, "precision": setting.precision},
            "lost_cosine": 1 - agreement.cosine,
            **dataclasses.asdict(agreement),
            **dataclasses.asdict(sizes_of(running.model)),
        }
        say(f"{setting.name}: {entry['file_bytes'] / 1e6:.1f} MB, {agreement}")
        document = {
            "checkpoint": name,
            "text": f"{len(texts)} lines of {', '.join(file.name for file in args.text)}",
            "versions": {setting.tool: versions[setting.peer.name]},
            "machine": report.machine(),
            "settings": [entry],
        }
        publish(document, path)
    print(path.with_suffix(".md").read_text(encoding="utf-8"))
    say(f"wrote {path}, .md and .png")


if __name__ == "__main__":
    sys.exit(exit_status(compare, parse()))
