/** A decoder, which generates text. Its types and options are described in index.d.ts. */

import { checkedFunction, checkedIds, checkNames, tokenizerOf } from "./arguments.js";
import { check, InputError } from "./errors.js";
import { completed, generated, readRequest } from "./generation.js";
import { Model } from "./model.js";
import { verify } from "./verify.js";

export class Decoder extends Model {
  static kind = "decoder";
  #certificate;

  /** Use `load`. */
  constructor(engine, contents) {
    super(engine, contents);
    const names = [...contents.keys()].filter((name) => name.startsWith("certificate."));
    this.#certificate = new Map(names.map((name) => [name, contents.get(name)]));
  }

  async *stream(prompt, options) {
    const isConversation = isChat(prompt);
    const ids = this.#ids(prompt);
    // the end of a turn ends the answer, even where the manifest does not say so
    const turn = isConversation ? this.text.endOfTurn : null;
    const request = readRequest(this, ids, options, { ends: turn === null ? [] : [turn] });
    return yield* generated(request, () => this.engine.sequence());
  }

  generate(prompt, options) {
    return completed(this.stream(prompt, options));
  }

  logits(ids, onRow) {
    return this.logitsOf(ids, onRow, () => this.engine.sequence());
  }

  async verify(options) {
    const { onProgress } = checkNames(options, ["onProgress"]);
    return verify(this, this.#certificate, checkedFunction("onProgress", onProgress));
  }

  #ids(prompt) {
    const { vocab_size: size, tokens } = this.manifest;
    const chat = isChat(prompt) && tokenizerOf(this, "messages").chat(prompt);
    const ids = chat || (typeof prompt === "string" ? tokenizerOf(this, "prompt").encode(prompt) : checkedIds(prompt, size, "prompt"));
    const { bos } = tokens;
    check(ids.length || bos != null, InputError, "The prompt is empty, and this model has no BOS token to start from. Pass at least one token.");
    return ids.length ? ids : [bos];
  }
}

const isChat = (prompt) => Array.isArray(prompt) && typeof prompt[0] === "object" && prompt[0] !== null;
