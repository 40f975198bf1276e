/** A decoder, which generates text. Its types and options are described in index.d.ts. */

import { readBundle } from "./bundle.js";
import { check } from "./checks.js";
import { ContextLengthError, DeviceError, InputError } from "./errors.js";
import { Sampler, SAMPLING_OPTIONS } from "./sampling.js";
import { openModel, Sequence } from "./sequence.js";
import { Text, TextStream } from "./text.js";
import { verify } from "./verify.js";

const DEVICES = ["wasm", "webgpu", "cpu"];

const OPTIONS = ["maxNewTokens", "stop", "stopTokens", "ignoreEos", "signal", ...SAMPLING_OPTIONS];

export async function load(files, { ort, device = "wasm", onProgress } = {}) {
  check(DEVICES.includes(device), DeviceError, `device must be wasm, webgpu or cpu (got ${device}).`);
  const isOffered = device !== "webgpu" || (await globalThis.navigator?.gpu?.requestAdapter());
  check(isOffered, DeviceError, "This browser offers no WebGPU. Choose the device wasm.");
  const { manifest, contents } = await readBundle(files, { onProgress });
  const model = await openModel(ort, device, manifest, contents, files.folder);
  return new Decoder(model, contents);
}

export class Decoder {
  #model;
  #contents;

  /** Use `load`. */
  constructor(model, contents) {
    this.#model = model;
    this.#contents = contents;
    this.manifest = model.manifest;
    const { tokenizer } = this.manifest;
    this.text = tokenizer ? new Text(contents, tokenizer) : null;
  }

  async *stream(prompt, options = {}) {
    const ids = this.#ids(prompt);
    const limit = this.#limit(ids, options);
    const ends = this.#ends(prompt, options);
    const { vocab_size: size, tokens } = this.manifest;
    const sampler = new Sampler(options, size, ids, tokens.suppressed);
    const pieces = this.text && new TextStream(this.text, [options.stop ?? []].flat());
    const result = { text: "", tokens: [], finishReason: "length", prefillMs: 0, decodeMs: 0 };
    const sequence = new Sequence(this.#model);
    let clock = performance.now();
    try {
      let logits = await sequence.append(ids, { signal: options.signal });
      result.prefillMs = performance.now() - clock;
      clock = performance.now();
      for (let isLast = false; !isLast; ) {
        options.signal?.throwIfAborted();
        const token = sampler.next(logits);
        result.tokens.push(token);
        const isEnd = ends.has(token);
        isLast = isEnd || result.tokens.length === limit;
        const added = pieces?.add(isEnd ? [] : [token], { isLast }) ?? { piece: "", isStopped: false };
        result.text += added.piece;
        if (added.piece) yield added.piece;
        if (isEnd || added.isStopped) result.finishReason = "stop";
        isLast ||= added.isStopped;
        if (!isLast) logits = await sequence.append([token]);
      }
      return result;
    } finally {
      result.decodeMs = performance.now() - clock;
      sequence.end();
    }
  }

  async generate(prompt, options = {}) {
    for (const pieces = this.stream(prompt, options); ; ) {
      const { done, value } = await pieces.next();
      if (done) return value;
    }
  }

  async logits(ids, onRow) {
    const sequence = new Sequence(this.#model);
    try {
      await sequence.append(ids, { onRow });
    } finally {
      sequence.end();
    }
  }

  verify(options) {
    return verify(this, this.#contents, options);
  }

  async release() {
    await this.#model.session.release();
  }

  #ids(prompt) {
    const isText = typeof prompt === "string";
    const hasIds = !isText && !isChat(prompt);
    check(hasIds || this.text, InputError, "This bundle has no tokenizer. Pass ids.");
    const ids = isText ? this.text.encode(prompt) : hasIds ? prompt : this.text.chat(prompt);
    check(ids?.length, InputError, "The prompt is empty. Pass at least one token.");
    this.#checkIds(ids);
    return Array.from(ids);
  }

  #checkIds(ids) {
    const size = this.manifest.vocab_size;
    const at = Array.from(ids).findIndex((id) => !Number.isInteger(id) || id < 0 || id >= size);
    check(at < 0, InputError, `Ids must be 0 to ${size - 1} (got ${ids[at]}).`);
  }

  /** Check the options other than those of sampling, and return the most new tokens. */
  #limit(ids, options) {
    const unknown = Object.keys(options).find((name) => !OPTIONS.includes(name));
    check(!unknown, InputError, `Unknown option ${unknown}. Expected one of ${OPTIONS.join(", ")}.`);
    const { maxNewTokens, stopTokens = [], stop = [] } = options;
    this.#checkIds(stopTokens);
    const areTexts = [stop].flat().every((text) => typeof text === "string" && text !== "");
    check(areTexts, InputError, "stop must be a text or a list of texts, none of them empty.");
    check(!stop.length || this.text, InputError, "This bundle has no tokenizer. Leave out stop.");
    const isCount = maxNewTokens === undefined || (Number.isInteger(maxNewTokens) && maxNewTokens > 0);
    check(isCount, InputError, `maxNewTokens must be a whole number above 0 (got ${maxNewTokens}).`);
    const most = this.manifest.context_length;
    const room = most - ids.length;
    const long = `A prompt of ${ids.length} and ${maxNewTokens ?? 1} new tokens exceed the context of ${most}`;
    const advice = `Shorten the prompt${room > 0 ? `, or lower maxNewTokens to ${room}` : ""}.`;
    check((maxNewTokens ?? 1) <= room, ContextLengthError, `${long} tokens. ${advice}`);
    return maxNewTokens ?? room;
  }

  /** Tokens that end the answer. The end of a turn does, even where the manifest does not say so. */
  #ends(prompt, { ignoreEos, stopTokens = [] }) {
    if (ignoreEos) return new Set(stopTokens);
    const turn = isChat(prompt) ? this.text.endOfTurn : null;
    return new Set([...this.manifest.tokens.eos, ...stopTokens, ...(turn === null ? [] : [turn])]);
  }
}

const isChat = (prompt) => typeof prompt?.[0] === "object";
