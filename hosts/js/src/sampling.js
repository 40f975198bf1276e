/**
 * The choice of the next token from one row of logits, in the order of Hugging Face's `generate`:
 * logit_bias, repetition penalty, presence and frequency penalty, temperature, top-k, top-p, min-p,
 * softmax and one draw. Temperature 0 takes the highest logit, the lowest id on ties.
 */

import { NumericError, SamplingError } from "./errors.js";
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

  /**
   * @param {object} options of sampling
   * @param {number} vocabSize
   * @param {Iterable<number>} prompt ids before the first new one
   */
  constructor(options, vocabSize, prompt) {
    for (const [name, [value, allowed, isAllowed]] of Object.entries(RANGES)) {
      const got = options[name] ?? value;
      if (typeof got !== "number" || !Number.isFinite(got) || !isAllowed(got)) {
        throw new SamplingError(`${name} must be ${allowed} (got ${got}).`);
      }
      this.#options[name] = got;
    }
    this.#bias = Object.entries(options.logitBias ?? {}).map(([id, value]) => [Number(id), value]);
    for (const [id, value] of this.#bias) {
      if (!Number.isInteger(id) || id < 0 || id >= vocabSize || !Number.isFinite(value)) {
        throw new SamplingError(
          `logitBias needs ids below ${vocabSize} and finite numbers (got ${id}: ${value}).`,
        );
      }
    }
    const seed = options.seed ?? crypto.getRandomValues(new BigUint64Array(1))[0];
    if (!(typeof seed === "bigint" || Number.isSafeInteger(seed)) || seed < 0) {
      throw new SamplingError(`seed must be a whole number of at least 0 (got ${seed}).`);
    }
    this.#random = () => {
      const generator = new PCG64(seed);
      this.#random = () => generator.uniform();
      return this.#random();
    };
    this.#seen = new Set(this.#options.repetitionPenalty === 1 ? [] : prompt);
  }

  /**
   * Choose the next token, and count it.
   *
   * @param {Float32Array} logits not modified
   * @returns {number} its id
   */
  next(logits) {
    const scores = this.#adjusted(logits);
    const top = highest(scores);
    if (!Number.isFinite(scores[top])) {
      throw new NumericError(
        `The logit of id ${top} is ${scores[top]}. Verify the bundle on this device.`,
      );
    }
    const token = this.#options.temperature === 0 ? top : this.#draw(scores, scores[top]);
    this.record(token);
    return token;
  }

  /** Count a token that was not chosen by `next`. */
  record(token) {
    if (this.#options.repetitionPenalty !== 1) this.#seen.add(token);
    this.#generated.set(token, (this.#generated.get(token) ?? 0) + 1);
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
    let weights = Float64Array.from(ids, (id) => Math.exp((scores[id] - top) / temperature));
    const keep = (indices) => {
      ids = indices.map((index) => ids[index]);
      weights = Float64Array.from(indices, (index) => weights[index]);
    };
    if (topP < 1) keep(mostProbable(weights, topP));
    if (minP > 0) {
      const least = minP * weights.reduce((a, b) => Math.max(a, b), 0);
      keep([...weights.keys()].filter((index) => weights[index] >= least));
    }
    let total = 0;
    const sums = weights.map((weight) => (total += weight));
    const point = this.#random() * total;
    return ids[sums.findIndex((sum) => sum > point)];
  }
}

/** Index of the highest number, or of a NaN if there is one. */
export function highest(values) {
  let best = 0;
  for (let index = 0; index < values.length; index++) {
    if (Number.isNaN(values[index])) return index;
    if (values[index] > values[best]) best = index;
  }
  return best;
}

/** Indices, ascending, of the fewest weights whose sum reaches a share; the first ones win ties. */
function mostProbable(weights, share) {
  const total = weights.reduce((a, b) => a + b, 0);
  // weights up to (1 - share) / N of the total are never kept; half of that leaves room for rounding
  const floor = (((1 - share) / 2) * total) / weights.length;
  const order = [];
  weights.forEach((weight, index) => weight > floor && order.push(index));
  order.sort((a, b) => weights[b] - weights[a] || a - b);
  let sum = 0;
  let count = 0;
  while (count < order.length) {
    sum += weights[order[count++]];
    if (sum >= share * total) break;
  }
  return order.slice(0, count).sort((a, b) => a - b);
}
