/**
 * A decoder, which generates text.
 *
 * Every call gives the past states to the graph and takes their next values. There are no shared
 * buffers in WebAssembly, so a cache is exactly as long as its text, unless the graph writes to slots
 * (it does where no kernel of attention fits); on WebGPU it stays on the GPU.
 */

import { readBundle } from "./bundle.js";
import { ContextLengthError, DeviceError, InputError, NumericError } from "./errors.js";
import { Sampler, SAMPLING_OPTIONS } from "./sampling.js";
import { Text, TextStream } from "./text.js";
import { verify } from "./verify.js";

/** Most new tokens of a call. */
const CHUNK = 128;

/** Fewest slots of a cache that a graph writes to. */
const SLOTS = 64;

/** Type of the nodes that write to slots, as a graph's Protocol Buffers spell it. */
const WRITES = '"\tScatterND';

/** Tokens that a GPU computes in one call and in short ones, to compare them. */
const CHECKED = 96;
const SHORT = 16;

const OPTIONS = ["maxNewTokens", "stop", "stopTokens", "ignoreEos", "signal", ...SAMPLING_OPTIONS];

/**
 * Load a bundle.
 *
 * @param files from `urlFiles`, `chosenFiles` or `folderFiles`
 * @param {object} options
 * @param {object} options.ort module of ONNX Runtime: `onnxruntime-web` or `onnxruntime-node`
 * @param {"wasm" | "webgpu" | "cpu"} options.device `cpu` is that of `onnxruntime-node`
 * @param {(loaded: number, total: number, name: string) => void} options.onProgress bytes
 * @returns {Promise<Decoder>}
 */
export async function load(files, { ort, device = "wasm", onProgress } = {}) {
  if (!["wasm", "webgpu", "cpu"].includes(device)) {
    throw new DeviceError(`device must be wasm, webgpu or cpu (got ${device}).`);
  }
  if (device === "webgpu" && !(await globalThis.navigator?.gpu?.requestAdapter())) {
    throw new DeviceError("This browser offers no WebGPU. Choose the device wasm.");
  }
  const { manifest, contents } = await readBundle(files, { onProgress });
  const session = await open(ort, manifest, contents, { device, folder: files.folder });
  const decoder = new Decoder(ort, session, manifest, contents, device);
  if (device === "webgpu") await decoder.limitCalls();
  return decoder;
}

async function open(ort, manifest, contents, { device, folder }) {
  const states = manifest.states.map((state) => [state.output, "gpu-buffer"]);
  const skipped = manifest.host?.session.disabled_optimizers ?? [];
  const options = {
    executionProviders: [device],
    logSeverityLevel: 3, // errors
    // dequantizes weights once: see "Manifest" in docs/bundle-format.md
    extra: {
      session: { disable_quant_qdq: device === "cpu" ? "0" : "1" },
      mlas: { disable_kleidiai: "1" }, // its 4-bit products on ARM are less exact
      ...(skipped.length && { optimization: { disable_specified_optimizers: skipped.join(";") } }),
    },
    ...(device === "webgpu" && { preferredOutputLocation: Object.fromEntries(states) }),
  };
  const file = manifest.graphs.decoder.file;
  try {
    if (device === "cpu") {
      for (const [name, value] of Object.entries(manifest.host?.session.environment ?? {})) {
        if (/^ORT_\w+$/.test(name)) process.env[name] = value; // a bundle sets nothing else
      }
      const { join } = await import("node:path");
      return await ort.InferenceSession.create(join(folder, file), options);
    }
    const externalData = manifest.weights.map((name) => ({ path: name, data: contents.get(name) }));
    return await ort.InferenceSession.create(contents.get(file), { ...options, externalData });
  } catch (cause) {
    throw new DeviceError(`${file} cannot be opened on ${device}: ${cause.message}`, { cause });
  } finally {
    manifest.weights.forEach((name) => contents.delete(name));
  }
}

/** A loaded decoder. Computes one sequence at a time. */
export class Decoder {
  #ort;
  #session;
  #device;
  #contents;
  #chunk = CHUNK;
  #hasSlots;
  #isBusy = false;

  /** Use `load`. */
  constructor(ort, session, manifest, contents, device) {
    this.#ort = ort;
    this.#session = session;
    this.#device = device;
    this.#contents = contents;
    this.manifest = manifest;
    const graph = contents.get(manifest.graphs.decoder.file);
    this.#hasSlots = new TextDecoder("latin1").decode(graph).includes(WRITES);
    this.text = manifest.tokenizer ? new Text(contents, manifest.tokenizer) : null;
    if (manifest.graphs.decoder.sequence === 1) this.#chunk = 1;
  }

