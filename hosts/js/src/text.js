/** Text to token ids and back, piece by piece. */

import { Tokenizer as Library } from "@huggingface/tokenizers";
import { Template } from "@huggingface/jinja";

import { InputError } from "./errors.js";

const PROBE = "a text to be found again";

const decoded = (bytes) => (bytes ? JSON.parse(new TextDecoder().decode(bytes)) : {});

/** The tokenizer and the chat template of a bundle. */
export class Text {
  #library;
  #config;
  #template = null;
  #control = new Map();

  /** Control token that the chat template writes after an answer. */
  endOfTurn = null;

  /** @param {Map<string, Uint8Array>} contents of a bundle */
  constructor(contents, name) {
    this.#config = decoded(contents.get("tokenizer_config.json"));
    // otherwise the space before a full stop is dropped
    const settings = { ...this.#config, clean_up_tokenization_spaces: false };
    const library = decoded(contents.get(name));
    this.#library = new Library(library, settings);
    const file = contents.get("chat_template.jinja");
    const named = this.#config.chat_template;
    const main = Array.isArray(named) ? named.find((one) => one.name === "default")?.template : named;
    const source = file ? new TextDecoder().decode(file) : main;
    if (typeof source !== "string") return;
    this.#template = new Template(source);
    const added = library.added_tokens ?? [];
    this.#control = new Map(
      added
        .filter(({ special, content }) => special || (content.trim() && source.includes(content)))
        .map(({ content, id }) => [content, id]),
    );
    this.endOfTurn = source.includes("<|channel|>") ? null : this.#endOfTurn();
  }

  /** @returns {boolean} whether `chat` works */
  get hasTemplate() {
    return this.#template !== null;
  }

  /** @returns {number[]} */
  encode(text, { special = true } = {}) {
    return Array.from(this.#library.encode(text, { add_special_tokens: special }).ids, Number);
  }

  /** @returns {string} */
  decode(ids) {
    return ids.length ? this.#library.decode(ids, { skip_special_tokens: true }) : "";
  }

  /**
   * The prompt of a conversation. Texts cannot contain control tokens: they would change its turns.
   *
   * @param {{role: string, content: string}[]} messages
   * @returns {number[]} its ids
   */
  chat(messages) {
    if (!this.#template) throw new InputError("This bundle has no chat template. Pass a prompt.");
    for (const { role, content } of messages) {
      if (typeof role !== "string" || typeof content !== "string") {
        throw new InputError("Every message needs a role and a content, both texts.");
      }
      const found = [...this.#control.keys()].find((control) => content.includes(control));
      if (found) throw new InputError(`A message contains the control token ${found}. Remove it.`);
    }
    return this.encode(this.#rendered(messages, true), { special: false });
  }

  #rendered(messages, answers) {
    const tokens = Object.entries(this.#config)
      .filter(([name]) => name.endsWith("_token"))
      .map(([name, value]) => [name, value?.content ?? value])
      .filter(([, text]) => typeof text === "string");
    const variables = { ...Object.fromEntries(tokens), messages, add_generation_prompt: answers };
    try {
      return this.#template.render(variables);
    } catch (cause) {
      throw new InputError(`The chat template rejects these messages: ${cause.message}`, { cause });
    }
  }

  #endOfTurn() {
    const messages = [{ role: "user", content: "?" }, { role: "assistant", content: PROBE }];
    let text;
    try {
      text = this.#rendered(messages, false);
    } catch {
      return null; // a template that rejects this conversation
    }
    const place = text.lastIndexOf(PROBE);
    const rest = place < 0 ? "" : text.slice(place + PROBE.length).trimStart();
    const [first] = rest ? this.encode(rest, { special: false }) : [];
    return [...this.#control.values()].includes(first) ? first : null;
  }
}

/** Turns tokens into pieces of text: never half a character, and never part of a stop text. */
export class TextStream {
  #text;
  #stops;
  #tokens = [];
  #start = 0; // tokens before it are no longer decoded
  #before = ""; // text of the tokens from #start that was returned
  #held = "";

  /**
   * @param {Text} text
   * @param {string[]} stops
   */
  constructor(text, stops) {
    this.#text = text;
    this.#stops = stops;
  }

  /** @returns {{piece: string, isStopped: boolean}} what a token adds */
  add(token) {
    this.#tokens.push(token);
    const now = this.#text.decode(this.#tokens.slice(this.#start));
    if (now.endsWith("\ufffd")) return { piece: "", isStopped: false };
    const added = now.slice(this.#before.length);
    this.#before = now;
    if (this.#tokens.length - this.#start > 32) {
      // the last tokens stay, since a decoder may treat the first one differently
      this.#start = this.#tokens.length - 8;
      this.#before = this.#text.decode(this.#tokens.slice(this.#start));
    }
    return this.#released(added);
  }

  /** @returns {{piece: string, isStopped: boolean}} the rest, when no token follows */
  end() {
    const now = this.#text.decode(this.#tokens.slice(this.#start));
    const { piece, isStopped } = this.#released(now.slice(this.#before.length));
    const rest = piece + this.#held;
    this.#held = "";
    return { piece: rest, isStopped };
  }

  /** The stop text that ends first wins; the longest, if several end together. */
  #released(added) {
    const all = this.#held + added;
    const found = this.#stops
      .map((stop) => ({ start: all.indexOf(stop), end: all.indexOf(stop) + stop.length }))
      .filter(({ start }) => start >= 0)
      .sort((a, b) => a.end - b.end || a.start - b.start);
    if (found.length) {
      this.#held = "";
      return { piece: all.slice(0, found[0].start), isStopped: true };
    }
    let kept = 0;
    for (const stop of this.#stops) {
      for (let size = Math.min(stop.length - 1, all.length); size > kept; size--) {
        if (all.endsWith(stop.slice(0, size))) kept = size;
      }
    }
    this.#held = all.slice(all.length - kept);
    return { piece: all.slice(0, all.length - kept), isStopped: false };
  }
}
