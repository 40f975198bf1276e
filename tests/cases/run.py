"""Exports each case once in a run of the tests, for all processes that run tests side by side."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from shutil import copytree
from typing import Any

from syrupy.assertion import SnapshotAssertion
from tests.cases import Case, Variant
from tests.quick_exports import alone

import ortolan


class Run:
    """A case in a variant.

    Attributes:
        case: the case.
        variant: the variant.
        checkpoint: what was exported.
        bundle: the export.
        folder: an empty folder, in tests of laws.
        snapshot: texts that were reviewed, in tests of laws.
    """

    folder: Path
    snapshot: SnapshotAssertion

    def __init__(self, case: Case, variant: Variant, root: Path) -> None:
        self.case, self.variant = case, variant
        self.checkpoint, self.bundle = root / "checkpoint", root / variant.name

    def export(self, source: Any, out: Path) -> None:
        """Export a source as this variant says."""
        ortolan.export(
            source,
            out,
            precision=self.variant.precision,
            device=self.variant.device,
            options=self.variant.options,
            max_context=self.variant.max_context,
        )

    @cached_property
    def model(self) -> Any:
        """The loaded bundle."""
        return ortolan.load(self.bundle, device="cpu", threads=1)

    @cached_property
    def inputs(self) -> list[Any]:
        """The inputs of the case."""
        return [*self.case.inputs.values()]

    @cached_property
    def answers(self) -> list[Any]:
        """The answers of the model to each input alone."""
        return [self.case.call(self.model, [each])[0] for each in self.inputs]

    @cached_property
    def expected(self) -> Sequence[Any]:
        """The answers of another library to the inputs."""
        assert self.case.reference is not None
        return self.case.reference(self.checkpoint, self.inputs)

    def copied(self, folder: Path) -> Path:
        """A copy of the bundle."""
        return Path(copytree(self.bundle, folder / "copy"))


class Runs:
    """All runs, each exported when it is first needed.

    Args:
        root: folder that all processes share.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(exist_ok=True)
        self._run = lru_cache(maxsize=8)(self._exported)  # loaded models are not small

    def __call__(self, case: Case, variant: str | None = None) -> Run:
        """The run in a variant, by default the first."""
        named = {one.name: one for one in case.variants}
        return self._run(case, named[variant] if variant else case.variants[0])

    def _exported(self, case: Case, variant: Variant) -> Run:
        root = self._root / case.name
        root.mkdir(exist_ok=True)
        run, done = Run(case, variant, root), root / f"{variant.name}.done"
        with alone(root / "lock"):
            if not done.exists():
                run.checkpoint.mkdir(exist_ok=True)
                module = None if any(run.checkpoint.iterdir()) else case.write(run.checkpoint)
                run.export(run.checkpoint if module is None else module, run.bundle)
                done.touch()
        return run
