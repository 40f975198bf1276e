/** `Model`: what models of every kind share. */

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

  /** Free the memory of the model, after the call that runs. Later calls are errors. */
  dispose() {
    return this.engine.dispose();
  }
}
