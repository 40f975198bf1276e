/**
 * Compares Ortolan with transformers.js in headless Chromium, in WebAssembly with one thread:
 * node benchmarks/browser.mjs SITE TASK [ROUNDS], from the root of the repository.
 *
 * SITE is what hosts/js/demo/build.mjs writes, with bundles in bundles/NAME, the same checkpoints in the layout of
 * transformers.js in models/NAME, and in transformers dist/transformers.js of its package, with its onnxruntime-web in ort.
 * TASK is decode:BUNDLE:DTYPE:POSITION, embed, speech, or memory:SIDE. Both stay loaded, one in a page of its own, and
 * take turns. Prints a line of JSON for each round; `share` is that of a core which the pages got.
 */

import { readFileSync } from "node:fs";

import { launched, served } from "../hosts/js/test/chromium.mjs";

const [site, task, rounds = "3"] = process.argv.slice(2);
const [kind, ...details] = task.split(":");

/** Runs in a page: `work` computes the input of a round and returns figures. */
const sides = {
  async ortolan(kind, [name, , position]) {
    const { load, urlFiles } = await import("/lib/index.js");
    const ort = await import("/lib/ort.wasm.min.mjs");
    ort.env.wasm.numThreads = 1;
    const open = (bundle) => load(urlFiles(`/bundles/${bundle}`), { ort });
    if (kind === "decode") {
      const model = await open(name);
      const { vocab_size: size } = model.manifest;
      const prompt = Array.from({ length: position }, (_, index) => (index * 7919 + 13) % size);
      window.work = async () => {
        const done = await model.generate(prompt, { maxNewTokens: 33, ignoreEos: true });
        return { prefill: (position * 1000) / done.prefillMs, decode: 32_000 / done.decodeMs, last: done.tokens.slice(-4) };
      };
    } else if (kind === "embed") {
      const model = await open("minilm");
      window.compute = async (texts) => Array.from((await model.embed(texts))[0].slice(0, 3));
    } else {
      const [speech, chat] = [await open("whisper"), await open("smollm2-fp32")];
      window.compute = async (sound) => (await speech.generate(sound, { maxNewTokens: 80, ignoreEos: true })).tokens.slice(-4);
      window.chat = (question) => chat.generate([{ role: "user", content: question }], { maxNewTokens: 24, ignoreEos: true });
    }
  },
  async transformers(kind, [name, dtype, position]) {
    const { env, ...library } = await import("/transformers/transformers.js");
    Object.assign(env, { localModelPath: "/models/", allowRemoteModels: false, allowLocalModels: true, useBrowserCache: false });
    Object.assign(env.backends.onnx.wasm, { wasmPaths: "/transformers/ort/", numThreads: 1 });
    const options = { device: "wasm", dtype: "fp32" };
    const decoder = (dtype) => library.AutoModelForCausalLM.from_pretrained("smollm2", { ...options, dtype, use_external_data_format: true });
    const generate = (model, inputs, count) => model.generate({ ...inputs, max_new_tokens: count, min_new_tokens: count, do_sample: false });
    if (kind === "decode") {
      const model = await decoder(dtype);
      const size = model.config.vocab_size;
      const ids = BigInt64Array.from({ length: position }, (_, index) => BigInt((index * 7919 + 13) % size));
      const inputs = { input_ids: new library.Tensor("int64", ids, [1, +position]), attention_mask: new library.Tensor("int64", ids.map(() => 1n), [1, +position]) };
      window.work = async () => {
        const times = [];
        const streamer = { put: () => times.push(performance.now()), end() {} };
        const clock = performance.now();
        const done = await generate(model, { ...inputs, streamer }, 33);
        const first = times.at(-33); // after the prompt itself
        return { prefill: (position * 1000) / (first - clock), decode: 32_000 / (times.at(-1) - first), last: Array.from(done.data.slice(-4), Number) };
      };
    } else if (kind === "embed") {
      const embed = await library.pipeline("feature-extraction", "minilm", options);
      window.compute = async (texts) => Array.from((await embed(texts, { pooling: "mean", normalize: true })).data.slice(0, 3));
    } else {
      const speech = await library.WhisperForConditionalGeneration.from_pretrained("whisper", options);
      const extractor = await library.AutoProcessor.from_pretrained("whisper");
      const [chat, tokenizer] = [await decoder("fp32"), await library.AutoTokenizer.from_pretrained("smollm2")];
      window.compute = async (sound) => {
        const done = await generate(speech, { inputs: (await extractor(sound)).input_features }, 80);
        return Array.from(done.data.slice(-4), Number);
      };
      window.chat = (question) => generate(chat, tokenizer.apply_chat_template([{ role: "user", content: question }], { add_generation_prompt: true, return_dict: true }), 24);
    }
  },
};

