/**
 * Uses changed bundles, and passes them values that make no sense: mutants.mjs FOLDER. Prints a line of
 * JSON for each bundle in the folder: its outcome, which is a finding unless it was used or refused.
 */

import { fork } from "node:child_process";
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";

import * as web from "onnxruntime-web";

import { Decoder, Encoder, folderFiles, load, OrtolanError } from "../src/index.js";

/** Seconds after which a mutant hangs. */
const PATIENCE = 240;

/** Mutants that one process uses, since what ONNX Runtime leaves behind may add up. */
const ROUND = 50;

const LISTS = [[], [null], [NaN], [[]], [-1], [1e9], [1.5], ["a", null], [[1], "a"], [{}], [["a"]], [["a", "b", "c"]], Array(5000).fill(3), new Array(3)];
const OBJECTS = [{}, { data: [1], width: 1e9, height: 1 }, { data: "aaa", width: 1, height: 1 }, { role: 3 }, { length: 5 }, new Map(), Object.create(null), () => {}];
const SOUNDS = [new Float32Array(0), new Float32Array(3).fill(NaN), new Float32Array(900).fill(1e30), new Int16Array(7), new BigInt64Array(2), new DataView(new ArrayBuffer(8))];
const ODD = [null, undefined, true, NaN, -1, 0, 1.5, 1e300, 10n, "", " ", "a", "\ud83d", "\0", "<bos>", "__proto__", Symbol("s"), ...LISTS, ...OBJECTS, ...SOUNDS];

const OPTIONS = ["maxNewTokens", "minNewTokens", "stop", "stopTokens", "ignoreEos", "signal", "temperature", "topK", "topP", "minP", "logitBias", "seed",
  "repetitionPenalty", "beams", "nBest", "lengthPenalty", "earlyStopping", "first", "truncate", "prompt", "language", "timestamps", "rate", "tokensPerSecond",
  "onSegment", "aggregation", "stride", "maxAnswerTokens", "allowNone", "top", "multiLabel", "template", "special", "maxTokens", "toString"];

const SOUND = Float32Array.from({ length: 20_000 }, (_, index) => Math.sin(index * index * 1e-4) / 2);
const IMAGE = { data: Array.from({ length: 7 * 5 * 3 }, (_, index) => (index * 37) % 256), width: 5, height: 7 };

/** Methods with arguments that are right for some bundle. */
const CALLS = {
  generate: [[3, 4, 5], "a b c", [{ role: "user", content: "a" }], SOUND, IMAGE, ["a b", "c"]],
  stream: [[3, 4, 5], "a b c"],
  embed: [["a b c", "d"], [[4, 5, 6]], [IMAGE], [SOUND]],
  states: [["a b c"], [IMAGE]],
  logits: [["a b"], [SOUND]],
  classify: [["a b c"], [["a", "b"]], [IMAGE]],
  classifyAs: [["a"]],
  classifyTokens: [["a b c d"]],
  answer: ["a b"],
  fill: ["a [MASK] b"],
  transcribe: [SOUND, [SOUND, SOUND]],
  listen: [[SOUND, SOUND]],
  verify: [],
};

/** Random numbers of a text. */
function generator(text) {
  let state = Array.from(text).reduce((hash, char) => Math.imul(hash ^ char.codePointAt(0), 0x01000193), 0x811c9dc5);
  return () => {
    state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x6d2b79f5;
    return ((state ^ (state >>> 13)) >>> 0) / 2 ** 32;
  };
}

const isAllowed = (error) => error instanceof OrtolanError || error?.name === "AbortError";

/** Call a function; its error must be one of this package. */
async function attempt(what, work) {
  try {
    const result = await work();
    if (result?.[Symbol.asyncIterator]) for (let count = 0; !(await result.next()).done && count < 20; count++);
    if (result?.return) await result.return();
  } catch (error) {
    if (!isAllowed(error)) throw new Error(`${what}: ${error?.stack ?? String(error)}`);
  }
}

const shown = (value) => (typeof value === "object" ? (JSON.stringify(value, (_, one) => (typeof one === "bigint" ? `${one}n` : one)) ?? "") : String(value)).slice(0, 80);

async function use(model, random) {
  const pick = (list) => list[Math.floor(random() * list.length)];
  const own = Object.keys(CALLS).filter((name) => typeof model[name] === "function");
  for (const name of own) {
    const few = name === "generate" || name === "stream" ? { maxNewTokens: 5 } : {};
    const others = name === "answer" ? ["c d e f"] : name === "classifyAs" ? [["a", "b"]] : [];
    for (const input of CALLS[name]) await attempt(`${name}(${shown(input)})`, () => model[name](input, ...others, few));
    for (let count = 0; count < 6; count++) {
      const [input, option, value, other] = [random() < 0.5 ? pick(ODD) : pick(CALLS[name]), pick(OPTIONS), pick(ODD), others.map((one) => (random() < 0.3 ? pick(ODD) : one))];
      await attempt(`${name}(${shown(input)}, ${other.map(shown)}, ${option}: ${shown(value)})`, () => model[name](input, ...other, { ...few, [option]: value }));
    }
  }
  if (!model.text) return;
  for (const name of ["encode", "tokens", "decode", "chat"]) {
    for (let count = 0; count < 4; count++) {
      const [value, option, other] = [pick(ODD), pick(OPTIONS), pick(ODD)];
      await attempt(`text.${name}(${shown(value)}, ${option}: ${shown(other)})`, () => model.text[name](value, { [option]: other }));
    }
  }
}

async function outcomeOf(folder, name) {
  let model;
  try {
    model = await load(folderFiles(`${folder}/${name}`), { ort: web });
  } catch (error) {
    return isAllowed(error) ? { outcome: "refused", error: error.name } : { outcome: "untyped", message: error?.stack ?? String(error) };
  }
  try {
    await use(model, generator(name));
    const { live } = model.engine;
    await model.dispose();
    return live ? { outcome: "leak", message: `${live} states` } : { outcome: "used" };
  } catch (error) {
    return { outcome: "untyped", message: error.message };
  }
}

/** Use a mutant in a process; resolves to its outcome, also if the process hangs or dies. */
function awaited(child, name) {
  return new Promise((resolve) => {
    const timer = setTimeout(() => end({ outcome: "hang" }), PATIENCE * 1000);
    const end = (outcome) => (clearTimeout(timer), child.removeAllListeners(), resolve(outcome));
    child.once("message", end);
    child.once("exit", (code, signal) => end({ outcome: "death", message: `${code ?? signal}` }));
    child.send(name);
  });
}

const [folder] = process.argv.slice(2);
if (process.send) {
  web.env.wasm.numThreads = 1;
  process.on("message", async (name) => process.send(await outcomeOf(folder, name)));
} else {
  let child;
  for (const [index, name] of readdirSync(folder).sort().entries()) {
    child ??= fork(fileURLToPath(import.meta.url), [folder]);
    const done = await awaited(child, name);
    console.log(JSON.stringify({ name, ...done }));
    if (["used", "refused"].includes(done.outcome) && index % ROUND !== ROUND - 1) continue;
    child.kill("SIGKILL");
    child = undefined;
  }
  child?.kill();
}
