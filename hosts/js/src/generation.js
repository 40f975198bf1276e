/** What to generate: checked options, the tokens that a checkpoint forces, and the loop over steps. */

import { asList, checkedCount, checkedFlag, checkedIds, checkedSignal, checkNames, isBatch, shown, tokenizerOf } from "./arguments.js";
import { check, ContextLengthError, InputError } from "./errors.js";
import { logSumExp, Sampler, SAMPLING_OPTIONS } from "./sampling.js";
import { TextStream } from "./text.js";

const OPTIONS = ["maxNewTokens", "minNewTokens", "stop", "stopTokens", "ignoreEos", "signal", ...SAMPLING_OPTIONS];

/** Tokens that a checkpoint forces or rules out, whatever the logits. */
export class Constraints {
  #tokens;
  #opening;
  #rule;

  /**
   * From the tokens of a manifest. `opening` has the tokens to choose from at each of the first places,
   * and `rule(logits, tokens)` rules out more of them after those, in place.
   */
  constructor(tokens, { opening = tokens.forced_first == null ? [] : [[tokens.forced_first]], rule } = {}) {
    [this.#tokens, this.#opening, this.#rule] = [tokens, opening, rule];
  }

  /** The token at an index of at most `limit` new ones, if it is forced. */
  forced(index, limit) {
    const { forced_last: last } = this.#tokens;
    const choice = this.#opening[index];
    return last != null && index === limit - 1 ? last : choice?.length === 1 ? choice[0] : null;
  }

  /** Tokens that may not be chosen at an index after the opening. */
  excluded(index) {
    const { suppressed, suppressed_first: early } = this.#tokens;
    return index === this.#opening.length ? [...suppressed, ...early] : suppressed;
  }

  /** Set the logits of tokens that may not follow `tokens` to -Infinity. */
  suppress(logits, tokens) {
    const choice = this.#opening[tokens.length];
    if (choice) {
      const kept = choice.map((id) => logits[id]);
      logits.fill(-Infinity);
      choice.forEach((id, index) => (logits[id] = kept[index]));
      return;
    }
    for (const id of this.excluded(tokens.length)) logits[id] = -Infinity;
    this.#rule?.(logits, tokens.slice(this.#opening.length));
  }
}

/** Check the options of a request, whose prompt has these ids. `ends` are more tokens that end the text. */
export function readRequest(model, prompt, given, { constraints, ends = [], index = 0 } = {}) {
  const options = checkNames(given, OPTIONS);
  const { manifest, text } = model;
  const { maxNewTokens, minNewTokens = 0, stop = [], stopTokens = [], ignoreEos = false, signal } = options;
  const stops = [stop].flat();
  check(stops.every((one) => typeof one === "string" && one !== ""), InputError, "stop must be a text or a list of texts, none of them empty.");
  if (stops.length) tokenizerOf(model, "stop");
  const limit = readLimit(manifest, prompt.length, maxNewTokens);
  checkedCount("minNewTokens", minNewTokens, 0, limit);
  const eos = checkedFlag("ignoreEos", ignoreEos) ? [] : [...manifest.tokens.eos, ...ends];
  const seed = options.seed !== undefined && index > 0 ? { seed: BigInt(options.seed) + BigInt(index) } : {};
  return {
    ...{ prompt, limit, stops, text, signal: checkedSignal(signal), minNewTokens },
    eos: new Set([...eos, ...checkedIds(stopTokens, manifest.vocab_size, "stopTokens")]),
    sampler: new Sampler({ ...options, ...seed }, manifest.vocab_size, prompt),
    constraints: constraints ?? new Constraints(manifest.tokens),
  };
}

/** The most new tokens after a prompt. */
export function readLimit({ context_length: most }, length, maxNewTokens) {
  if (maxNewTokens !== undefined) checkedCount("maxNewTokens", maxNewTokens);
  const room = most - length;
  const long = `A prompt of ${length} and ${maxNewTokens ?? 1} new tokens exceed the context of ${most}`;
  const advice = `Shorten the prompt${room > 0 ? `, or lower maxNewTokens to ${room}` : ""}.`;
  check((maxNewTokens ?? 1) <= room, ContextLengthError, `${long} tokens. ${advice}`);
  return maxNewTokens ?? room;
}

/**
 * Yield the pieces of the text of a request; returns its completion, with log-probabilities if it
 * `isScored`. `start` makes the sequence.
 */
export async function* generated(request, start) {
  const { prompt, limit, eos, stops, text, sampler, constraints, signal, minNewTokens, isScored } = request;
  const pieces = text && new TextStream(text, stops);
  const result = { text: "", tokens: [], finishReason: "length", prefillMs: 0, decodeMs: 0, ...(isScored && { logprobs: [] }) };
  let clock = performance.now();
  signal?.throwIfAborted();
  const sequence = await start();
  try {
    let logits = await sequence.append(prompt, { signal });
    result.prefillMs = performance.now() - clock;
    clock = performance.now();
    for (let isLast = false; !isLast; ) {
      signal?.throwIfAborted();
      const index = result.tokens.length;
      const forced = constraints.forced(index, limit);
      const raw = isScored && logits.slice();
      if (forced === null) {
        constraints.suppress(logits, result.tokens);
        if (index < minNewTokens) for (const id of eos) logits[id] = -Infinity;
      }
      const token = forced === null ? sampler.next(logits) : sampler.record(forced);
      result.tokens.push(token);
      if (isScored) result.logprobs.push(raw[token] - logSumExp(raw));
      const isEnd = eos.has(token);
      isLast = isEnd || result.tokens.length === limit;
      const added = pieces?.add(isEnd ? [] : [token], { isLast }) ?? { piece: "", isStopped: false };
      result.text += added.piece;
      if (added.piece) yield added.piece;
      if (isEnd || added.isStopped) result.finishReason = "stop";
      isLast ||= added.isStopped;
      if (!isLast) logits = await sequence.append([token]);
    }
    return result;
  } finally {
    result.decodeMs = performance.now() - clock;
    sequence.end();
  }
}

/** The completion of a stream. */
export async function completed(pieces) {
  for (;;) {
    const { done, value } = await pieces.next();
    if (done) return value;
  }
}

/** What a function returns for one input or for each of a list, one after another. */
export async function forEachInput(inputs, work) {
  const results = [];
  for (const [index, input] of asList(inputs).entries()) results.push(await work(input, index));
  return isBatch(inputs) ? results : results[0];
}
