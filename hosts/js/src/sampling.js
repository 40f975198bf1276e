/**
 * The choice of the next token from one row of logits, in the order of Hugging Face's `generate`:
 * logit_bias, repetition penalty, presence and frequency penalty, temperature, top-k, top-p, min-p,
 * softmax and one draw. Temperature 0 takes the highest logit, the lowest id on ties.
 */

import { shown } from "./arguments.js";
import { check, NumericError, SamplingError } from "./errors.js";
import { PCG64 } from "./pcg64.js";

const f32 = Math.fround;

/** Options with their defaults and ranges. */
const RANGES = {
  temperature: [0, "at least 0", (v) => v >= 0],
  topK: [0, "a whole number of at least 0", (v) => Number.isInteger(v) && v >= 0],
  topP: [1, "above 0 and at most 1", (v) => v > 0 && v <= 1],
  minP: [0, "from 0 to 1", (v) => v >= 0 && v <= 1],
  repetitionPenalty: [1, "above 0", (v) => v > 0],
  presencePenalty: [0, "from -2 to 2", (v) => v >= -2 && v <= 2],
  frequencyPenalty: [0, "from -2 to 2", (v) => v >= -2 && v <= 2],
};

/** Names of the options of sampling. */
export const SAMPLING_OPTIONS = [...Object.keys(RANGES), "logitBias", "seed"];

/** Chooses the tokens of one sequence, and keeps its penalties and its random numbers. */
export class Sampler {
  #options = {};
  #bias;
  #random;
  #seen;
  #generated = new Map();

  /** `prompt` has the ids before the first new one. */
  constructor(options, vocabSize, prompt) {
    for (const [name, [value, allowed, isAllowed]] of Object.entries(RANGES)) {
      const got = options[name] ?? value;
      check(Number.isFinite(got) && isAllowed(got), SamplingError, `${name} must be ${allowed} (got ${shown(got)}).`);
      this.#options[name] = got;
    }
    this.#bias = Object.entries(options.logitBias ?? {}).map(([id, value]) => [Number(id), value]);
    for (const [id, value] of this.#bias) {
      const isRight = Number.isInteger(id) && id >= 0 && id < vocabSize && Number.isFinite(value);
      check(isRight, SamplingError, `logitBias needs ids below ${vocabSize} and finite numbers (got ${id}: ${shown(value)}).`);
    }
    const seed = options.seed ?? crypto.getRandomValues(new BigUint64Array(1))[0];
    check((typeof seed === "bigint" || Number.isSafeInteger(seed)) && seed >= 0, SamplingError, `seed must be a whole number of at least 0 (got ${shown(seed)}).`);
    this.#random = new PCG64(seed);
    this.#seen = new Set(this.#options.repetitionPenalty === 1 ? [] : prompt);
  }

  /** Choose the id of the next token from its logits, which are not modified, and count it. */
  next(logits) {
    const scores = this.#adjusted(logits);
    const top = highest(scores);
    check(Number.isFinite(scores[top]), NumericError, `The logit of id ${top} is ${scores[top]}. Verify the bundle on this device.`);
    return this.record(this.#options.temperature === 0 ? top : this.#draw(scores, scores[top]));
  }

  /** Count a token that was not chosen here. */
  record(token) {
    if (this.#options.repetitionPenalty !== 1) this.#seen.add(token);
    this.#generated.set(token, (this.#generated.get(token) ?? 0) + 1);
    return token;
  }

  /** A copy of the logits with bias and penalties; the logits themselves without any. */
  #adjusted(logits) {
    const { repetitionPenalty, presencePenalty, frequencyPenalty } = this.#options;
    const counts = presencePenalty !== 0 || frequencyPenalty !== 0 ? this.#generated : new Map();
    if (!this.#bias.length && !this.#seen.size && !counts.size) return logits;
    const scores = logits.slice();
    for (const [id, value] of this.#bias) scores[id] += f32(value);
    const penalty = f32(repetitionPenalty);
    for (const id of this.#seen) scores[id] = scores[id] < 0 ? scores[id] * penalty : scores[id] / penalty;
    for (const [id, count] of counts) {
      const lowered = f32(scores[id] - f32(f32(frequencyPenalty) * count));
      scores[id] = lowered - presencePenalty; // NumPy subtracts in float64 here
    }
    return scores;
  }

  #draw(scores, top) {
    const { temperature, topK, topP, minP } = this.#options;
    let ids = Array.from(scores.keys());
    if (topK > 0 && topK < scores.length) {
      const least = scores.slice().sort()[scores.length - topK];
      ids = ids.filter((id) => scores[id] >= least);
    }
    const weights = new Float64Array(scores.length); // the largest is 1
    for (const id of ids) weights[id] = Math.exp((scores[id] - top) / temperature);
    if (topP < 1) ids = mostProbable(ids, weights, topP);
    if (minP > 0) ids = ids.filter((id) => weights[id] >= minP);
    let total = 0;
    const sums = ids.map((id) => (total += weights[id]));
    const point = this.#random.uniform() * total;
    return ids[sums.findIndex((sum) => sum > point)];
  }
}

/** Index of the highest number, or of a NaN if there is one. */
export function highest(values) {
  let best = 0;
  for (let index = 0; index < values.length; index++) {
    if (values[index] > values[best] || Number.isNaN(values[index])) best = index;
  }
  return best;
}

export function logSumExp(values) {
  const top = values[highest(values)];
  return top + Math.log(values.reduce((sum, value) => sum + Math.exp(value - top), 0));
}

/** The fewest ids, ascending, whose weights reach a share of the sum; the first ones win ties. */
function mostProbable(ids, weights, share) {
  const total = ids.reduce((sum, id) => sum + weights[id], 0);
  // weights up to (1 - share) / N of the total are never kept; half of that leaves room for rounding
  const floor = (((1 - share) / 2) * total) / ids.length;
  const order = ids.filter((id) => weights[id] > floor).sort((a, b) => weights[b] - weights[a] || a - b);
  let sum = 0;
  const last = order.findIndex((id) => (sum += weights[id]) >= share * total);
  return (last < 0 ? order : order.slice(0, last + 1)).sort((a, b) => a - b);
}