  /**
   * Generate text, piece by piece.
   *
   * @param {string | number[] | {role: string, content: string}[]} prompt text, ids or messages
   * @param {object} options of generation and sampling; see index.d.ts
   * @yields {string} pieces of text
   * @returns {AsyncGenerator<string, object>} its return value is the completion
   */
  async *stream(prompt, options = {}) {
    const ids = this.#read(prompt, options);
    const { tokens: special, context_length: most } = this.manifest;
    const limit = options.maxNewTokens ?? most - ids.length;
    const eos = options.ignoreEos ? [] : special.eos;
    const ends = new Set([...eos, ...(options.stopTokens ?? []), ...this.#turnEnds(prompt, options)]);
    const sampler = new Sampler(options, this.manifest.vocab_size, ids);
    const stream = this.text && new TextStream(this.text, [options.stop ?? []].flat());
    const result = { text: "", tokens: [], finishReason: "length", prefillMs: 0, decodeMs: 0 };
    const cache = this.#begin();
    let clock = performance.now();
    try {
      let logits = await cache.append(ids, { signal: options.signal });
      result.prefillMs = performance.now() - clock;
      clock = performance.now();
      while (result.tokens.length < limit) {
        options.signal?.throwIfAborted();
        const token = sampler.next(this.#allowed(logits));
        result.tokens.push(token);
        if (ends.has(token)) {
          result.finishReason = "stop";
          break;
        }
        const { piece, isStopped } = stream?.add(token) ?? { piece: "", isStopped: false };
        result.text += piece;
        if (piece) yield piece;
        if (isStopped) {
          result.finishReason = "stop";
          return result;
        }
        if (result.tokens.length < limit) logits = await cache.append([token]);
      }
      const { piece: rest, isStopped } = stream?.end() ?? { piece: "", isStopped: false };
      if (isStopped) result.finishReason = "stop";
      result.text += rest;
      if (rest) yield rest;
      return result;
    } finally {
      result.decodeMs = performance.now() - clock;
      cache.end();
    }
  }

  /** Generate text; arguments as for `stream`. Returns the completion. */
  async generate(prompt, options = {}) {
    for (const pieces = this.stream(prompt, options); ; ) {
      const { done, value } = await pieces.next();
      if (done) return value;
    }
  }

  /**
   * Compute the logits after some of the tokens of a text.
   *
   * @param {number[]} ids
   * @param {(logits: Float32Array, position: number) => void} onRow gets a row per token
   */
  async logits(ids, onRow) {
    const cache = this.#begin();
    try {
      await cache.append(ids, { onRow });
    } finally {
      cache.end();
    }
  }

  /** Replay the certificate on this device; see `verify.js`. */
  verify(options) {
    return verify(this, this.#contents, options);
  }

  /** Free the memory of the model. */
  async release() {
    await this.#session.release();
  }

  /** Compare a long call with short ones: kernels of WebGPU are wrong on some GPUs. */
  async limitCalls() {
    const size = Math.min(CHECKED, this.manifest.context_length);
    if (this.#chunk === 1 || size <= SHORT) return;
    const ids = Array.from({ length: size }, (_, index) => index % this.manifest.vocab_size);
    const last = async (chunk) => {
      this.#chunk = chunk;
      const cache = this.#begin();
      try {
        return (await cache.append(ids)).slice();
      } finally {
        cache.end();
      }
    };
    const [long, short] = [await last(CHUNK), await last(SHORT)];
    const mean = short.reduce((a, b) => a + b, 0) / short.length;
    const spread = short.reduce((a, b) => a + (b - mean) ** 2, 0);
    const error = short.reduce((sum, value, index) => sum + (value - long[index]) ** 2, 0);
    const most = this.manifest.precision === "fp32" ? 1e-4 : 1e-2;
    if (Math.sqrt(error / spread) <= most) this.#chunk = CHUNK;
  }

  #read(prompt, options) {
    const unknown = Object.keys(options).filter((name) => !OPTIONS.includes(name));
    if (unknown.length) {
      throw new InputError(`Unknown option ${unknown[0]}. Expected one of ${OPTIONS.join(", ")}.`);
    }
    const isText = typeof prompt === "string" || typeof prompt?.[0] === "object";
    if (isText && !this.text) throw new InputError("This bundle has no tokenizer. Pass ids.");
    let ids = prompt;
    if (typeof prompt === "string") ids = this.text.encode(prompt);
    else if (typeof prompt?.[0] === "object") ids = this.text.chat(prompt);
    if (!ids?.length) throw new InputError("The prompt is empty. Pass at least one token.");
    const { vocab_size: size, context_length: most } = this.manifest;
    const { maxNewTokens, stopTokens = [], stop = [] } = options;
    for (const list of [ids, stopTokens]) {
      const at = Array.from(list).findIndex((id) => !Number.isInteger(id) || id < 0 || id >= size);
      if (at >= 0) throw new InputError(`Ids must be 0 to ${size - 1} (got ${list[at]}).`);
    }
    if (![stop].flat().every((text) => typeof text === "string" && text !== "")) {
      throw new InputError("stop must be a text or a list of texts, none of them empty.");
    }
    if (stop.length && !this.text) throw new InputError("This bundle has no tokenizer. Leave out stop.");
    if (maxNewTokens !== undefined && !(Number.isInteger(maxNewTokens) && maxNewTokens > 0)) {
      throw new InputError(`maxNewTokens must be a whole number above 0 (got ${maxNewTokens}).`);
    }
    const room = most - ids.length;
    if ((maxNewTokens ?? 1) > room) {
      throw new ContextLengthError(
        `A prompt of ${ids.length} and ${maxNewTokens ?? 1} new tokens exceed the context of ${most} ` +
          `tokens. Shorten the prompt${room > 0 ? `, or lower maxNewTokens to ${room}` : ""}.`,
      );
    }
    return Array.from(ids);
  }

  /** The end of a turn also ends an answer where the manifest does not say so. */
  #turnEnds(prompt, { ignoreEos }) {
    const isChat = typeof prompt?.[0] === "object";
    return isChat && !ignoreEos && this.text.endOfTurn !== null ? [this.text.endOfTurn] : [];
  }

  #allowed(logits) {
    const { suppressed } = this.manifest.tokens;
    if (!suppressed.length) return logits;
    const allowed = logits.slice();
    for (const id of suppressed) allowed[id] = -Infinity;
    return allowed;
  }

  #begin() {
    if (this.#isBusy) throw new InputError("This model is computing. Wait, or load it once more.");
    this.#isBusy = true;
    const { Tensor } = this.#ort;
    let length = 0;
    let states = this.manifest.states.map((state) => {
      const dims = state.shape.map((size) => ({ batch: 1, capacity: 0 })[size] ?? size);
      return new Tensor(state.dtype, new Float32Array(dims.reduce((a, b) => a * b, 1)), dims);
    });
    let slots = 0;
    const reserve = async (total) => {
      if (!this.#hasSlots || total <= slots) return;
      const wanted = Math.min(Math.max(total, 2 * slots, SLOTS), this.manifest.context_length);
      for (const [index, { shape }] of this.manifest.states.entries()) {
        const axis = shape.indexOf("capacity");
        if (axis >= 0) states[index] = await widened(states[index], axis, wanted, Tensor);
      }
      slots = wanted;
    };
    const call = async (ids, onRow) => {
      const total = length + ids.length;
      await reserve(total);
      const first = onRow ? 0 : ids.length - 1;
      const positions = Array.from({ length: ids.length - first }, (_, index) => first + index);
      const feeds = {
        input_ids: new Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]),
        seqlens_k: new Tensor("int32", Int32Array.of(total - 1), [1]),
        total_sequence_length: new Tensor("int32", Int32Array.of(total), []),
        logit_positions: new Tensor("int64", BigInt64Array.from(positions, BigInt), [1, positions.length]),
      };
      this.manifest.states.forEach((state, index) => (feeds[state.input] = states[index]));
      let outputs;
      try {
        outputs = await this.#session.run(feeds);
      } catch (cause) {
        throw new DeviceError(`${this.#device} failed after ${length} tokens: ${cause.message}`, { cause });
      }
      states.forEach((state) => state.dispose());
      states = this.manifest.states.map((state) => outputs[state.output]);
      length = total;
      const rows = await outputs.logits.getData();
      const size = this.manifest.vocab_size;
      if (onRow) positions.forEach((at) => onRow(rows.subarray(at * size, (at + 1) * size), total - ids.length + at));
      return rows.subarray(rows.length - size);
    };
    return {
      /** Append tokens; returns the logits of the last one. */
      append: async (ids, { onRow, signal } = {}) => {
        let logits;
        for (let start = 0; start < ids.length; start += this.#chunk) {
          signal?.throwIfAborted();
          logits = await call(ids.slice(start, start + this.#chunk), onRow);
        }
        if (!Number.isFinite(logits[0])) {
          throw new NumericError(`Logits are not finite after ${length} tokens. Verify the bundle.`);
        }
        return logits;
      },
      end: () => {
        states.forEach((state) => state.dispose());
        this.#isBusy = false;
      },
    };
  }
}

/** A copy of a float32 tensor with a longer axis, filled with zeros. */
async function widened(tensor, axis, size, Tensor) {
  const { dims } = tensor;
  const inner = dims.slice(axis + 1).reduce((a, b) => a * b, 1);
  const outer = dims.slice(0, axis).reduce((a, b) => a * b, 1);
  const [from, to] = [dims[axis] * inner, size * inner];
  const old = await tensor.getData();
  const data = new Float32Array(outer * to);
  for (let row = 0; row < outer; row++) data.set(old.subarray(row * from, (row + 1) * from), row * to);
  tensor.dispose();
  return new Tensor("float32", data, dims.with(axis, size));
}
