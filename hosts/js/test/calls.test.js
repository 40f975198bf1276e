/**
 * Calls of models, and what Python returns for them or raises: tests/hosts/js_cases.py writes
 * ORTOLAN_CASES. A result may have more fields than expected, such as times.
 */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

import * as web from "onnxruntime-web";

import { folderFiles, load, OrtolanError } from "../src/index.js";

const { cases, tolerance } = JSON.parse(await readFile(process.env.ORTOLAN_CASES, "utf8"));
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

const models = new Map();
const opened = (bundle) => {
  if (!models.has(bundle)) models.set(bundle, load(folderFiles(bundle), { ort: web }));
  return models.get(bundle);
};

for (const { bundle, method, arguments: given, result, error } of cases) {
  const name = `${bundle.split("/").at(-1)}.${method} ${JSON.stringify(given)}`.slice(0, 120);
  test(name, async () => {
    const model = await opened(bundle);
    assert.equal(typeof model[method], "function");
    const done = await model[method](...given).catch((cause) => cause);
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
