/** Calls that tests/hosts/js_cases.py writes to ORTOLAN_CASES, with the device to compute on. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

import native from "onnxruntime-node";
import * as web from "onnxruntime-web";

import { folderFiles, load } from "../src/index.js";
import { repeated } from "./calls.js";

const { cases, tolerance, device = "wasm" } = JSON.parse(await readFile(process.env.ORTOLAN_CASES, "utf8"));
web.env.wasm.numThreads = 1;

const models = new Map();
const opened = (bundle) => {
  if (!models.has(bundle)) models.set(bundle, load(folderFiles(bundle), { ort: device === "cpu" ? native : web, device }));
  return models.get(bundle);
};

for (const call of cases) {
  const shown = JSON.stringify(call.arguments, (key, value) => (key === "samples" ? `${value.length} bytes` : value));
  test(`${call.bundle.split("/").slice(-2).join("/")}.${call.method} ${shown.slice(0, 120)}`, async () => {
    assert.deepEqual(await repeated(await opened(call.bundle), call, tolerance), { differences: [] });
  });
}

test("models are disposed of", async () => {
  for (const model of await Promise.all(models.values())) {
    await model.dispose();
    await model.dispose();
  }
});
