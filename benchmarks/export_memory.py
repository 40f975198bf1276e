"""Measure the peak memory and the time of an export; depth should not add to the memory.

    python benchmarks/export_memory.py 1b
    python benchmarks/export_memory.py 1b --layers 32
    python benchmarks/export_memory.py 1b --options precision=int4 method=gptq calibration=TEXT

Writes a random checkpoint of a named shape if needed, exports it in a child process, and prints the
peak resident memory of that process (VmHWM, Linux). Verification runs in a further process, whose
memory is not counted.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from make_checkpoint import SHAPES, make_checkpoint

ROOT = Path(__file__).parents[1]

CHILD = """
import json, sys, time
from pathlib import Path
started = time.monotonic()
from ortolan.export.options import ExportOptions
from ortolan.export.pipeline import export
from ortolan.export.options import Int4, Int8
steps = {}
def progress(step, *_):
    steps.setdefault(step, time.monotonic() - started)
pairs = (option.split("=", 1) for option in sys.argv[3:])
options = {name: int(value) if value.isdigit() else value for name, value in pairs}
def taken(*names):
    return {name: options.pop(name) for name in names if name in options}
graphs = ExportOptions(**taken(*ExportOptions.__dataclass_fields__))
loose, precision = taken("device", "calibration", "max_context"), options.pop("precision", "fp32")
if options:
    precision = {"int4": Int4, "int8": Int8}[precision](**options)
export(
    *sys.argv[1:3], precision=precision, options=graphs, force=True, progress=progress, **loose
)
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
seconds = time.monotonic() - started
print(json.dumps({"peak_bytes": peak, "seconds": seconds, "begun_at_s": steps}))
"""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure the peak memory of an export.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, help="number of layers; the shape's own by default")
    parser.add_argument("--options", nargs="*", default=[], help="export options, NAME=VALUE")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "export_memory")
    args = parser.parse_args()
    name = args.shape if args.layers is None else f"{args.shape}-{args.layers}"
    checkpoint = args.work / name / "checkpoint"
    if not (checkpoint / "config.json").exists():
        make_checkpoint(args.shape, checkpoint, layers=args.layers)
    bundle = args.work / name / "bundle"
    command = [sys.executable, "-c", CHILD, str(checkpoint), str(bundle), *args.options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    sizes = {
        role: sum(file.stat().st_size for file in folder.iterdir())
        for role, folder in (("checkpoint_bytes", checkpoint), ("bundle_bytes", bundle))
    }
    print(json.dumps({"shape": name, "options": args.options, **sizes, **measured}, indent=2))


if __name__ == "__main__":
    main()