/** Runs in a page: inputs of each round, and a look at WebAssembly's memory. */
function prepare() {
  const { Memory } = WebAssembly;
  WebAssembly.Memory = function (size) {
    const memory = new Memory(size);
    if (size.maximum > 0) window.memory = memory;
    return memory;
  };
  let seed = 1;
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  const words = "the museum opens at nine and a river crosses old town where people read letters about music winter trains gardens and light".split(" ");
  window.texts = (round) => {
    seed = round + 1;
    return Array.from({ length: 32 }, () => Array.from({ length: 36 + Math.floor(random() * 9) }, () => words[Math.floor(random() * words.length)]).join(" "));
  };
  window.sound = (round) => {
    seed = round + 1;
    return Float32Array.from({ length: 480_000 }, () => 0.2 * (random() - 0.5));
  };
  window.work = async (round, input) => {
    const [value, clock] = [window[input](round), performance.now()];
    const last = await window.compute(value);
    return { seconds: (performance.now() - clock) / 1000, last };
  };
}

/** Megabytes of a page: objects of JavaScript, WebAssembly, and the resident memory of its process. */
async function memory(page) {
  const client = await page.createCDPSession();
  await client.send("HeapProfiler.collectGarbage");
  const { usedSize: objects } = await client.send("Runtime.getHeapUsage");
  const wasm = await page.evaluate(() => window.memory.buffer.byteLength);
  const sizes = (await renderers()).map(({ id }) => 4096 * Number(readFileSync(`/proc/${id}/statm`, "utf8").split(" ")[1]));
  return Object.fromEntries(Object.entries({ objects, wasm, resident: Math.max(...sizes) }).map(([name, bytes]) => [name, Math.round(bytes / 1e6)]));
}

const renderers = async () => (await system.send("SystemInfo.getProcessInfo")).processInfo.filter(({ type }) => type === "renderer");
const processorTime = async () => (await renderers()).reduce((sum, { cpuTime }) => sum + cpuTime, 0);
const print = (...line) => console.log(JSON.stringify(line));
const { server, base } = await served("python3", site);
const browser = await launched("/usr/bin/chromium");
const system = await browser.target().createCDPSession();
try {
  const pages = {};
  for (const side of kind === "memory" ? [details[0]] : Object.keys(sides)) {
    const page = (pages[side] = await browser.newPage());
    page.on("pageerror", (error) => console.error(String(error)));
    await page.goto(`${base}/style.css`);
    await page.evaluate(prepare);
    await page.evaluate(sides[side], kind, details);
  }
  for (let round = 0; round < Number(rounds); round++) {
    for (const [side, page] of Object.entries(pages)) {
      await page.bringToFront();
      const [clock, used] = [performance.now(), await processorTime()];
      const figures = await page.evaluate((...one) => window.work(...one), round, kind === "embed" ? "texts" : "sound");
      const share = ((await processorTime()) - used) / ((performance.now() - clock) / 1000);
      print(side, round, { ...figures, share }, kind === "memory" ? await memory(page) : {});
    }
  }
  for (let round = 0; kind === "memory" && round < 2 * Number(rounds); round++) {
    const [[side, page]] = Object.entries(pages);
    await page.evaluate((round) => window.chat(`Tell me a story about the number ${round}.`).then(() => {}), round);
    print(side, `chat ${round}`, await memory(page));
  }
} finally {
  server.kill();
  await browser.close();
}
