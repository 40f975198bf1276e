/** Text to token ids and back, piece by piece. */

import { Tokenizer as Library } from "@huggingface/tokenizers";
import { Template } from "@huggingface/jinja";

import { InputError } from "./errors.js";

const decoded = (bytes) => (bytes ? JSON.parse(new TextDecoder().decode(bytes)) : {});

/** The tokenizer and the chat template of a bundle. */
export class Text {
  #library;
  #config;
  #template;

  /** @param {Map<string, Uint8Array>} contents of a bundle */
  constructor(contents, name) {
    this.#config = decoded(contents.get("tokenizer_config.json"));
    // otherwise the space before a full stop is dropped
    const settings = { ...this.#config, clean_up_tokenization_spaces: false };
    this.#library = new Library(decoded(contents.get(name)), settings);
    const file = contents.get("chat_template.jinja");
    const source = file ? new TextDecoder().decode(file) : this.#config.chat_template;
    this.#template = typeof source === "string" ? new Template(source) : null;
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
   * The prompt of a conversation.
   *
   * @param {{role: string, content: string}[]} messages
   * @returns {number[]} its ids
   */
  chat(messages) {
    if (!this.#template) throw new InputError("This bundle has no chat template. Pass a prompt.");
    const token = (name) => this.#config[name]?.content ?? this.#config[name] ?? "";
    let prompt;
    try {
      prompt = this.#template.render({
        messages,
        add_generation_prompt: true,
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
      });
    } catch (cause) {
      throw new InputError(`The chat template refuses these messages: ${cause.message}`, { cause });
    }
    return this.encode(prompt, { special: false });
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

  /** @returns {string} the rest, when no token follows */
  end() {
    const now = this.#text.decode(this.#tokens.slice(this.#start));
    const rest = this.#held + now.slice(this.#before.length);
    this.#held = "";
    return rest;
  }

  #released(added) {
    const all = this.#held + added;
    const found = this.#stops.map((stop) => all.indexOf(stop)).filter((place) => place >= 0);
    if (found.length) {
      this.#held = "";
      return { piece: all.slice(0, Math.min(...found)), isStopped: true };
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
