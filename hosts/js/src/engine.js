/**
 * The graphs of a bundle as sessions of ONNX Runtime, and the states of sequences.
 *
 * Every call gives the past states to the graph and takes their next values. In WebAssembly, a cache stays in
 * the heap, and the graph writes into it. Elsewhere, it is exactly as long as its text, unless the graph writes
 * to slots (it does where no kernel of attention fits); on WebGPU it stays on the GPU.
 */

import { check, failure, forBrowsers, ComputeError, DeviceError, InputError, NumericError } from "./errors.js";
import { checkOutput, checkOutputs, outputsOf } from "./graphs.js";
import { checkHeap, heapOf, HeapTensor, withHeap } from "./heap.js";

/** Most new tokens of a call. */
const CHUNK = 128;

/** Fewest slots of a cache that is longer than its text. */
const SLOTS = 64;

/** Tokens that a GPU computes in one call and in short ones, to compare them. */
const CHECKED = 96;
const SHORT = 16;

/** Milliseconds of computing after which timers and messages, such as one to stop, get their turn. */
const TURN = 20;

const ARRAYS = { int64: BigInt64Array, int32: Int32Array, float32: Float32Array };

/** The sessions of one bundle. Calls that come together run one after another. */
export class Engine {
  #sessions = new Map();
  #held = new Set();
  #last = Promise.resolve();
  #rested = 0;
  isClosed = false;

  /** Use `open`. */
  constructor(ort, device, manifest) {
    Object.assign(this, { ort, device, manifest, chunk: manifest.graphs.decoder?.sequence ?? CHUNK });
  }

  /** Open the graphs of a bundle, whose weights are removed from its contents. */
  static async open(ort, device, { manifest, contents, folder }) {
    const engine = new Engine(ort, device, manifest);
    try {
      for (const [role, { file }] of Object.entries(manifest.graphs)) {
        if (!contents.has(file)) continue;
        const [session, outputs] = [await openSession(engine, role, file, contents, folder), outputsOf(role, manifest)];
        engine.#sessions.set(role, { session, file, outputs });
        checkOutputs(file, role, outputs, session.outputMetadata);
      }
      engine.heap = device === "wasm" ? heapOf(ort) : null;
      if (device === "webgpu" && manifest.kind === "decoder") await limitChunk(engine);
      return engine;
    } catch (error) {
      await engine.dispose();
      throw error;
    } finally {
      manifest.weights.forEach((name) => contents.delete(name));
    }
  }

  /** A tensor of numbers. */
  tensor(type, numbers, dims) {
    const Kind = ARRAYS[type];
    const data = numbers instanceof Kind ? numbers : type === "int64" ? Kind.from(numbers, BigInt) : Kind.from(numbers);
    return new this.ort.Tensor(type, data, dims);
  }

  /** A tensor of a state, in the heap unless the graph replaces it. */
  state(update, data, dims) {
    return this.heap && update !== "replace" ? new HeapTensor(this.heap, data, dims) : this.tensor("float32", data, dims);
  }

  /**
   * Compute the outputs of a graph, which are checked; `sizes` has those that are known by their words in shapes.
   * Outputs in `shared` are written to a tensor in the heap.
   */
  run(role, feeds, sizes, { shared = new Map(), what = "" } = {}) {
    const call = this.#last.then(async () => {
      // a call in WebAssembly ends before it returns, so promises alone would starve all else
      if (performance.now() - this.#rested > TURN) {
        await turn();
        this.#rested = performance.now();
      }
      this.checkOpen();
      const { session, file, outputs: expected } = this.#sessions.get(role);
      let outputs = {};
      try {
        const places = Array.from(expected.keys(), (name) => [name, shared.get(name)?.stub ?? null]);
        outputs = await session.run(feeds, Object.fromEntries(places));
        checkHeap(this.ort);
        for (const [name, { type, dims }] of Object.entries(outputs)) {
          if (!shared.has(name)) checkOutput(file, name, expected.get(name).map((size) => sizes[size] ?? size), type, dims);
        }
        return outputs;
      } catch (cause) {
        Object.values(outputs).forEach((tensor) => tensor.dispose());
        throw failure(cause, ComputeError, `${this.device} failed${what}`, forBrowsers(this.manifest, this.device));
      }
    });
    this.#last = call.catch(() => {});
    return call;
  }

  checkOpen() {
    check(!this.isClosed, InputError, "This model is closed. Load the bundle again.");
  }

  /** A new sequence of `rows`, which reads a `source` that the encoder computed. */
  sequence(options) {
    this.checkOpen();
    return new Sequence(this, options);
  }

  /** Keep tensors until the function is called that this returns, or the engine is disposed of. */
  hold(tensors) {
    const free = () => {
      for (const tensor of tensors.values()) tensor.dispose();
      tensors.clear();
      this.#held.delete(free);
    };
    this.#held.add(free);
    return free;
  }

  /** Number of sequences whose states are in memory. */
  get live() {
    return this.#held.size;
  }

  /** Free the sessions and the states of all sequences, after the call that runs. */
  async dispose() {
    this.isClosed = true;
    await this.#last;
    for (const free of this.#held) free();
    const sessions = [...this.#sessions.values()];
    this.#sessions.clear();
    await Promise.all(sessions.map(({ session }) => session.release()));
  }
}

/** Resolves when timers and messages had their turn; timers of browsers would wait 4 ms. */
function turn() {
  if (globalThis.setImmediate) return new Promise((resolve) => setImmediate(resolve));
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = resolve;
    port2.postMessage(null);
  }).finally(() => port1.close());
}

