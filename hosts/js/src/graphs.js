/** What a graph returns, against the manifest: see ortolan/runtime/bundle/interface.py and graph_checks.py. */

import { check, GraphError } from "./errors.js";

/** Kinds of outputs with one row for each input, rather than for each token. */
const WHOLE = ["embedding", "labels", "tags", "scores"];

/** The shapes of a graph's outputs by name. Sizes that change are words. */
export function outputsOf(role, { states, output, vocab_size: vocabulary, hidden_states: hidden }) {
  const isEncoder = role === "encoder";
  const tokens = WHOLE.includes(output?.kind) ? [] : ["tokens"];
  return new Map([
    ...(isEncoder ? [] : [["logits", ["batch", "rows", vocabulary]]]),
    ...(hidden && !isEncoder ? [["hidden_states", ["batch", "sequence", hidden.size]]] : []),
    ...(output && isEncoder ? [["output", ["batch", ...tokens, output.size]]] : []),
    ...states.filter(({ update }) => (update === "source") === isEncoder).map((state) => [state.output, state.shape]),
  ]);
}

/** Check that a graph has exactly the outputs of its role. */
export function checkOutputs(file, role, expected, declared) {
  const names = declared.map(({ name }) => name);
  const missing = [...expected.keys()].filter((name) => !names.includes(name));
  const surplus = names.filter((name) => !expected.has(name));
  const listed = (some) => some.sort().slice(0, 4).join(", ").slice(0, 300) || "none";
  const wrong = `${file} has the wrong outputs for the role '${role}'; missing: ${listed(missing)}; unexpected: ${listed(surplus)}.`;
  check(!missing.length && !surplus.length, GraphError, `${wrong} Export the checkpoint again.`);
  for (const { name, type, shape } of declared) checkOutput(file, name, expected.get(name), type, shape);
}

/** Check a shape that was declared or returned: ONNX Runtime only warns if these two differ. */
export function checkOutput(file, name, expected, type, shape = []) {
  const isSize = (size) => Number.isInteger(size) && size >= 0;
  const fits = expected.every((size, axis) => size === shape[axis] || !isSize(size) || !isSize(shape[axis]));
  const wrong = `${file}: expected the output '${name}' as float32 (${expected}), got ${type} (${shape}).`;
  check(type === "float32" && fits && expected.length === shape.length, GraphError, `${wrong} The graph belongs to another bundle, or is damaged: export the bundle again.`);
}
