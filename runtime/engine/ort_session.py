"""onnxruntime sessions: how graphs are opened, and how their failures are raised.

Never loads a library of custom operators, and takes no session option from a bundle.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.kinds import DECODE, DECODER, ENCODER, MAPS_ROLE, STEPPED
from ortolan.runtime.bundle.manifest import Graph, Manifest, SessionSettings
from ortolan.runtime.engine.attention_kernels import SWITCH, kernel_choice
from ortolan.runtime.engine.providers import check_started, ort, use_device
from ortolan.runtime.engine.threads import is_small_translator, step_threads
from ortolan.runtime.errors import ComputeError, DeviceError, GraphError
from ortolan.runtime.graph.element_types import counting_nodes
from ortolan.runtime.machine.exit_guard import native_call

if TYPE_CHECKING:
    from ortolan.runtime.bundle.packed import Packed

_ERRORS_ONLY = 3

_SLOW_FUSIONS = ["SkipLayerNormFusion"]  # on a CPU: docs/adr/0011

_NO_KLEIDIAI = ("mlas.disable_kleidiai", "1")  # on ARM: docs/adr/0011

_REMEDY = "Export the checkpoint again, or install the onnxruntime that it was exported with."

_STOP_SPINNING = ("session.force_spinning_stop", "1")
"""Otherwise threads of the prefill session keep spinning and slow the first decode steps."""

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


class OrtSession(ort.InferenceSession):  # type: ignore[misc]
    """An onnxruntime session that raises `ComputeError` when a kernel fails.

    onnxruntime's own error classes have no common base. After a failure the outputs are undefined.
    """

    def run(self, *args: Any) -> Any:
        """Compute outputs from inputs."""
        try:
            with native_call():
                return super().run(*args)
        except Exception as error:
            raise _failed(error) from error

    def run_with_iobinding(self, *args: Any) -> None:
        """Compute from bound buffers into bound buffers."""
        try:
            with native_call():
                super().run_with_iobinding(*args)
        except Exception as error:
            raise _failed(error) from error


def open_session(
    bundle: Bundle,
    role: str,
    threads: int,
    packed: "Packed | None",
    device: str = "cpu",
    adapt: Callable[[bytes], bytes] | None = None,
) -> OrtSession:
    """Open the graph with this role."""
    graph = bundle.manifest.graphs[role]
    # the bytes that were checked, not the path: the file may have changed since
    data = bundle.read(graph.file)
    remedy = _REMEDY
    if packed is not None:
        data = packed.attach(graph.file, data)
        # onnxruntime 1.32 rejects packed weights that differ from those it computes
        remedy = f"Run `ortolan pack` again, or delete the folder {packed.folder}."
    if adapt is not None and role in STEPPED:
        data = adapt(data)
    if role not in (ENCODER, MAPS_ROLE):
        threads = step_threads(threads, bundle.manifest)
    options = _options(bundle, threads=threads)
    if role not in (DECODER, DECODE):
        options.add_session_config_entry(*_STOP_SPINNING)
    is_tiled = _is_tiled(bundle.manifest, role)
    return _load(graph.file, data, options, is_tiled=is_tiled, device=device, remedy=remedy)


def session_settings(manifest: Manifest) -> SessionSettings:
    """Settings that sessions of a bundle have here, for other programs."""
    role = DECODER if manifest.model_kind.has_decoder else ENCODER
    return SessionSettings(
        disabled_optimizers=tuple(_SLOW_FUSIONS),
        environment={} if _is_tiled(manifest, role) else {SWITCH: "1"},
        config_entries=dict([_NO_KLEIDIAI]),
    )


def _is_tiled(manifest: Manifest, role: str) -> bool:
    """Whether to use the tiled attention kernel.

    It is faster for small translators and 8-bit keys (docs/adr/0018).
    """
    if role != ENCODER and is_small_translator(manifest):
        return True
    return any(state.dtype == "int8" for state in manifest.states)


def open_part(
    bundle: Bundle, graph: bytes, *, threads: int, device: str = "cpu"
) -> Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
    """Open a graph cut from one of the bundle's graphs, and return a function that runs it."""
    session = _load("a part of a graph", graph, _options(bundle, threads=threads), device=device)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def save_packed(bundle: Bundle, graph: Graph, folder: Path, *, weights: str) -> Path:
    """Write a graph as onnxruntime runs it, with all weights, packed copies included."""
    options = _options(bundle, threads=1)
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    return _save(bundle, graph, folder, options, weights=weights)


def save_optimized(bundle: Bundle, graph: Graph, folder: Path) -> Path:
    """Write a graph as onnxruntime runs it on the CPU, with its weights in a file of their own."""
    return _save(bundle, graph, folder, _options(bundle, threads=1), weights="weights.bin")


def _save(bundle: Bundle, graph: Graph, folder: Path, options: Any, *, weights: str) -> Path:
    path = folder / graph.file
    options.optimized_model_filepath = str(path)
    for key, value in (
        ("session.optimized_model_external_initializers_file_name", weights),
        ("session.optimized_model_external_initializers_min_size_in_bytes", "0"),
    ):
        options.add_session_config_entry(key, value)
    _load(graph.file, bundle.read(graph.file), options)
    return path


def open_small(graph: bytes, device: str) -> OrtSession:
    """Open a graph without weights on a device."""
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    return _load("a graph of copies", graph, options, device=device)


def _options(bundle: Bundle, *, threads: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry(*_NO_KLEIDIAI)
    if is_small_translator(bundle.manifest):
        # many small tensors: without these two a sentence takes 0.96 of the time
        options.enable_cpu_mem_arena = options.enable_mem_reuse = False
    if bundle.kept is None:
        options.add_session_config_entry(_EXTERNAL_FOLDER, str(bundle.path))
    else:
        names = bundle.manifest.weights
        contents = [bundle.kept[name] for name in names]
        options.add_external_initializers_from_files_in_memory(
            names, contents, [*map(len, contents)]
        )
    return options


def _load(
    name: str,
    data: bytes,
    options: Any,
    *,
    is_tiled: bool = False,
    device: str = "cpu",
    remedy: str = _REMEDY,
) -> OrtSession:
    try:
        providers = use_device(options, device)
        with kernel_choice(whole_scores=not is_tiled):
            session = OrtSession(
                data, options, providers, disabled_optimizers=_SLOW_FUSIONS, enable_fallback=0
            )
        check_started(session, device, partial(counting_nodes, data))
        return session
    except DeviceError:
        raise
    except Exception as error:  # onnxruntime's own error classes have no common base
        raise GraphError(
            f"{name}: onnxruntime {ort.__version__} cannot load this graph: {_first_line(error)}. "
            f"{remedy}"
        ) from error


def _failed(error: Exception) -> ComputeError:
    return ComputeError(
        f"onnxruntime {ort.__version__} failed to run the model: {_first_line(error)}. "
        "If `ortolan verify` passes on the bundle, memory is short; otherwise export it again."
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300].rstrip(".") or type(error).__name__
