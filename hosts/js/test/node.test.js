/**
 * The library in Node, on the CPU and in WebAssembly. ORTOLAN_CASES is a JSON file with bundles and
 * what Python computes for them (tests/hosts/test_js.py writes it).
 */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { cp, mkdtemp, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";

import * as web from "onnxruntime-web";
import native from "onnxruntime-node";

import * as ortolan from "../src/index.js";
import { checkHeap, withHeap } from "../src/heap.js";
import { PCG64 } from "../src/pcg64.js";
import { Sampler } from "../src/sampling.js";
import { TextStream } from "../src/text.js";
import { verify } from "../src/verify.js";

const cases = JSON.parse(await readFile(process.env.ORTOLAN_CASES, "utf8"));
web.env.wasm.numThreads = 1;

const loaded = new Map();
async function open(bundle, device) {
  const key = `${bundle} ${device}`;
  if (!loaded.has(key)) {
    const ort = device === "cpu" ? native : web;
    loaded.set(key, await ortolan.load(ortolan.folderFiles(bundle), { ort, device }));
  }
  return loaded.get(key);
}

for (const [seed, numbers] of Object.entries(cases.random)) {
  test(`seed ${seed} draws what NumPy draws`, () => {
    const generator = new PCG64(BigInt(seed));
    assert.deepEqual(numbers.map(() => String(generator.next())), numbers);
  });
}

for (const { options, logits, prompt, tokens } of cases.sampling) {
  test(`sampling with ${JSON.stringify(options)}`, () => {
    const sampler = new Sampler(options, logits[0].length, prompt);
    assert.deepEqual(logits.map((row) => sampler.next(Float32Array.from(row))), tokens);
  });
}

for (const device of ["cpu", "wasm"]) {
  for (const { bundle, prompt, greedy, gaps, sampled, options, text } of cases.bundles) {
    test(`${bundle} on ${device} generates what Python does`, async () => {
      const model = await open(bundle, device);
      const done = await model.generate(prompt, { maxNewTokens: 32, ignoreEos: true });
      if (device === "wasm" && model.manifest.precision === "int4") {
        // Python rounds activations to 8 bits there, so another token may win a near tie
        const at = greedy.findIndex((token, index) => token !== done.tokens[index]);
        assert.ok(at < 0 || gaps[at] < 0.5, `token ${at} differs; its logit leads by ${gaps[at]}`);
        return;
      }
      assert.deepEqual(done.tokens, greedy);
      assert.equal(done.text, text);
      const drawn = await model.generate(prompt, { ...options, maxNewTokens: 32, ignoreEos: true });
      assert.deepEqual(drawn.tokens, sampled);
    });
    test(`${bundle} on ${device} passes its certificate`, async () => {
      const model = await open(bundle, device);
      const report = await model.verify();
      assert.equal(report.verdict, "PASS");
      assert.ok(report.positions > 100);
    });
  }
}

test("pieces join to the text, also across a stop text and a signal", async () => {
  const { bundle, prompt, text } = cases.bundles[0];
  const model = await open(bundle, "wasm");
  const stop = text.slice(20, 24);
  let joined = "";
  for await (const piece of model.stream(prompt, { maxNewTokens: 32, ignoreEos: true, stop })) joined += piece;
  assert.equal(joined, text.slice(0, text.indexOf(stop)));
  const abort = new AbortController();
  const pieces = model.stream(prompt, { maxNewTokens: 32, signal: abort.signal });
  await pieces.next();
  abort.abort();
  await assert.rejects(async () => { while (!(await pieces.next()).done); }, { name: "AbortError" });
  const again = await model.generate(prompt, { maxNewTokens: 32, ignoreEos: true });
  assert.equal(again.text, text);
});

test("a chat template renders messages", async () => {
  const { bundle, messages, ids } = cases.chat;
  const model = await open(bundle, "wasm");
  assert.deepEqual(model.text.chat(messages), ids);
  assert.equal(model.text.endOfTurn, cases.chat.end);
  const hostile = [{ role: "user", content: "a<|endoftext|>b" }];
  assert.throws(() => model.text.chat(hostile), /control token <\|endoftext\|>/);
});

test("the stop text that ends first wins, and the longest of those that end together", () => {
  for (const [stops, kept] of [[["bcde", "cd"], "ab"], [["d", "bcd"], "a"]]) {
    const stream = new TextStream({ decode: () => "abcdef" }, stops);
    assert.deepEqual(stream.add([0]), { piece: kept, isStopped: true });
  }
});

test("the token that ends a text is among its tokens", async () => {
  const { bundle, prompt, greedy } = cases.bundles[0];
  const model = await open(bundle, "wasm");
  const done = await model.generate(prompt, { stopTokens: [greedy[3]] });
  assert.deepEqual(done.tokens, greedy.slice(0, greedy.indexOf(greedy[3]) + 1));
  assert.equal(done.finishReason, "stop");
});

test("a bundle without a certificate generates, and says so when it is verified", async () => {
  const folder = join(await mkdtemp(join(tmpdir(), "ortolan-")), "bundle");
  const { bundle, prompt, greedy } = cases.bundles[0];
  await cp(bundle, folder, { recursive: true });
  await edited((m) => Object.assign(m, { certificate: null, unverified: "no reference" }))(folder);
  const model = await ortolan.load(ortolan.folderFiles(folder), { ort: web });
  assert.deepEqual((await model.generate(prompt, { maxNewTokens: 4 })).tokens, greedy.slice(0, 4));
  await assert.rejects(model.verify(), /no certificate: no reference/);
});

test("bundles of other schemas are refused by their number", async () => {
  const { bundle } = cases.bundles[0];
  const folder = join(await mkdtemp(join(tmpdir(), "ortolan-")), "bundle");
  await cp(bundle, folder, { recursive: true });
  await edited((m) => Object.assign(m, { schema: 5 }))(folder);
  await assert.rejects(ortolan.load(ortolan.folderFiles(folder), { ort: web }), /expected schema 1, got 5/);
});

test("graphs that write to slots are told by the manifest", () => {
  const caches = cases.bundles.map(({ bundle }) => JSON.parse(readFileSync(join(bundle, "manifest.json"))).host.cache);
  assert.deepEqual(caches, ["grows", "grows", "slots"]);
});

/** Run a function while WebAssembly memories cannot exceed a number of pages. */
async function withPages(most, work) {
  const { grow } = WebAssembly.Memory.prototype;
  WebAssembly.Memory.prototype.grow = function (pages) {
    if (this.buffer.byteLength / 65536 + pages > most) throw new RangeError("Maximum memory size exceeded");
    return grow.call(this, pages);
  };
  try {
    return await work();
  } finally {
    WebAssembly.Memory.prototype.grow = grow;
  }
}

test("a model that does not fit into memory is an error, and a smaller one loads afterwards", async () => {
  const loading = (bundle) => ortolan.load(ortolan.folderFiles(bundle), { ort: web });
  await withPages(0, async () => {
    // until no free memory is left in the heap
    const models = [];
    const failed = (async () => { for (;;) models.push(await loading(cases.bundles[0].bundle)); })();
    await assert.rejects(failed, (error) => error instanceof ortolan.MemoryError && /memory ran out/.test(error.message));
    await Promise.all(models.map((model) => model.dispose()));
  });
  const { bundle, prompt, greedy } = cases.bundles[0];
  const model = await loading(bundle);
  assert.deepEqual((await model.generate(prompt, { maxNewTokens: 4 })).tokens, greedy.slice(0, 4));
  await model.dispose();
});

test("a text that does not fit into memory is an error, and shorter ones still work", async () => {
  const { bundle, prompt, greedy } = cases.bundles[0];
  const model = await open(bundle, "wasm");
  const models = [];
  await withPages(0, async () => {
    const fill = (async () => { for (;;) models.push(await ortolan.load(ortolan.folderFiles(cases.bundles[2].bundle), { ort: web })); })();
    await assert.rejects(fill, ortolan.MemoryError);
    await assert.rejects(model.generate(new Array(900).fill(5), { maxNewTokens: 100, ignoreEos: true }), ortolan.MemoryError);
  });
  assert.deepEqual((await model.generate(prompt, { maxNewTokens: 4 })).tokens, greedy.slice(0, 4));
  await Promise.all(models.map((model) => model.dispose()));
});

test("files that do not fit into memory are an error", async () => {
  const files = { read: async () => new Uint8Array(2 ** 53) };
  await assert.rejects(ortolan.load(files, { ort: web }), ortolan.MemoryError);
});

test("an input that ONNX Runtime wrote over its own data is an error", async () => {
  const [ort, module] = [{}, { HEAPU8: new Uint8Array(64) }];
  await withHeap(ort, () => { module._OrtCreateTensor = () => {}; });
  checkHeap(ort);
  module.HEAPU8[3] = 1;
  assert.throws(() => checkHeap(ort), ortolan.MemoryError);
});

test("logits that are not finite fail verification", async () => {
  const { bundle } = cases.bundles[0];
  const model = await open(bundle, "wasm");
  const contents = new Map();
  for (const name of ["certificate.json", "certificate.bin"]) {
    contents.set(name, new Uint8Array(await readFile(join(bundle, name))));
  }
  for (const value of [NaN, Infinity, -Infinity]) {
    const broken = {
      manifest: model.manifest,
      logits: (ids, onRow) =>
        model.logits(ids, (row, position) => onRow(row.with(row.length - 1, value), position)),
    };
    const report = await verify(broken, contents);
    assert.equal(report.verdict, "FAIL");
    assert.equal(report.nonFinite, report.positions);
  }
});

test("a damaged certificate is an error", async () => {
  const { bundle } = cases.bundles[0];
  const model = await open(bundle, "wasm");
  const [text, data] = await Promise.all(["json", "bin"].map((kind) => readFile(join(bundle, `certificate.${kind}`))));
  const document = JSON.parse(text);
  const { arrays: [first, ...others] } = document;
  for (const damaged of [null, "a", { ...document, top_k: 1 }, { ...document, probes: [] }, { ...document, arrays: others.slice(0, -1) },
    { ...document, arrays: [{ ...first, dtype: "int64" }] }, { ...document, arrays: [{ ...first, offset: 1e9 }] }, { ...document, thresholds: {} }]) {
    const contents = new Map([["certificate.json", Buffer.from(JSON.stringify(damaged))], ["certificate.bin", data]]);
    await assert.rejects(verify(model, contents), (error) => error instanceof ortolan.BundleError && /^certificate/.test(error.message));
  }
});

test("an output that differs from what its graph declares is an error", async () => {
  const create = async (...given) => {
    const session = await web.InferenceSession.create(...given);
    const run = session.run.bind(session);
    session.run = async (feeds) => {
      const { logits, ...outputs } = await run(feeds);
      return { ...outputs, logits: logits.reshape([...logits.dims, 1]) };
    };
    return session;
  };
  const { bundle, prompt } = cases.bundles[0];
  const model = await ortolan.load(ortolan.folderFiles(bundle), { ort: { ...web, InferenceSession: { create } } });
  await assert.rejects(model.generate(prompt), { name: "GraphError", message: /expected the output 'logits' as float32 \(1,1,\d+\), got float32/ });
  assert.equal(model.engine.live, 0);
  await model.dispose();
});

test("a graph that is not the exported one fails verification", async () => {
  const model = await open(cases.bundles[0].bundle, "wasm");
  const contents = new Map();
  for (const name of ["certificate.json", "certificate.bin"]) {
    contents.set(name, new Uint8Array(await readFile(join(cases.bundles[0].bundle, name))));
  }
  const { files, graphs } = model.manifest;
  const other = files.map((file) => (file.name === "decoder.onnx" ? { ...file, sha256: "0" } : file));
  for (const manifest of [
    { ...model.manifest, files: other },
    { ...model.manifest, graphs: { decoder: { ...graphs.decoder, file: "other.onnx" } } },
  ]) {
    const logits = (...args) => model.logits(...args);
    const { verdict, changedFiles } = await verify({ manifest, logits }, contents);
    assert.deepEqual([verdict, changedFiles], ["FAIL", [manifest.files === other ? "decoder.onnx" : "other.onnx"]]);
  }
});

test("text streams keep characters whole and hold back the beginning of a stop text", () => {
  const codes = Array.from(new TextEncoder().encode("é, stopover, no stop here"));
  const decode = (ids) => new TextDecoder().decode(Uint8Array.from(ids));
  const stream = new TextStream({ decode }, ["stop here"]);
  const pieces = [];
  for (const code of codes) {
    const { piece, isStopped } = stream.add([code]);
    pieces.push(piece);
    if (isStopped) break;
  }
  assert.equal(pieces[0], "");
  assert.equal(pieces.join(""), "é, stopover, no ");
});

test("invalid requests are errors", async () => {
  const { bundle, prompt } = cases.bundles[0];
  const model = await open(bundle, "wasm");
  const most = model.manifest.context_length;
  for (const [bad, options, kind] of [
    [[1, -1], {}, ortolan.InputError],
    [new Array(most + 1).fill(5), {}, ortolan.ContextLengthError],
    [prompt, { temperature: -1 }, ortolan.SamplingError],
    [prompt, { topP: 0 }, ortolan.SamplingError],
    [prompt, { seed: -3 }, ortolan.SamplingError],
    [prompt, { logitBias: { 999999: 1 } }, ortolan.SamplingError],
    [prompt, { maxNewTokens: 0 }, ortolan.InputError],
    [prompt, { maxNewTokens: most }, ortolan.ContextLengthError],
    [prompt, { stop: ["x", ""] }, ortolan.InputError],
    [prompt, { stopTokens: [-1] }, ortolan.InputError],
    [prompt, { surplus: 1 }, ortolan.InputError],
    [prompt, { signal: 3 }, ortolan.InputError],
    [prompt, { temperature: Symbol("s") }, ortolan.SamplingError],
    [Object.create(null), {}, ortolan.InputError],
    [[{ role: "user", content: "?" }], {}, ortolan.InputError],
  ]) {
    await assert.rejects(model.generate(bad, options), kind);
  }
  await assert.rejects(model.logits([3]), ortolan.InputError);
  for (const options of [true, 3, { onProgress: 3 }, { surplus: 1 }]) await assert.rejects(model.verify(options), ortolan.InputError);
  for (const messages of [{ length: 1 }, [null], 3]) assert.throws(() => model.text.chat(messages), ortolan.InputError);
  for (const ids of [{}, [-1], [1.5]]) assert.throws(() => model.text.decode(ids), ortolan.InputError);
});

test("an option that is null is left out", async () => {
  const { bundle, prompt, greedy } = cases.bundles[0];
  const model = await ortolan.load(ortolan.folderFiles(bundle), { ort: web, device: null, kind: null, onProgress: null });
  const names = ["minNewTokens", "stop", "stopTokens", "ignoreEos", "signal", "temperature", "logitBias", "seed"];
  const options = Object.fromEntries(names.map((name) => [name, null]));
  assert.deepEqual((await model.generate(prompt, { ...options, maxNewTokens: 4 })).tokens, greedy.slice(0, 4));
  assert.deepEqual(model.text.encode("a", null), model.text.encode("a", { special: null }));
  await assert.rejects(model.generate(prompt, { surplus: null }), ortolan.InputError);
  await assert.rejects(model.generate(prompt, 3), ortolan.InputError);
  assert.equal((await model.verify(null)).verdict, (await model.verify()).verdict);
  await model.dispose();
});

test("an empty prompt starts from BOS, also where a template writes nothing", async () => {
  const model = await open(cases.bundles[0].bundle, "wasm");
  const messages = [{ role: "user", content: "?" }];
  model.text.chat = () => [];
  const [empty, chat, bos] = await Promise.all(["", messages, [model.manifest.tokens.bos]].map((prompt) => model.generate(prompt, { maxNewTokens: 8 })));
  delete model.text.chat;
  assert.deepEqual([empty.tokens, chat.tokens], [bos.tokens, bos.tokens]);
});

const edited = (change) => async (folder) => {
  const path = join(folder, "manifest.json");
  const manifest = JSON.parse(await readFile(path, "utf8"));
  change(manifest);
  await writeFile(path, JSON.stringify(manifest));
};

const flipped = async (folder, name) => {
  const bytes = await readFile(join(folder, name));
  bytes[bytes.length >> 1] ^= 1;
  await writeFile(join(folder, name), bytes);
};

/** Give a graph options for onnxruntime: the field `metadata_props` of a ModelProto. */
const optioned = async (folder) => {
  const bytes = await readFile(join(folder, "decoder.onnx"));
  const graph = Buffer.concat([bytes, Buffer.from("\x72\x10\x0a\x0aort_config\x12\x02{}")]);
  await writeFile(join(folder, "decoder.onnx"), graph);
  const entry = { size: graph.length, sha256: createHash("sha256").update(graph).digest("hex") };
  await edited((m) => Object.assign(m.files.find(({ name }) => name === "decoder.onnx"), entry))(folder);
};

for (const [name, manifest] of Object.entries(cases.manifests)) {
  test(`a manifest with ${name} is refused`, async () => {
    const folder = await mkdtemp(join(tmpdir(), "ortolan-"));
    await writeFile(join(folder, "manifest.json"), JSON.stringify(manifest));
    const failed = ortolan.load(ortolan.folderFiles(folder), { ort: web });
    await assert.rejects(failed, (error) => error instanceof ortolan.BundleError && /manifest|Expected/.test(error.message));
  });
}

for (const [what, damage, message] of [
  ["options in its graph", optioned, /decoder\.onnx has settings of onnxruntime/],
  ["logits of another size", edited((m) => m.vocab_size++), /expected the output 'logits' as float32 \(batch,rows,\d+\), got/],
  ["a state that its graph does not return", edited((m) => (m.states[0].output = "other")), /wrong outputs.*missing: other; unexpected: present/],
  ["a state without a name", edited((m) => delete m.states[0].output), /expected the name, input and output of a state/],
  ["a state of another shape", edited((m) => (m.states[0].shape[1] = "heads")), /as the shape of/],
  ["a text as an end", edited((m) => (m.tokens.eos = true)), /expected a list of ids below \d+, the vocabulary size, for tokens.eos, got true/],
  ["an id beyond its vocabulary", edited((m) => (m.tokens.bos = m.vocab_size)), /expected an id below/],
  ["too long a context", edited((m) => (m.context_length = 2 ** 22)), /expected 1 to 2097152 for context_length/],
  ["a graph without a file", edited((m) => (m.graphs.decoder = {})), /Expected the graphs decoder/],
  ["no number of frames", edited((m) => (m.source = { kind: "audio", rate: 16_000, window: 400, hop: 160, vectors: 50, bins: 20, frames: {} })), /expected 2 to 2097152 for frames, got/],
  ["no manifest", (folder) => rm(join(folder, "manifest.json")), /manifest.json cannot be read/],
  ["no JSON", (folder) => writeFile(join(folder, "manifest.json"), "{"), /is not JSON/],
  ["a missing file", (folder) => rm(join(folder, "decoder.onnx")), /decoder.onnx cannot be read/],
  ["a cut file", (folder) => truncate(join(folder, "tokenizer.json"), 99), /expected \d+ bytes, got 99/],
  ["a changed file", (folder) => flipped(folder, "decoder.onnx"), /expected SHA-256/],
]) {
  test(`a bundle with ${what} is refused`, async () => {
    const folder = join(await mkdtemp(join(tmpdir(), "ortolan-")), "bundle");
    await cp(cases.bundles[0].bundle, folder, { recursive: true });
    await damage(folder);
    const failed = ortolan.load(ortolan.folderFiles(folder), { ort: web });
    await assert.rejects(failed, (error) => error instanceof ortolan.BundleError && message.test(error.message));
  });
}

test("damaged weights fail verification", async () => {
  const model = await ortolan.load(ortolan.folderFiles(cases.damaged), { ort: web });
  assert.equal((await model.verify()).verdict, "FAIL");
});

test("a bundle for the CPU says how to export one for browsers", async () => {
  const folder = join(await mkdtemp(join(tmpdir(), "ortolan-")), "bundle");
  await cp(cases.bundles[0].bundle, folder, { recursive: true });
  await edited((m) => (m.devices = ["cpu"]))(folder);
  const files = ortolan.folderFiles(folder);
  const create = () => Promise.reject(new Error("no kernel"));
  const ort = { ...web, InferenceSession: { create } };
  const message = /no kernel.*exported for cpu.*--device web/;
  await assert.rejects(ortolan.load(files, { ort }), { name: "DeviceError", message });
});

test("unknown devices are errors", async () => {
  const files = ortolan.folderFiles(cases.bundles[0].bundle);
  for (const device of ["tpu", "webgpu"]) {
    await assert.rejects(ortolan.load(files, { ort: web, device }), ortolan.DeviceError);
  }
});
