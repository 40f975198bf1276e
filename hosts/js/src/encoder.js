/** An encoder of texts, images or sounds. Its types and options are described in index.d.ts. */

import { asList, checkedCount, checkedFlag, checkNames, given, shown, tokenizerOf } from "./arguments.js";
import { check, BundleKindError, InputError, NumericError, TokenizerError } from "./errors.js";
import { forEachInput } from "./generation.js";
import { classification, distinct, SCORES, scoresOf, sentences } from "./labels.js";
import { Model } from "./model.js";
import { readerOf } from "./readers.js";
import { transcribeCtc } from "./ctc.js";
import { AGGREGATIONS, bestAnswer, entitiesOf } from "./spans.js";

/** Most inputs and tokens of a call, and the least length of its shortest text relative to the longest. */
const [MOST_ROWS, MOST_TOKENS, LEAST_SHARE] = [32, 4096, 0.75];

/** Length of a window of a context, and overlap of two, in tokens, as in transformers. */
const [WINDOW, STRIDE] = [384, 128];

const TEMPLATE = "This example is {}.";
const IMAGE_TEMPLATE = "This is a photo of {}.";

/** How models write a blank. */
const MASKS = ["[MASK]", "<mask>", "<|mask|>"];

/** What an output is, and what computes it, for errors. */
const OUTPUTS = {
  states: ["a vector for each token", "states"],
  logits: ["logits of the vocabulary for each token", "fill or logits"],
  labels: ["labels", "classify"],
  tags: ["labels, any number of which may apply", "classify"],
  scores: ["scores", "classify"],
  token_labels: ["labels for each token", "classifyTokens"],
  spans: ["the start and end of answers", "answer"],
  ctc: ["logits of symbols, one of them blank", "transcribe or logits"],
  embedding: ["embeddings", "embed"],
};

export class Encoder extends Model {
  static kind = "encoder";
  #reader;
  #texts;

  constructor(engine, contents, parts = {}) {
    super(engine, contents);
    this.#reader = readerOf(this);
    this.#texts = parts.texts ? new Encoder(parts.texts.engine, parts.texts.contents) : null;
  }

