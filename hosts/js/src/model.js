/** `Model`: what models of every kind share. */

import { checkedIds } from "./arguments.js";
import { check, InputError } from "./errors.js";
import { Text } from "./text.js";

export class Model {
  #text;

  /** Use `load`. */
  constructor(engine, contents) {
    this.engine = engine;
    this.manifest = engine.manifest;
    this.#text = this.manifest.tokenizer ? new Text(contents, this.manifest) : null;
  }

  /** The tokenizer, with the chat template; null if the bundle has none. */
  get text() {
    return this.#text;
  }

  /** Give the logits after every token of `ids` to `onRow`; `start` makes the sequence. */
  async logitsOf(ids, onRow, start) {
    const { vocab_size: size, context_length: most } = this.manifest;
    const tokens = checkedIds(ids, size, "ids", { fewest: 1, most });
    check(typeof onRow === "function", InputError, "onRow must be a function, which gets the logits after each token.");
    const sequence = await start();
    try {
      await sequence.append(tokens, { onRow });
    } finally {
      sequence.end();
    }
  }

  /** Free the memory of the model, after the call that runs. Later calls are errors. */
  dispose() {
    return this.engine.dispose();
  }
}
