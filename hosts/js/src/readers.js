/** Inputs of an encoder: what a caller passes, checked and read, as tensors of a graph. */

import { checkedFlag, checkedIds, checkNames, shown, tokenizerOf } from "./arguments.js";
import { check, BundleKindError, ContextLengthError, InputError, TokenizerError } from "./errors.js";
import { readPixels } from "./images.js";
import { concatenated, readSound } from "./sounds.js";

const isPair = (value) => Array.isArray(value) && value.length === 2 && value.every((text) => typeof text === "string");

/** The reader of the inputs of a model's encoder. */
export function readerOf(model) {
  const { source } = model.manifest;
  const Reader = source?.kind === "text" ? TextReader : MediaReader;
  check(source && (Reader === TextReader || Object.hasOwn(MEDIA, source.kind)), BundleKindError, `This package does not read ${source?.kind ?? "the inputs of this bundle"}. Run the bundle with Python.`);
  return new Reader(model, source);
}

/** Texts, pairs of texts and token ids. What it reads has `tokens`, and `text` if it was one text. */
class TextReader {
  #model;
  #source;

  constructor(model, source) {
    this.#model = model;
    this.#source = source;
    this.maxTokens = source.max_tokens;
  }

  /** Read one input; `truncate` cuts it at its end if it is too long. */
  read(value, options) {
    const { padding, max_tokens: most } = this.#source;
    const tokens = this.#tokens(value, truncates(options) ? most : undefined);
    check(tokens.length <= most, ContextLengthError, `The input has ${tokens.length} tokens, and the limit is ${most}. Split it, or with an Encoder pass truncate.`);
    // padding that the encoder reads like other tokens
    if (padding !== undefined) while (tokens.length < most) tokens.push({ id: padding, type: 0 });
    return { tokens, length: tokens.length, text: typeof value === "string" ? value : undefined };
  }

  /** Read a text whose tokens know their characters. */
  readText(value, options) {
    check(typeof value === "string", InputError, `Labels of tokens need a text, whose characters they name (got ${shown(value)}).`);
    return this.read(value, options);
  }

  /** Read a question with each part of its context. */
  windows(question, context, { maxTokens, stride }) {
    const windows = tokenizerOf(this.#model, "question and context").windows(question, context, { maxTokens, stride });
    check(windows[0].some(({ span }) => span), InputError, noTokens(context));
    this.#checkTypes(windows[0]);
    return windows.map((tokens) => ({ tokens, length: tokens.length }));
  }

  /** Tensors of texts, which are padded on the right. */
  feeds(inputs, engine) {
    const longest = Math.max(...inputs.map(({ length }) => length));
    const dims = [inputs.length, longest];
    const padded = (of, padding) => {
      return inputs.flatMap(({ tokens }) => Array.from({ length: longest }, (_, index) => (tokens[index] ? of(tokens[index]) : padding)));
    };
    return {
      input_ids: engine.tensor("int64", padded(({ id }) => id, this.#model.manifest.tokens.pad ?? 0), dims),
      lengths: engine.tensor("int32", inputs.map(({ length }) => length), [inputs.length]),
      ...(this.#source.types > 1 && { token_type_ids: engine.tensor("int64", padded(({ type }) => type ?? 0, 0), dims) }),
    };
  }

  #tokens(value, maxTokens) {
    if (typeof value === "string") {
      const tokens = tokenizerOf(this.#model, "text").tokens(value, { maxTokens });
      check(tokens.some(({ word }) => word !== undefined), InputError, noTokens(value));
      return tokens.map((token) => ({ ...token, type: 0 }));
    }
    if (!isPair(value)) {
      const size = this.#source.vocab_size ?? this.#model.manifest.vocab_size;
      return checkedIds(value, size, "ids", { fewest: 1 }).slice(0, maxTokens).map((id) => ({ id, type: 0 }));
    }
    const tokens = tokenizerOf(this.#model, "pairs of texts").pair(...value, { maxTokens });
    this.#checkTypes(tokens);
    const { types = 1, pairs } = this.#source;
    const isRead = types > 1 || pairs || !tokens.some(({ type }) => type);
    check(isRead, TokenizerError, "This tokenizer marks the second text of a pair by type ids, which the bundle does not read. Only classifiers read them; export older ones again.");
    return tokens;
  }

  #checkTypes(tokens) {
    const { types = 1 } = this.#source;
    const top = tokens.reduce((most, { type }) => Math.max(most, type), 0);
    check(types === 1 || top < types, TokenizerError, `The tokenizer marks a token of the pair with type ${top}, and the model has types up to ${types - 1}. tokenizer.json belongs to another model.`);
  }
}

/** The input of a graph for each kind of media, its sizes, how to read one, and its length in batches. */
const MEDIA = {
  image: {
    name: "pixels",
    read: readPixels,
    dims: ({ channels, height, width }) => [channels, height, width],
    length: ({ height, width }) => Math.max(1, Math.floor((height * width) / 64)), // patches of 8 by 8 pixels
  },
  audio: { name: "mel", read: readSound, dims: ({ bins, frames }) => [bins, frames], length: ({ vectors }) => vectors },
  wave: { name: "wave", read: readSound, dims: (_, { length }) => [length], length: () => 1, isAlone: true },
};

/** Images of one size, or sounds. */
class MediaReader {
  #source;
  #kind;

  constructor(_, source) {
    [this.#source, this.#kind] = [source, MEDIA[source.kind]];
    this.isAlone = this.#kind.isAlone; // whether each input is a call of its own
  }

  read(value, options) {
    check(!truncates(options), InputError, "truncate is for texts, and this encoder reads images or sounds.");
    return { values: this.#kind.read(value, this.#source), length: this.#kind.length(this.#source) };
  }

  feeds(inputs, engine) {
    const dims = [inputs.length, ...this.#kind.dims(this.#source, inputs[0].values)];
    return { [this.#kind.name]: engine.tensor("float32", concatenated(inputs.map(({ values }) => values)), dims) };
  }
}

/** The option `truncate`, which is the only one. */
function truncates(options) {
  const { truncate = false } = checkNames(options, ["truncate"]);
  return checkedFlag("truncate", truncate);
}

const noTokens = (text) => `The text ${shown(text)} has no tokens. Leave it out.`;
