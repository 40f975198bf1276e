/** An encoder-decoder, which generates text from sources. Its types and options are described in index.d.ts. */

import { checkedIds, given, isBatch, shown, tokenizerOf } from "./arguments.js";
import { readBeams, searched } from "./beams.js";
import { check, InputError, ManifestError } from "./errors.js";
import { completed, Constraints, forEachInput, generated, readRequest } from "./generation.js";
import { Model } from "./model.js";
import { readerOf } from "./readers.js";
import { Transcriber } from "./transcription.js";

export class Seq2Seq extends Model {
  static kind = "encoder-decoder";
  #reader;
  #start;

  constructor(engine, contents) {
    super(engine, contents);
    this.#start = this.manifest.tokens.start;
    check(this.#start != null, ManifestError, "manifest.json names no start token for the decoder. Export the checkpoint again, with a decoder_start_token_id.");
    this.#reader = readerOf(this);
  }

  async generate(source, options) {
    const { first, ...rest } = given(options);
    const { own, others } = readBeams(rest);
    const constraints = this.#constraints(first);
    return forEachInput(source, (one, index) => {
      const input = this.#reader.read(one);
      if (own.beams === 1) return completed(this.#stream(input, constraints, others, index));
      return searched(this, others, own, constraints, this.#start, (rows) => this.#sequence(input, rows));
    });
  }

  async *stream(source, options) {
    const { first, ...others } = given(options);
    tokenizerOf(this, "stream");
    check(!isBatch(source), InputError, "stream accepts a single source. Use generate for a list.");
    return yield* this.#stream(this.#reader.read(source), this.#constraints(first), others);
  }

  transcribe(sound, options) {
    return forEachInput(sound, (one) => this.#transcriber(options).whole(one));
  }

  listen(blocks, options) {
    const isIterable = [Symbol.asyncIterator, Symbol.iterator].some((name) => typeof blocks?.[name] === "function");
    check(isIterable, InputError, `listen: expected blocks of samples one after another, got ${shown(blocks)}. Call transcribe for one sound.`);
    return this.#transcriber(options).live(blocks);
  }

  /** Logits after every token of an output, which begins with the start token, to `onRow`. */
  async logits(source, ids, onRow) {
    check(!isBatch(source), InputError, "logits accepts a single source, not a list.");
    return this.logitsOf(ids, onRow, () => this.#sequence(this.#reader.read(source)));
  }

  #stream(input, constraints, options, index = 0) {
    return generated(readRequest(this, [this.#start], options, { constraints, index }), () => this.#sequence(input));
  }

  #transcriber(options) {
    return new Transcriber(this, (input) => this.#sequence(input), options);
  }

  /** A sequence of `rows` that reads a source. */
  async #sequence(input, rows = 1) {
    const outputs = await this.engine.run("encoder", this.#reader.feeds([input], this.engine), { batch: 1 });
    const states = this.manifest.states.filter(({ update }) => update === "source");
    const source = new Map(states.map(({ input: name, output }) => [name, outputs[output]]));
    const [{ output, shape }] = states;
    const length = input.tokens ? input.length : outputs[output].dims[shape.indexOf("source")]; // media have no padding
    return this.engine.sequence({ rows, source: { states: source, lengths: [length] } });
  }

  /** The constraints of a request with a forced first token. */
  #constraints(first) {
    const { tokens, vocab_size: size } = this.manifest;
    if (first == null) return new Constraints(tokens);
    const ids = typeof first === "string" ? tokenizerOf(this, "first").encode(first, { special: false }) : [first];
    const one = `first must be one token, but ${shown(first)} has ${ids.length}. Pass a token of the tokenizer, such as a language code, or its id.`;
    check(ids.length === 1, InputError, one);
    return new Constraints(tokens, { opening: [checkedIds(ids, size, "first")] });
  }
}
