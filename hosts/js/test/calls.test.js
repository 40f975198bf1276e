/**
 * Calls of models, and what Python returns for them or raises: tests/hosts/js_cases.py writes
 * ORTOLAN_CASES, with the device to compute on. A result may have more fields than expected, such as times.
 */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

import native from "onnxruntime-node";
import * as web from "onnxruntime-web";

import { folderFiles, load, OrtolanError } from "../src/index.js";

const { cases, tolerance, device = "wasm" } = JSON.parse(await readFile(process.env.ORTOLAN_CASES, "utf8"));
web.env.wasm.numThreads = 1;

function compare(got, expected, path) {
  if (typeof expected === "number" && !Number.isInteger(expected)) {
    const error = Math.abs(got - expected);
    assert.ok(error <= tolerance * Math.max(1, Math.abs(expected)), `${path}: expected ${expected}, got ${got}`);
  } else if (Array.isArray(expected)) {
    assert.equal(got?.length, expected.length, `${path}: length`);
    expected.forEach((value, index) => compare(got[index], value, `${path}[${index}]`));
  } else if (expected !== null && typeof expected === "object") {
    for (const [name, value] of Object.entries(expected)) compare(got[name], value, `${path}.${name}`);
  } else assert.ok(got === expected || Math.abs(got - expected) <= tolerance, `${path}: expected ${expected}, got ${got}`);
}

const KINDS = { float32: Float32Array, float64: Float64Array, int16: Int16Array, int32: Int32Array };

/** Arguments as JavaScript has them: sounds are arrays of samples. */
function revived(value) {
  if (Array.isArray(value)) return value.map(revived);
  return value?.samples ? new KINDS[value.dtype](Uint8Array.from(Buffer.from(value.samples, "base64")).buffer) : value;
}

/** The items of an iterator, or the result itself. */
async function collected(result) {
  if (!result?.[Symbol.asyncIterator]) return result;
  const items = [];
  for await (const item of result) items.push(item);
  return items;
}

const models = new Map();
const opened = (bundle) => {
  if (!models.has(bundle)) models.set(bundle, load(folderFiles(bundle), { ort: device === "cpu" ? native : web, device }));
  return models.get(bundle);
};

for (const { bundle, method, arguments: given, result, error } of cases) {
  const shown = JSON.stringify(given, (key, value) => (key === "samples" ? `${value.length} bytes` : value));
  const name = `${bundle.split("/").slice(-2).join("/")}.${method} ${shown.slice(0, 120)}`;
  test(name, async () => {
    const model = await opened(bundle);
    assert.equal(typeof model[method], "function");
    const done = await (async () => collected(model[method](...given.map(revived))))().catch((cause) => cause);
    if (error) {
      assert.ok(done instanceof OrtolanError, `expected ${error}, got ${done?.stack ?? JSON.stringify(done)}`);
      return assert.equal(done.name, error, done.message);
    }
    assert.ok(!(done instanceof Error), done?.stack);
    compare(done, result, method);
    assert.equal(model.engine.live, 0, "states are left");
  });
}

test("models are disposed of", async () => {
  for (const model of await Promise.all(models.values())) {
    await model.dispose();
    await model.dispose();
  }
});
