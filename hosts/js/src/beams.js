/**
 * Beam search over rows of logits, as defined by Hugging Face's `generate` and computed as in Python:
 * see ortolan/runtime/generation/beam_search.py. Ties: the lower beam wins, then the lower id.
 */

import { checkedCount, checkedSignal, shown } from "./arguments.js";
import { check, InputError, NumericError } from "./errors.js";
import { readLimit } from "./generation.js";
import { highest } from "./sampling.js";

const f32 = Math.fround;

/** Score offset of finished extensions, so that they are continued only as a last resort. */
const ENDED = -1e9;

const MOST_BEAMS = 64;
const MOST_PENALTY = 10;

/** Split off and check the options of a beam search. Returns them, and the other options. */
export function readBeams({ beams = 1, nBest = 1, lengthPenalty: penalty = 1, earlyStopping = false, ...others }) {
  checkedCount("beams", beams, 1, MOST_BEAMS);
  check(Number.isFinite(penalty) && Math.abs(penalty) <= MOST_PENALTY, InputError, `lengthPenalty must be a number from -${MOST_PENALTY} to ${MOST_PENALTY} (got ${shown(penalty)}).`);
  check([true, false, "never"].includes(earlyStopping), InputError, `earlyStopping must be true, false or "never" (got ${shown(earlyStopping)}).`);
  const isSearch = beams > 1;
  const surplus = nBest !== 1 ? "nBest" : penalty !== 1 ? "lengthPenalty" : earlyStopping && "earlyStopping";
  check(isSearch || !surplus, InputError, `${surplus} needs a beam search. Set beams above 1, or leave it out.`);
  if (isSearch) checkedCount("nBest", nBest, 1, beams);
  const other = Object.keys(others).find((name) => !["maxNewTokens", "signal"].includes(name));
  check(!isSearch || !other, InputError, `${other} does not apply to a beam search, which finds the most probable sequence. Leave it out, or set beams to 1.`);
  return { own: { beams, nBest, lengthPenalty: penalty, earlyStopping }, others };
}

/** Search the best sequences after a start token; `start` makes the sequence with a row for each beam. */
export async function searched(model, options, settings, constraints, startToken, start) {
  const eos = new Set(model.manifest.tokens.eos);
  const limit = readLimit(model.manifest, 1, options.maxNewTokens);
  const search = new Search(settings, { limit, eos, constraints });
  const clock = performance.now();
  checkedSignal(options.signal)?.throwIfAborted();
  const sequence = await start(settings.beams);
  try {
    let next = Array(settings.beams).fill(startToken);
    while (!search.isSettled) {
      options.signal?.throwIfAborted();
      const rows = await sequence.step(next);
      const parents = search.advance(rows);
      if (search.isSettled) break;
      await sequence.reorder(parents);
      next = search.next;
    }
  } finally {
    sequence.end();
  }
  const text = (ids) => model.text?.decode(eos.has(ids.at(-1)) ? ids.slice(0, -1) : ids) ?? "";
  const [best, ...alternatives] = search.best(settings.nBest).map((one) => ({ text: text(one.tokens), ...one }));
  const finishReason = eos.has(search.hypotheses[0].tokens.at(-1)) ? "stop" : "length";
  return { ...best, alternatives, finishReason, prefillMs: 0, decodeMs: performance.now() - clock };
}

/** The beams of one source and its complete sequences, best first. */
class Search {
  #beams;
  #settings;
  #limit;
  #constraints;
  #length = 0;
  hypotheses = [];
  isSettled = false;

