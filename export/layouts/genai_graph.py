"""Opens the graph of a folder for onnxruntime-genai, and gives it the interface of a bundle."""

from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx_ir.passes import common

from ortolan.export.errors import LayoutError
from ortolan.export.layouts.genai_config import Decoder, GenaiConfig
from ortolan.export.passes.own_forms import OwnForms
from ortolan.export.passes.take_lengths import TakeLengths
from ortolan.export.passes.take_mask import MASK
from ortolan.runtime.bundle.interface import (
    IDS,
    LOGITS,
    PAST,
    PRESENT,
    STEP_INPUTS,
    state_names,
)


def open_graph(folder: Path, config: GenaiConfig) -> ir.Model:
    """The decoder with the names, inputs and node forms of a bundle.

    Raises:
        LayoutError: the graph is missing or damaged, or is not that of such a decoder.
    """
    decoder = config.model.decoder
    path = folder / decoder.filename
    try:
        model = ir.load(path)
    except FileNotFoundError as error:
        raise LayoutError(f"{folder} has no {decoder.filename}. Build the folder again.") from error
    except (DecodeError, ValueError) as error:
        raise LayoutError(f"{path} is not an ONNX graph: {error}. Build it again.") from error
    _rename(model.graph, decoder)
    _check_inputs(model.graph, decoder)
    _check_attention(model.graph, decoder)
    if not TakeLengths()(model).modified:
        raise LayoutError(
            f"{decoder.filename}: expected an attention_mask and logits of a matrix product, got "
            "others. The model builder writes such graphs with its default options."
        )
    ir.passes.Sequential(
        OwnForms(),
        common.RemoveUnusedNodesPass(),
        common.ClearMetadataAndDocStringPass(),
    )(model)
    _drop_unread(model.graph, decoder)
    _set_shapes(model.graph, config)
    return model


def _rename(graph: ir.Graph, decoder: Decoder) -> None:
    """Give inputs and outputs the names of the contract."""
    layers = range(decoder.num_hidden_layers)
    inputs, outputs = decoder.inputs, decoder.outputs
    names = {inputs.input_ids: IDS, inputs.attention_mask: MASK, outputs.logits: LOGITS}
    for theirs, prefix, kind in (
        (inputs.past_key_names, PAST, "key"),
        (inputs.past_value_names, PAST, "value"),
        (outputs.present_key_names, PRESENT, "key"),
        (outputs.present_value_names, PRESENT, "value"),
    ):
        names |= {theirs.replace("%d", str(i)): f"{prefix}.{i}.{kind}" for i in layers}
    for value in (*graph.inputs, *graph.outputs):
        value.name = names.get(value.name or "", value.name)


def _check_inputs(graph: ir.Graph, decoder: Decoder) -> None:
    layers = decoder.num_hidden_layers
    expected = {IDS, MASK, *state_names(PAST, layers)}
    inputs = {value.name: value for value in graph.inputs}
    if missing := sorted(expected - inputs.keys()):
        raise LayoutError(f"{decoder.filename}: expected the input {missing[0]!r}, got none.")
    for name in inputs.keys() - expected:
        if readers := sorted({use.node.op_type for use in inputs[name].uses()}):
            raise LayoutError(
                f"{decoder.filename}: expected only ids, a mask and a KV cache as inputs, got "
                f"{name!r}, which {readers[0]} reads. Bundles have no such input."
            )
    outputs = {value.name for value in graph.outputs}
    wanted = {LOGITS, *state_names(PRESENT, layers)}
    if outputs != wanted:
        odd = sorted(str(name) for name in outputs ^ wanted)
        raise LayoutError(
            f"{decoder.filename}: expected logits and a KV cache as outputs, got a difference in "
            f"{', '.join(odd[:3])}."
        )


def _check_attention(graph: ir.Graph, decoder: Decoder) -> None:
    words = ("Attention", "Recurrence")
    attention = [node for node in graph if node.op_type.endswith(words)]
    others = sorted({node.op_type for node in attention} - {"GroupQueryAttention"})
    if others or len(attention) != decoder.num_hidden_layers:
        got = ", ".join(others) or f"{len(attention)} nodes for {decoder.num_hidden_layers} layers"
        raise LayoutError(
            f"{decoder.filename}: expected GroupQueryAttention in every layer, got {got}."
        )


def _drop_unread(graph: ir.Graph, decoder: Decoder) -> None:
    """Remove inputs and initializers without readers."""
    contract = {*STEP_INPUTS, *state_names(PAST, decoder.num_hidden_layers)}
    for value in [value for value in graph.inputs if value.name not in contract]:
        if readers := sorted({use.node.op_type for use in value.uses()}):
            raise LayoutError(
                f"{decoder.filename}: expected only attention to read {value.name!r}, got "
                f"{readers[0]}. Such a decoder cannot be imported."
            )
        graph.inputs.remove(value)
    for name, value in list(graph.initializers.items()):
        if not value.uses():
            del graph.initializers[name]


def _set_shapes(graph: ir.Graph, config: GenaiConfig) -> None:
    """Give states and logits the axes of the contract, and logits float32."""
    decoder = config.model.decoder
    axes: list[int | str] = ["batch", decoder.num_key_value_heads, "capacity", decoder.head_size]
    for value in (*graph.inputs, *graph.outputs):
        if (value.name or "").startswith((f"{PAST}.", f"{PRESENT}.")):
            value.shape = ir.Shape(axes)
    logits = next(value for value in graph.outputs if value.name == LOGITS)
    logits.shape = ir.Shape(["batch", "rows", config.model.vocab_size])
    if logits.dtype == ir.DataType.FLOAT:
        return
    node = ir.node("Cast", [logits], {"to": ir.DataType.FLOAT})
    graph.append(node)
    (widened,) = node.outputs
    widened.shape, widened.type = logits.shape, ir.TensorType(ir.DataType.FLOAT)
    graph.outputs[graph.outputs.index(logits)] = widened
    logits.name, widened.name = f"{LOGITS}.narrow", LOGITS
