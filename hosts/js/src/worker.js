/**
 * A web worker that loads a bundle and calls its model, so that the page stays alive; see `demo/page.js`.
 *
 * Requests: `{kind: "load", url or files, device, ort}`, `{kind: "call", method, inputs, options}` and
 * `{kind: "stop"}`. Functions cannot be sent, so `true` stands for `signal` and the callbacks in options.
 */

import { chosenFiles, load, urlFiles } from "./index.js";

let model;
let abort;

const onPiece = (piece) => postMessage({ kind: "piece", piece });
const onProgress = (loaded, total, name) => postMessage({ kind: "loading", loaded, total, name });

const answers = {
  async load({ url, files, device, ort }) {
    await model?.dispose();
    model = await load(files ? chosenFiles(files) : urlFiles(url), { ort: await import(ort), device, onProgress });
    return { manifest: model.manifest, hasTemplate: model.text?.hasTemplate ?? false };
  },
  async call({ method, inputs, options }) {
    abort = new AbortController();
    const sent = { signal: abort.signal, onSegment: onPiece, onProgress };
    for (const name of Object.keys(sent)) if (options[name]) options[name] = sent[name];
    const result = await model[method](...inputs, options);
    while (result?.next) {
      const { done, value } = await result.next();
      if (done) return value;
      onPiece(value);
    }
    return result;
  },
};

onmessage = async ({ data: { kind, ...request } }) => {
  if (kind === "stop") return abort?.abort();
  try {
    postMessage({ kind: "done", result: await answers[kind](request) });
  } catch (error) {
    postMessage({ kind: "failed", name: error.name, message: error.message });
  }
};
