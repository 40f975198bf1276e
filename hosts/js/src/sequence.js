/**
 * Calls of a graph, and the states of one sequence.
 *
 * Every call gives the past states to the graph and takes their next values. There are no shared
 * buffers in WebAssembly, so a cache is exactly as long as its text, unless the graph writes to slots
 * (it does where no kernel of attention fits); on WebGPU it stays on the GPU.
 */

import { check, failure, forBrowsers } from "./checks.js";
import { DeviceError, InputError, NumericError } from "./errors.js";
import { checkHeap, withHeap } from "./heap.js";

/** Most new tokens of a call. */
const CHUNK = 128;

/** Fewest slots of a cache that a graph writes to. */
const SLOTS = 64;

/** Tokens that a GPU computes in one call and in short ones, to compare them. */
const CHECKED = 96;
const SHORT = 16;

/** Open the graph of a bundle, whose weights are removed from `contents`. */
export async function openModel(ort, device, manifest, contents, folder) {
  const { disabled_optimizers: skipped, environment, config_entries: entries } = manifest.host.session;
  const states = manifest.states.map((state) => [state.output, "gpu-buffer"]);
  const { file, sequence } = manifest.graphs.decoder;
  const options = {
    executionProviders: [device],
    logSeverityLevel: 3, // errors
    extra: {
      ...entries,
      // dequantizes weights once: see "Manifest" in docs/bundle-format.md
      "session.disable_quant_qdq": device === "cpu" ? "0" : "1",
      ...(skipped.length && { "optimization.disable_specified_optimizers": skipped.join(";") }),
    },
    ...(device === "webgpu" && { preferredOutputLocation: Object.fromEntries(states) }),
  };
  const model = { ort, device, manifest, chunk: sequence ?? CHUNK, isBusy: false };
  try {
    let graph = contents.get(file);
    if (device === "cpu") {
      // the user's own values win
      for (const [name, value] of Object.entries(environment)) process.env[name] ??= value;
      graph = (await import("node:path")).join(folder, file);
    } else {
      options.externalData = manifest.weights.map((name) => ({ path: name, data: contents.get(name) }));
    }
    model.session = await withHeap(() => ort.InferenceSession.create(graph, options));
  } catch (cause) {
    const advice = forBrowsers(manifest, device);
    throw failure(cause, DeviceError, `${file} cannot be opened on ${device}`, advice);
  } finally {
    manifest.weights.forEach((name) => contents.delete(name));
  }
  if (device === "webgpu") await limitChunk(model);
  return model;
}

/** Compare a long call with short ones: kernels of WebGPU are wrong on some GPUs. */
async function limitChunk(model) {
  const { context_length: most, vocab_size: size, precision } = model.manifest;
  const ids = Array.from({ length: Math.min(CHECKED, most) }, (_, index) => index % size);
  if (model.chunk === 1 || ids.length <= SHORT) return;
  const last = async (chunk) => {
    const sequence = new Sequence({ ...model, chunk });
    const logits = (await sequence.append(ids)).slice();
    sequence.end();
    return logits;
  };
  const [long, short] = [await last(CHUNK), await last(SHORT)];
  const mean = short.reduce((a, b) => a + b, 0) / short.length;
  const spread = short.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const error = short.reduce((sum, value, index) => sum + (value - long[index]) ** 2, 0);
  const tolerance = precision === "fp32" ? 1e-4 : 1e-2;
  if (!(Math.sqrt(error / spread) <= tolerance)) model.chunk = SHORT;
}

/** The states of a sequence; a model computes one at a time. */
export class Sequence {
  #model;
  #states;
  #length = 0;
  #slots = 0;

  constructor(model) {
    check(!model.isBusy, InputError, "This model is computing. Wait, or load it once more.");
    model.isBusy = true;
    this.#model = model;
    this.#states = model.manifest.states.map(({ shape, dtype }) => {
      const dims = shape.map((size) => ({ batch: 1, capacity: 0 })[size] ?? size);
      return new model.ort.Tensor(dtype, new Float32Array(product(dims)), dims);
    });
  }

  /** Append tokens; returns the logits of the last one. `onRow` gets those of every token. */
  async append(ids, { onRow, signal } = {}) {
    const { chunk, device, manifest } = this.#model;
    let logits;
    for (let start = 0; start < ids.length; start += chunk) {
      signal?.throwIfAborted();
      const before = this.#length;
      const part = ids.slice(start, start + chunk);
      let rows;
      try {
        rows = await this.#call(part, onRow ? 0 : part.length - 1);
      } catch (cause) {
        const advice = forBrowsers(manifest, device);
        throw failure(cause, DeviceError, `${device} failed after ${before} tokens`, advice);
      }
      rows.forEach((row, index) => onRow?.(row, before + index));
      logits = rows.at(-1);
    }
    const finite = `Logits are not finite after ${this.#length} tokens. Verify the bundle.`;
    check(Number.isFinite(logits[0]), NumericError, finite);
    return logits;
  }

  end() {
    this.#states.forEach((state) => state.dispose());
    this.#model.isBusy = false;
  }

  /** Logits of the new tokens from `first` on. */
  async #call(ids, first) {
    const { Tensor } = this.#model.ort;
    const { states, vocab_size: size } = this.#model.manifest;
    const total = this.#length + ids.length;
    await this.#reserve(total);
    const positions = Array.from(ids.slice(first), (_, index) => first + index);
    const outputs = await this.#model.session.run({
      input_ids: new Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]),
      seqlens_k: new Tensor("int32", Int32Array.of(total - 1), [1]),
      total_sequence_length: new Tensor("int32", Int32Array.of(total), []),
      logit_positions: new Tensor("int64", BigInt64Array.from(positions, BigInt), [1, positions.length]),
      // a host may keep all tokens
      ...(states.some(({ window }) => window) && { window_starts: new Tensor("int32", Int32Array.of(0), [1]) }),
      ...Object.fromEntries(states.map(({ input }, index) => [input, this.#states[index]])),
    });
    checkHeap();
    this.#states.forEach((state) => state.dispose());
    this.#states = states.map((state) => outputs[state.output]);
    this.#length = total;
    const logits = await outputs.logits.getData();
    return positions.map((_, row) => logits.subarray(row * size, (row + 1) * size));
  }

  /** Make room for this many tokens where the graph writes to slots. */
  async #reserve(total) {
    const { manifest, ort } = this.#model;
    if (manifest.host.cache !== "slots" || total <= this.#slots) return;
    this.#slots = Math.min(Math.max(total, 2 * this.#slots, SLOTS), manifest.context_length);
    for (const [index, { shape }] of manifest.states.entries()) {
      const axis = shape.indexOf("capacity");
      if (axis >= 0) this.#states[index] = await widened(this.#states[index], axis, this.#slots, ort);
    }
  }
}

/** A copy of a float32 tensor with a longer axis, filled with zeros. */
async function widened(tensor, axis, size, ort) {
  const { dims } = tensor;
  const inner = product(dims.slice(axis + 1));
  const outer = product(dims.slice(0, axis));
  const [from, to] = [dims[axis] * inner, size * inner];
  const old = await tensor.getData();
  const data = new Float32Array(outer * to);
  for (let row = 0; row < outer; row++) data.set(old.subarray(row * from, (row + 1) * from), row * to);
  tensor.dispose();
  return new ort.Tensor("float32", data, dims.with(axis, size));
}

const product = (sizes) => sizes.reduce((a, b) => a * b, 1);