async function openSession({ ort, device, manifest }, role, file, contents, folder) {
  const { disabled_optimizers: skipped, environment, config_entries: entries } = manifest.host.session;
  const own = manifest.states.filter(({ update }) => (update === "source") === (role === "encoder"));
  const states = own.map(({ output }) => [output, "gpu-buffer"]);
  const options = {
    executionProviders: [device],
    logSeverityLevel: 3, // errors
    extra: {
      ...entries,
      // dequantizes weights once: see "Manifest" in docs/bundle-format.md
      "session.disable_quant_qdq": device === "cpu" ? "0" : "1",
      ...(skipped.length && { "optimization.disable_specified_optimizers": skipped.join(";") }),
    },
    ...(device === "webgpu" && states.length && { preferredOutputLocation: Object.fromEntries(states) }),
  };
  try {
    let graph = contents.get(file);
    if (device === "cpu") {
      // the user's own values win
      for (const [name, value] of Object.entries(environment)) process.env[name] ??= value;
      graph = `${folder}/${file}`;
    } else {
      options.externalData = manifest.weights.map((name) => ({ path: name, data: contents.get(name) }));
    }
    return await withHeap(ort, () => ort.InferenceSession.create(graph, options));
  } catch (cause) {
    throw failure(cause, DeviceError, `${file} cannot be opened on ${device}`, forBrowsers(manifest, device));
  }
}

/** Compare a long call with short ones: kernels of WebGPU are wrong on some GPUs. */
async function limitChunk(engine) {
  const { context_length: most, vocab_size: size, precision } = engine.manifest;
  const ids = Array.from({ length: Math.min(CHECKED, most) }, (_, index) => index % size);
  if (engine.chunk === 1 || ids.length <= SHORT) return;
  const last = async (chunk) => {
    const sequence = engine.sequence();
    try {
      return (await sequence.append(ids, { chunk })).slice();
    } finally {
      sequence.end();
    }
  };
  const [long, short] = [await last(CHUNK), await last(SHORT)];
  const mean = short.reduce((a, b) => a + b, 0) / short.length;
  const spread = short.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const error = short.reduce((sum, value, index) => sum + (value - long[index]) ** 2, 0);
  const tolerance = precision === "fp32" ? 1e-4 : 1e-2;
  if (!(Math.sqrt(error / spread) <= tolerance)) engine.chunk = SHORT;
}

/** Frees the states of sequences whose iterator was dropped. */
const dropped = new FinalizationRegistry((free) => free());

/** Rows of tokens that grow together, and their states. */
class Sequence {
  #engine;
  #free;
  #source;
  #states; // tensors by input
  #length = 0;
  #start = 0; // tokens that states with a window have dropped