  /** The encoder of the texts that images are compared with. */
  get texts() {
    check(this.#texts, BundleKindError, "texts: expected an encoder of images with one of texts. Use another bundle.");
    return this.#texts;
  }

  async dispose() {
    await Promise.all([super.dispose(), this.#texts?.dispose()]);
  }

  async embed(inputs, options) {
    const { prompt, ...others } = given(options);
    this.#expect(["embedding"], "embed", "an encoder of embeddings");
    return (await this.#run(this.#prompted(inputs, prompt), others)).map(([row]) => row);
  }

  async states(inputs, options) {
    this.#expect(["states"], "states", "an encoder without a head");
    return this.#run(inputs, options);
  }

  async logits(inputs, options) {
    this.#expect(["logits", "ctc"], "logits", "an encoder with a language model's head, or one of sounds with CTC");
    return this.#run(inputs, options);
  }

  async classify(inputs, options) {
    this.#expect(["labels", "tags", "scores"], "classify", "an encoder with labels");
    const { kind, labels: names } = this.manifest.output;
    const labels = distinct(names);
    return (await this.#run(inputs, options)).map(([row]) => classification(scoresOf(row, SCORES[kind]), labels, kind !== "scores"));
  }

  async classifyAs(inputs, labels, options) {
    const { multiLabel = false, template, ...others } = given(options);
    if (this.#texts) return this.#compared(inputs, labels, multiLabel, template, others);
    const { kind, labels: own = [] } = this.manifest.output;
    // the entailment label is found by its name
    const entailment = own.findIndex((label) => label.toLowerCase().startsWith("entail"));
    this.#expect(kind === "labels" && entailment >= 0 && own.length > 1 ? [kind] : [], "classifyAs", "a classifier with an entailment label, or encoders of images and of texts");
    const hypotheses = sentences(labels, template ?? TEMPLATE);
    const texts = asList(inputs);
    const other = texts.find((text) => typeof text !== "string");
    check(other === undefined, InputError, `Scoring your own labels needs texts, not ids or images (got ${shown(other)}).`);
    const rows = await this.#run(texts.flatMap((text) => hypotheses.map((hypothesis) => [text, hypothesis])), others);
    const isAlone = checkedFlag("multiLabel", multiLabel) || labels.length === 1;
    const against = entailment === 0 ? own.length - 1 : 0;
    return texts.map((_, index) => {
      const part = rows.slice(index * labels.length, (index + 1) * labels.length);
      const numbers = part.map(([row]) => row[entailment] - (isAlone ? row[against] : 0));
      return classification(scoresOf(numbers, isAlone ? "sigmoid" : "softmax"), labels);
    });
  }

  /** Compare images with the sentences of labels. */
  async #compared(inputs, labels, multiLabel, template = IMAGE_TEMPLATE, options) {
    const { scale, bias, scores } = this.manifest.texts;
    const isSum = checkedFlag("multiLabel", multiLabel) && scores === "softmax";
    check(!isSum, InputError, "multiLabel: this model only says which label fits an image best, so its scores always add up to 1. Leave it out.");
    const vectors = await this.#texts.embed(sentences(labels, template), options);
    const rows = await this.#run(inputs);
    return rows.map(([row]) => {
      const logits = vectors.map((vector) => vector.reduce((sum, value, index) => sum + value * row[index], 0) * scale + bias);
      const isCertain = scores === "softmax" && labels.length === 1;
      return classification(isCertain ? [1] : scoresOf(logits, scores), labels);
    });
  }

  async classifyTokens(inputs, options) {
    const { aggregation = "simple", ...others } = given(options);
    this.#expect(["token_labels"], "classifyTokens", "labels for each token");
    check(AGGREGATIONS.includes(aggregation), InputError, `aggregation must be one of ${AGGREGATIONS.join(", ")} (got ${shown(aggregation)}).`);
    const read = this.#read(inputs, (value) => this.#reader.readText(value, others));
    const rows = await this.#outputs(read);
    return read.map((one, index) =>
      entitiesOf(one, rows[index], this.manifest.output.labels, aggregation, (token) => this.text.continuesWord(one.text, token)),
    );
  }

  async answer(question, context, options) {
    const own = checkNames(options, ["maxAnswerTokens", "stride", "allowNone"]);
    this.#expect(["spans"], "answer", "a model for question answering");
    for (const [name, text] of Object.entries({ question, context })) {
      check(typeof text === "string" && text.trim(), InputError, `${name} must be a text that is not empty (got ${shown(text)}).`);
    }
    const maxTokens = Math.min(WINDOW, this.#reader.maxTokens);
    const { maxAnswerTokens = 15, stride = Math.min(maxTokens >> 1, STRIDE), allowNone = false } = own;
    checkedCount("maxAnswerTokens", maxAnswerTokens);
    checkedCount("stride", stride, 0);
    checkedFlag("allowNone", allowNone);
    const windows = this.#reader.windows(question, context, { maxTokens, stride });
    return bestAnswer(context, windows, await this.#outputs(windows), maxAnswerTokens, allowNone);
  }

  async fill(text, options) {
    const { top = 5 } = checkNames(options, ["top"]);
    this.#expect(["logits"], "fill", "an encoder with a language model's head");
    check(typeof text === "string", InputError, `fill needs a text with a blank (got ${shown(text)}).`);
    const tokenizer = tokenizerOf(this, "text");
    checkedCount("top", top);
    const blank = MASKS.find((mask) => tokenizer.addedToken(mask) !== undefined);
    check(blank, TokenizerError, `The tokenizer has no token for blanks, which is one of the tokens ${MASKS.join(", ")}. Use a model that was trained to fill blanks.`);
    const input = this.#reader.read(text);
    const ids = input.tokens.map(({ id }) => id);
    const places = ids.flatMap((id, place) => (id === tokenizer.addedToken(blank) ? [place] : []));
    check(places.length, InputError, `fill: the text has no blank. Write ${blank} where a word is missing.`);
    const [rows] = await this.#outputs([input]);
    const blanks = places.map((place) => {
      const scores = scoresOf(rows[place], "softmax").map((score, token) => ({ token, score }));
      const best = scores.sort((a, b) => b.score - a.score || a.token - b.token).slice(0, top);
      return best.map((one) => ({ text: tokenizer.decode([one.token], { special: true }).trim(), ...one }));
    });
    places.forEach((place, index) => (ids[place] = blanks[index][0].token));
    return { text: tokenizer.decode(ids), blanks };
  }

  async transcribe(sound, options) {
    this.#expect(["ctc"], "transcribe", "a bundle that turns sounds into text");
    const compute = async (values) => (await this.#outputs([{ values, length: 1 }]))[0];
    return forEachInput(sound, (one) => transcribeCtc(one, this.manifest, compute, options));
  }

  /** Refuse a call that this kind of output cannot serve. */
  #expect(kinds, what, expected) {
    const { kind } = this.manifest.output;
    const [summary, use] = OUTPUTS[kind] ?? [kind, "Python"];
    check(kinds.includes(kind), BundleKindError, `${what}: expected ${expected}, got an encoder that returns ${summary}. Use ${use}.`);
  }

  /** Put a prompt of the model before each text. */
  #prompted(inputs, name) {
    check(name === undefined || typeof name === "string", InputError, `prompt must be the name of a prompt (got ${shown(name)}).`);
    const { prompts = {}, default_prompt: usual } = this.manifest.source;
    const chosen = name ?? usual;
    if (!chosen) return inputs;
    const names = Object.keys(prompts).sort().join(", ") || "none";
    check(Object.hasOwn(prompts, chosen), InputError, `The model has no prompt ${shown(chosen)}. Its prompts: ${names}. Put any other text before the input yourself.`);
    const batch = asList(inputs);
    check(!name || batch.every((input) => typeof input === "string"), InputError, "prompt applies to text, not to token ids. Leave it out, or pass text.");
    return batch.map((input) => (typeof input === "string" ? prompts[chosen] + input : input));
  }

  /** Outputs of inputs, in their order: a list of rows for each. */
  #run(inputs, options) {
    return this.#outputs(this.#read(inputs, (value) => this.#reader.read(value, options)));
  }

  #read(inputs, read) {
    const batch = asList(inputs);
    return batch.map((input, index) => {
      try {
        return read(input);
      } catch (error) {
        if (batch.length > 1 && error instanceof InputError) error.message = `input ${index}: ${error.message}`;
        throw error;
      }
    });
  }

  async #outputs(inputs) {
    const results = [];
    for (const batch of batches(inputs.map(({ length }) => length), this.#reader.isAlone ? 1 : MOST_ROWS)) {
      const all = await this.#encoded(batch.map((index) => inputs[index]));
      for (const [at, index] of batch.entries()) {
        const isFinite = all[at].every((row) => row.every(Number.isFinite));
        check(isFinite, NumericError, `input ${index}: the output is not finite. Verify the bundle with Python.`);
        results[index] = all[at];
      }
    }
    return results;
  }

  /** Outputs of a batch by one call of the graph, without padding. */
  async #encoded(inputs) {
    const { output } = await this.engine.run("encoder", this.#reader.feeds(inputs, this.engine), { batch: inputs.length });
    const { size } = this.manifest.output;
    const { dims } = output;
    const values = await output.getData();
    output.dispose();
    const tokens = dims.length === 3 ? dims[1] : 1;
    return inputs.map((input, row) =>
      Array.from({ length: dims.length === 3 && input.tokens ? input.length : tokens }, (_, token) => {
        const start = (row * tokens + token) * size;
        return values.slice(start, start + size);
      }),
    );
  }
}

/** Group the indices of inputs into batches of similar length, since padding costs as much as text. */
function batches(lengths, most) {
  const order = [...lengths.keys()].sort((a, b) => lengths[b] - lengths[a]);
  const all = [];
  for (const index of order) {
    const batch = all.at(-1);
    const longest = lengths[batch?.[0]];
    const isFull = batch?.length === most || (batch?.length + 1) * longest > MOST_TOKENS || lengths[index] < LEAST_SHARE * longest;
    if (!batch || isFull) all.push([index]);
    else batch.push(index);
  }
  return all;
}
