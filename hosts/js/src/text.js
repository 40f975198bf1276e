/** Text to token ids and back, piece by piece. */

import { Template } from "@huggingface/jinja";

import { shown } from "./arguments.js";
import { check, InputError } from "./errors.js";
import { Tokenizer } from "./tokenizer.js";

const PROBE = "a text to be found again";

const decoded = (bytes) => (bytes ? JSON.parse(new TextDecoder().decode(bytes)) : {});

/** The tokenizer and the chat template of a bundle. */
export class Text extends Tokenizer {
  #config;
  #template = null;
  #control = new Map();

  /** Control token that the chat template writes after an answer. */
  endOfTurn = null;

  /** From the contents of a bundle's files, and its manifest. */
  constructor(contents, { tokenizer, vocab_size: size }) {
    const config = decoded(contents.get("tokenizer_config.json"));
    super(decoded(contents.get(tokenizer)), size, config);
    this.#config = config;
    const file = contents.get("chat_template.jinja");
    const named = config.chat_template;
    const main = Array.isArray(named) ? named.find((one) => one.name === "default")?.template : named;
    const source = file ? new TextDecoder().decode(file) : main;
    if (typeof source !== "string") return;
    this.#template = new Template(source);
    this.#control = this.controlTokens(source);
    this.endOfTurn = source.includes("<|channel|>") ? null : this.#endOfTurn();
  }

  /** Whether `chat` works. */
  get hasTemplate() {
    return this.#template !== null;
  }

  /** Ids of a conversation. Control tokens in a text would change its turns, so they are errors. */
  chat(messages) {
    check(this.#template, InputError, "This bundle has no chat template. Pass a prompt.");
    check(Array.isArray(messages), InputError, `Messages must be a list (got ${shown(messages)}).`);
    for (const message of Array.from(messages)) {
      const { role, content } = message ?? {};
      check(typeof role === "string" && typeof content === "string", InputError, "Every message needs a role and a content, both texts.");
      const control = [...this.#control.keys()].find((token) => content.includes(token));
      check(!control, InputError, `A message contains the control token ${control}. Remove it.`);
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

  constructor(text, stops) {
    this.#text = text;
    this.#stops = stops;
  }

  /** What more tokens add to the text; the rest of it, if no token follows. */
  add(tokens, { isLast = false } = {}) {
    this.#tokens.push(...tokens);
    const now = this.#text.decode(this.#tokens.slice(this.#start));
    if (now.endsWith("\ufffd") && !isLast) return { piece: "", isStopped: false };
    const added = this.#held + now.slice(this.#before.length);
    this.#before = now;
    if (this.#tokens.length - this.#start > 32) {
      // the last tokens stay, since a decoder may treat the first one differently
      this.#start = this.#tokens.length - 8;
      this.#before = this.#text.decode(this.#tokens.slice(this.#start));
    }
    const end = this.#stopIn(added);
    if (end !== null) return { piece: added.slice(0, end), isStopped: true };
    const kept = isLast ? 0 : this.#begun(added);
    this.#held = added.slice(added.length - kept);
    return { piece: added.slice(0, added.length - kept), isStopped: false };
  }

  /** Start of the stop text that ends first, and of the longest if several end together. */
  #stopIn(text) {
    const found = this.#stops
      .map((stop) => ({ start: text.indexOf(stop), end: text.indexOf(stop) + stop.length }))
      .filter(({ start }) => start >= 0)
      .sort((a, b) => a.end - b.end || a.start - b.start);
    return found[0]?.start ?? null;
  }

  /** Characters at the end of a text that may begin a stop text. */
  #begun(text) {
    const longest = Math.max(1, ...this.#stops.map((stop) => stop.length)) - 1;
    for (let size = Math.min(longest, text.length); size > 0; size--) {
      const end = text.slice(text.length - size);
      if (this.#stops.some((stop) => stop.length > size && stop.startsWith(end))) return size;
    }
    return 0;
  }
}
