/** A web worker that loads and runs a model, so that the page stays alive; see `demo/page.js`. */

import { chosenFiles, Decoder, load, urlFiles } from "./index.js";

let model;
let abort;

const answers = {
  async load({ url, files, device, ort }) {
    await model?.dispose();
    const onProgress = (loaded, total, name) => postMessage({ kind: "loading", loaded, total, name });
    const module = await import(ort);
    model = await load(files ? chosenFiles(files) : urlFiles(url), { ort: module, device, kind: Decoder, onProgress });
    const { tokenizer, quality, context_length: context } = model.manifest;
    return { hasChat: model.text?.hasTemplate ?? false, hasText: tokenizer !== null, quality, context };
  },
  async generate({ prompt, options }) {
    abort = new AbortController();
    for (const pieces = model.stream(prompt, { ...options, signal: abort.signal }); ; ) {
      const { done, value } = await pieces.next();
      if (done) return value;
      postMessage({ kind: "piece", piece: value });
    }
  },
  verify: () => model.verify({ onProgress: (loaded, total) => postMessage({ kind: "loading", loaded, total }) }),
};

onmessage = async ({ data: { kind, ...request } }) => {
  if (kind === "stop") return abort?.abort();
  try {
    postMessage({ kind: "done", result: await answers[kind](request) });
  } catch (error) {
    postMessage({ kind: "failed", name: error.name, message: error.message });
  }
};
