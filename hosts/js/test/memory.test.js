/** What a model holds, counted by tensors that were made and not disposed of. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";
import { setTimeout as wait } from "node:timers/promises";

import * as web from "onnxruntime-web";

import { folderFiles, load } from "../src/index.js";

const { bundle } = JSON.parse(await readFile(process.env.ORTOLAN_CASES, "utf8"));
web.env.wasm.numThreads = 1;

/** States in use, and sessions that are open. Outputs are copies, which only count once they are states. */
const open = { sessions: 0 };
class Session {
  static async create(...args) {
    const session = await web.InferenceSession.create(...args);
    open.sessions++;
    const { release } = session;
    session.release = () => (open.sessions--, release.call(session));
    return session;
  }
}
const ort = { Tensor: web.Tensor, InferenceSession: Session };
const opened = () => load(folderFiles(bundle), { ort });
const options = { maxNewTokens: 20, ignoreEos: true };

test("nothing is left after ends, errors, aborts and closed streams", async () => {
  const model = await opened();
  const expected = (await model.generate([3, 4, 5], options)).tokens;
  for (let round = 0; round < 10; round++) {
    await model.generate([3, 4, 5], options);
    await assert.rejects(model.generate([3, 9999], options), { name: "InputError" });
    await assert.rejects(model.generate([3], { ...options, signal: AbortSignal.abort() }), { name: "AbortError" });
    const abort = new AbortController();
    const running = model.generate([3, 4, 5], { ...options, signal: abort.signal });
    await wait(0);
    abort.abort();
    await running.catch(() => {});
    const pieces = model.stream([3, 4], options);
    const first = pieces.next();
    await pieces.return();
    await first;
    assert.equal(model.engine.live, 0);
  }
  assert.deepEqual((await model.generate([3, 4, 5], options)).tokens, expected);
  await model.dispose();
  assert.equal(open.sessions, 0);
});

test("a dropped sequence is freed when it is collected", async () => {
  const model = await opened();
  await (async () => {
    const sequence = model.engine.sequence();
    await sequence.append([3, 4]);
  })();
  assert.equal(model.engine.live, 1);
  for (let tries = 0; model.engine.live && tries < 50; tries++) {
    globalThis.gc();
    await wait(5);
  }
  assert.equal(model.engine.live, 0);
  await model.dispose();
});

test("requests that overlap return what they return alone", async () => {
  const model = await opened();
  const prompts = [[3], [4, 5], [6, 7, 8, 9]];
  const alone = [];
  for (const prompt of prompts) alone.push((await model.generate(prompt, options)).tokens);
  const together = await Promise.all(prompts.map((prompt) => model.generate(prompt, options)));
  assert.deepEqual(together.map(({ tokens }) => tokens), alone);
  await model.dispose();
});

test("a signal from a timer ends what runs", async () => {
  const model = await opened();
  const signal = AbortSignal.timeout(1);
  await assert.rejects(model.generate([3, 4, 5], { ...options, maxNewTokens: 1000, signal }), { name: "TimeoutError" });
  assert.equal(model.engine.live, 0);
  await model.dispose();
});

test("a model that is disposed of ends what runs, and refuses what follows", async () => {
  const model = await opened();
  const running = model.generate([3, 4, 5], { ...options, maxNewTokens: 1000 });
  const failed = assert.rejects(running, { name: "InputError", message: /model is closed/ });
  await wait(1);
  await model.dispose();
  await failed;
  assert.equal(model.engine.live, 0);
  assert.equal(open.sessions, 0);
  await assert.rejects(model.generate([3]), /model is closed/);
});

test("a bundle that cannot be opened leaves no session", async () => {
  let count = 0;
  const failing = { ...ort, InferenceSession: { create: (...args) => (count++ ? Promise.reject(new Error("no")) : Session.create(...args)) } };
  const model = await load(folderFiles(bundle), { ort: failing });
  await assert.rejects(load(folderFiles(bundle), { ort: failing }), { name: "DeviceError" });
  await model.dispose();
  assert.equal(open.sessions, 0);
});