  constructor(settings, { limit, eos, constraints }) {
    [this.#settings, this.#limit, this.#constraints, this.eos] = [settings, limit, constraints, eos];
    // all beams are equal at first: only beam 0 counts
    this.#beams = Array.from({ length: settings.beams }, (_, beam) => ({ tokens: [], score: beam ? ENDED : 0 }));
  }

  /** The last token of each beam. */
  get next() {
    return this.#beams.map(({ tokens }) => tokens.at(-1));
  }

  /** Extend the beams by a token; returns the beam that each of them continues. */
  advance(rows) {
    const forced = this.#constraints.forced(this.#length, this.#limit);
    const all = this.#beams.map(({ score }, beam) => ({ score, beam, token: forced }));
    const candidates = forced === null ? this.#candidates(rows) : all.sort((a, b) => b.score - a.score);
    return this.#continue(candidates);
  }

  /** The best sequences: complete ones, then beams of an unfinished search. */
  best(count) {
    const divisor = this.#divisor(Math.max(this.#length, 1));
    const unfinished = this.isSettled ? [] : this.#beams.map(({ tokens, score }) => ({ tokens, score: f32(score / divisor) }));
    return [...this.hypotheses, ...unfinished].slice(0, count);
  }

  /** The best extensions of all beams, best first. */
  #candidates(rows) {
    const excluded = this.#constraints.excluded(this.#length);
    const scored = rows.map((row, beam) => logProbabilities(row, this.#beams[beam].score, excluded, this.#length));
    const count = Math.max(2, 1 + this.eos.size) * this.#settings.beams;
    const tops = scored.map(highest);
    const candidates = [];
    while (candidates.length < Math.min(count, rows.length * rows[0].length)) {
      const scores = tops.map((token, beam) => scored[beam][token]);
      const beam = highest(scores);
      const token = tops[beam];
      candidates.push({ score: scores[beam], beam, token });
      scored[beam][token] = -Infinity;
      tops[beam] = highest(scored[beam]);
    }
    return candidates;
  }

  #continue(candidates) {
    const { beams } = this.#settings;
    this.#length++;
    const isLast = this.#length >= this.#limit;
    const extended = candidates.map(({ score, beam, token }) => {
      return { score, beam, tokens: [...this.#beams[beam].tokens, token], isEnd: isLast || this.eos.has(token) };
    });
    for (const one of extended.slice(0, beams)) if (one.isEnd) this.#keep(one);
    const isAnyEnd = extended.some(({ isEnd }) => isEnd);
    const ranked = isAnyEnd ? extended.map((one) => (one.isEnd ? { ...one, score: f32(one.score + ENDED) } : one)) : extended;
    const chosen = (isAnyEnd ? ranked.sort((a, b) => b.score - a.score) : ranked).slice(0, beams);
    this.#beams = chosen.map(({ tokens, score }) => ({ tokens, score }));
    this.isSettled = extended.every(({ isEnd }) => isEnd) || this.#cannotImprove();
    return chosen.map(({ beam }) => beam);
  }

  #keep({ score, tokens }) {
    this.hypotheses.push({ tokens, score: f32(score / this.#divisor(this.#length)) });
    this.hypotheses.sort((a, b) => b.score - a.score); // stable: earlier ones win ties
    this.hypotheses.length = Math.min(this.hypotheses.length, this.#settings.beams);
  }

  /** Whether there are enough complete sequences and no beam can improve on them. */
  #cannotImprove() {
    const { beams, earlyStopping, lengthPenalty } = this.#settings;
    if (this.hypotheses.length < beams) return false;
    if (earlyStopping === true) return true;
    // log-probabilities are negative: above a penalty of 0, a score rises with the length
    const length = earlyStopping === "never" && lengthPenalty > 0 ? this.#limit : this.#length;
    return f32(this.#beams[0].score / this.#divisor(length)) <= this.hypotheses.at(-1).score;
  }

  #divisor(length) {
    return f32(length ** this.#settings.lengthPenalty);
  }
}

/** Log-probabilities and the score so far, float32 as in transformers. */
function logProbabilities(row, score, excluded, length) {
  const most = row[highest(row)];
  check(Number.isFinite(most), NumericError, `The logits of step ${length + 1} are not finite: the model overflows. Verify the bundle on this device.`);
  const shifted = row.map((value) => value - most);
  const sum = f32(Math.log(f32(shifted.reduce((total, value) => total + f32(Math.exp(value)), 0))));
  const scores = shifted.map((value) => f32(value - sum) + score);
  for (const id of excluded) scores[id] = -Infinity;
  return scores;
}