  constructor(engine, { rows = 1, source = null } = {}) {
    [this.#engine, this.#source] = [engine, source];
    this.#states = new Map(source?.states);
    this.#free = engine.hold(this.#states);
    dropped.register(this, this.#free, this);
    if (engine.heap) for (const [input, { data, dims }] of this.#states) this.#put(input, engine.state("source", data, dims));
    for (const { input, shape, update } of this.#own) {
      const dims = shape.map((size) => ({ batch: rows, capacity: 0 })[size] ?? size);
      this.#put(input, engine.state(update, new Float32Array(product(dims)), dims));
    }
  }

  /** States that the sequence changes. */
  get #own() {
    return this.#engine.manifest.states.filter(({ update }) => update !== "source");
  }

  /** Append tokens to the only row; returns the logits of the last one. `onRow` gets those of every token. */
  async append(ids, { onRow, signal, chunk = this.#engine.chunk } = {}) {
    let logits;
    for (let start = 0; start < ids.length; start += chunk) {
      signal?.throwIfAborted();
      const before = this.#length;
      const part = ids.slice(start, start + chunk);
      const rows = await this.#call([part], onRow ? 0 : part.length - 1);
      rows.forEach((row, index) => onRow?.(row, before + index));
      logits = rows.at(-1);
    }
    check(Number.isFinite(logits[0]), NumericError, `Logits are not finite after ${this.#length} tokens. Verify the bundle.`);
    return logits;
  }

  /** Append a token to each row; returns the logits of each. */
  step(tokens) {
    return this.#call(tokens.map((token) => [token]), 0);
  }

  /** Continue each row from one of the rows so far. */
  async reorder(parents) {
    if (parents.every((parent, row) => parent === row)) return;
    for (const state of this.#own) await this.#move(state, "batch", parents);
  }

  end() {
    dropped.unregister(this);
    this.#free();
  }

  /** Logits of the new tokens of each row from `first` on. */
  async #call(rows, first) {
    const engine = this.#engine;
    const { states, vocab_size: size } = engine.manifest;
    const total = this.#length + rows[0].length;
    await this.#slide();
    await this.#reserve(total);
    const shared = new Map(this.#own.map(({ input, output }) => [output, this.#states.get(input)]).filter(([, { stub }]) => stub));
    const positions = rows.flatMap((row) => row.slice(first).map((_, index) => first + index));
    const count = positions.length / rows.length;
    const outputs = await engine.run(
      "decoder",
      {
        input_ids: engine.tensor("int64", rows.flat(), [rows.length, rows[0].length]),
        seqlens_k: engine.tensor("int32", rows.map(() => total - 1), [rows.length]),
        total_sequence_length: engine.tensor("int32", [total], []),
        logit_positions: engine.tensor("int64", positions, [rows.length, count]),
        ...(states.some(({ window }) => window) && {
          window_starts: engine.tensor("int32", rows.map(() => this.#start), [rows.length]),
        }),
        ...(this.#source && { source_lengths: engine.tensor("int32", this.#source.lengths, [this.#source.lengths.length]) }),
        ...Object.fromEntries(Array.from(this.#states, ([input, tensor]) => [input, tensor.stub ?? tensor])),
      },
      { batch: rows.length, rows: count },
      { shared, what: ` after ${this.#length} tokens` },
    );
    if (engine.isClosed) Object.values(outputs).forEach((tensor) => tensor.dispose());
    engine.checkOpen(); // it may have been closed meanwhile
    for (const { input, output } of this.#own) if (!shared.has(output)) this.#put(input, outputs[output]);
    this.#length = total;
    const logits = await outputs.logits.getData();
    outputs.hidden_states?.dispose();
    return positions.map((_, row) => logits.subarray(row * size, (row + 1) * size));
  }

  #put(input, tensor) {
    this.#states.get(input)?.dispose();
    this.#states.set(input, tensor);
  }

  /** Drop tokens that no window reaches any more, many at once, since that copies the others. */
  async #slide() {
    if (this.#engine.device === "webgpu") return; // its kernels read caches that were cut wrongly
    const windows = this.#own.map(({ window }) => window ?? 0);
    const kept = Math.max(0, ...windows) - 1;
    const dropped = this.#length - this.#start - kept;
    if (kept < 0 || dropped < Math.max(kept, CHUNK)) return;
    const slots = Array.from({ length: kept }, (_, slot) => dropped + slot);
    for (const state of this.#own) if (state.window) await this.#move(state, "capacity", slots, this.#hasSlots ? undefined : kept);
    this.#start += dropped;
  }

  /** Whether caches may be longer than their text. */
  get #hasSlots() {
    return this.#engine.heap || this.#engine.manifest.host.cache === "slots";
  }

  /** Make room for this many tokens where the graph writes to slots. */
  async #reserve(total) {
    if (!this.#hasSlots) return;
    for (const state of this.#own) {
      const count = this.#states.get(state.input).dims[state.shape.indexOf("capacity")];
      const needed = state.window ? total - this.#start : total;
      if (!(needed > count)) continue;
      const size = Math.min(Math.max(needed, 2 * count, SLOTS), this.#engine.manifest.context_length);
      await this.#move(state, "capacity", [...Array(count).keys()], size);
    }
  }

  /** Keep some slots of an axis of a state, in this order, then zeros up to `size`, by default as many as before. */
  async #move({ input, shape, update }, word, slots, size) {
    const [tensor, axis] = [this.#states.get(input), shape.indexOf(word)];
    const { dims } = tensor;
    const inner = product(dims.slice(axis + 1));
    const outer = product(dims.slice(0, axis));
    const all = dims.with(axis, size ?? dims[axis]);
    const old = await tensor.getData();
    const data = new Float32Array(product(all));
    for (let row = 0; row < outer; row++) {
      slots.forEach((slot, index) => {
        const from = (row * dims[axis] + slot) * inner;
        data.set(old.subarray(from, from + inner), (row * all[axis] + index) * inner);
      });
    }
    this.#put(input, this.#engine.state(update, data, all));
  }
}

const product = (sizes) => sizes.reduce((a, b) => a * b, 1);
