/**
 * Transcribes sounds of any length, window by window: see ortolan/runtime/transcription/transcriber.py.
 * Each window gives segments, and the next one begins at the end of the last whole segment.
 */

import { checkedFlag, checkedFunction, checkNames, shown } from "./arguments.js";
import { check, BundleKindError, InputError } from "./errors.js";
import { Constraints, completed, generated, readRequest } from "./generation.js";
import { Spectrograms, WaveParts } from "./recording.js";
import { logSumExp, SAMPLING_OPTIONS } from "./sampling.js";
import { checkedRate, readSamples, Resampler } from "./sounds.js";

const OPTIONS = ["language", "translate", "timestamps", "tokensPerSecond", "rate", "signal", "onSegment", ...SAMPLING_OPTIONS];

/** Default of the most tokens for a second of a wave, as recommended for Moonshine, and their bound. */
const [PACE, MOST_PACE] = [6.5, 1000];

/** A transcript of segments. */
export const transcript = (segments, seconds, language = null) => ({
  ...{ segments, seconds, language },
  text: segments.map(({ text }) => text).filter((text) => text).join(" "),
});

/** Transcribes with an encoder-decoder, whose sequences `start` makes from sources. */
export class Transcriber {
  #model;
  #options;
  #start;
  #opening;
  #times;
  language = null; // that was named or recognized

  constructor(model, start, options) {
    const { source, speech, tokens } = model.manifest;
    check(["audio", "wave"].includes(source.kind), BundleKindError, `transcribe: expected a bundle that reads sounds, got one that reads ${source.kind}s. Use generate.`);
    const own = checkNames(options, OPTIONS);
    checkedFunction("onSegment", own.onSegment);
    [this.#model, this.#options, this.#start] = [model, own, start];
    this.#times = checkedFlag("timestamps", own.timestamps ?? true) ? speech : undefined;
    this.#opening = openingOf(speech, tokens.opening ?? [], own);
    this.pace = paceOf(source, own);
  }

  /** The transcript of a whole sound. */
  async whole(sound) {
    const { source, speech } = this.#model.manifest;
    const samples = readSamples(sound, source, this.#options.rate);
    const seconds = samples.length / source.rate;
    const most = (source.frames * source.hop) / source.rate;
    check(!speech || this.#times || seconds <= most, InputError, `timestamps: false is for sounds of at most ${most} seconds (got ${seconds.toFixed(1)}). Leave it out, or split the sound.`);
    const segments = [];
    for (const windows = this.#windows(samples); !windows.isDone; ) {
      const more = await this.#listen(windows);
      segments.push(...more);
      more.forEach((segment) => this.#options.onSegment?.(segment));
    }
    return transcript(segments, seconds, this.language);
  }

  /** Yields the segments of a sound that comes in blocks. */
  async *live(blocks) {
    const { source } = this.#model.manifest;
    const { rate } = this.#options;
    const windows = this.#windows();
    const resampler = rate !== undefined && checkedRate(rate) !== source.rate ? new Resampler(rate, source.rate) : null;
    for await (const block of blocks) {
      const samples = readSamples(block, source);
      windows.extend(resampler ? resampler.next(samples) : samples);
      while (windows.isFull) yield* await this.#listen(windows);
    }
    if (resampler) windows.extend(resampler.next(new Float32Array(0), true));
    while (!windows.isDone) yield* await this.#listen(windows);
  }

  #windows(samples) {
    const { source, context_length: contextLength } = this.#model.manifest;
    return source.kind === "wave" ? new WaveParts(source, samples, { contextLength, pace: this.pace }) : new Spectrograms(source, samples);
  }

  /** The segments of a window. Moves to the next one. */
  async #listen(windows) {
    const { tokens: own, speech } = this.#model.manifest;
    const window = windows.window();
    const sampling = Object.fromEntries(SAMPLING_OPTIONS.map((name) => [name, this.#options[name]]));
    const rule = this.#times && ((logits, tokens) => ruleOut(logits, tokens, this.#times, own.eos[0]));
    const constraints = new Constraints(own, { opening: this.#opening, rule });
    const request = readRequest(this.#model, [own.start], { ...sampling, signal: this.#options.signal, maxNewTokens: window.mostTokens }, { constraints });
    const done = await completed(generated({ ...request, text: null, isScored: true }, () => this.#start(window)));
    const skip = this.#opening.length;
    this.#opening = done.tokens.slice(0, skip).map((token) => [token]);
    this.language = Object.entries(speech?.languages ?? {}).find(([, token]) => token === done.tokens[0] && skip)?.[0] ?? null;
    const end = own.eos.includes(done.tokens.at(-1)) ? -1 : undefined;
    const tokens = done.tokens.slice(skip, end);
    const length = window.vectors;
    const [found, moved] = this.#times ? spansOf(tokens, this.#times.first_timestamp, length) : [[{ start: 0, end: length, part: [0, tokens.length] }], length];
    const [begin, second] = [windows.start, this.#second];
    windows.move(moved >= length ? undefined : moved);
    const place = (vectors) => begin + Math.min(vectors * second, window.seconds);
    return found
      .map(({ start, end, part }) => ({ start: place(start), end: place(end), ...this.#said(tokens.slice(...part), done.logprobs.slice(skip).slice(...part)) }))
      .filter((segment) => segment.tokens.length);
  }

  /** Seconds from one vector to the next. */
  get #second() {
    const { kind, hop, rate, frames, vectors } = this.#model.manifest.source;
    return kind === "wave" ? hop / rate : (frames * hop) / rate / vectors;
  }

  #said(tokens, logprobs) {
    const first = this.#model.manifest.speech?.first_timestamp ?? Infinity;
    const text = this.#model.text?.decode(tokens.filter((token) => token < first)).trim() ?? "";
    return { text, tokens, words: [], logprob: logprobs.reduce((sum, one) => sum + one, 0) / Math.max(1, logprobs.length) };
  }
}

/** Most tokens per second. */
function paceOf({ kind }, { tokensPerSecond: pace = PACE, ...options }) {
  check(kind === "wave" || pace === PACE, InputError, "tokensPerSecond is for models that read waves, such as Moonshine. Leave it out.");
  check(Number.isFinite(pace) && pace > 0 && pace <= MOST_PACE, InputError, `tokensPerSecond must be above 0 and at most ${MOST_PACE} (got ${shown(pace)}).`);
  return pace;
}

/** The tokens to choose from at each place before the text: the usual ones where no language or task is named. */
function openingOf(speech, usual, { language, translate = false, timestamps = true }) {
  const { languages = {}, tasks = {} } = speech ?? {};
  const names = Object.keys(languages).sort();
  const allowed = names.length ? `one of ${names.join(", ")}` : "left out, since the model knows only one";
  check(language === undefined || Object.hasOwn(languages, language), InputError, `language must be ${allowed} (got ${shown(language)}).`);
  const task = checkedFlag("translate", translate) ? "translate" : "transcribe";
  check(!translate || tasks.translate !== undefined, InputError, "translate: this model was not trained to translate. Leave it out.");
  const known = language === undefined ? Object.values(languages) : [languages[language]];
  const isUsual = usual.length && language === undefined && !translate;
  const parts = isUsual ? usual.map((token) => (token === null ? known : [token])) : [known, task in tasks ? [tasks[task]] : []];
  return [...parts, speech && !timestamps ? [speech.no_timestamps] : []].filter((part) => part.length);
}

/** Rule out tokens that break the order of times, in place; `end` is EOS, and ids below it are text. */
function ruleOut(logits, tokens, { first_timestamp: first, no_timestamps: none, latest_start: latest }, end) {
  logits[none] = -Infinity;
  if (!tokens.length) {
    logits.fill(-Infinity, 0, first);
    if (latest != null) logits.fill(-Infinity, first + latest + 1);
    return;
  }
  const isTime = (token) => token >= first;
  const afterTime = isTime(tokens.at(-1));
  // a time at the very begin counts as the second one of a pair
  const afterPair = afterTime && (tokens.length < 2 || isTime(tokens.at(-2)));
  if (afterPair) logits.fill(-Infinity, first);
  else if (afterTime) logits.fill(-Infinity, 0, end);
  const last = tokens.findLast(isTime);
  // times never go back; a segment may begin when another ends
  if (last !== undefined) logits.fill(-Infinity, first, afterTime && !afterPair ? last : last + 1);
  const highest = logits.subarray(0, first).reduce((most, value) => Math.max(most, value), -Infinity);
  if (logSumExp(logits.subarray(first)) > highest) logits.fill(-Infinity, 0, first);
}

/** Split the text of a window at its pairs of times: the segments, and where the next window begins, in vectors. */
function spansOf(tokens, first, length) {
  const isTime = tokens.map((token) => token >= first);
  const ends = [...tokens.keys()].filter((index) => index && isTime[index - 1] && isTime[index]);
  if (!ends.length) {
    const times = tokens.filter((token) => token >= first).map((token) => token - first);
    const span = { start: isTime[0] ? times[0] : 0, end: times.length > 1 ? times.at(-1) : length, part: [0, tokens.length] };
    return [tokens.length ? [span] : [], length];
  }
  // a time without a partner ends the speech, and what follows is silence
  const isWhole = isTime.at(-1) && !isTime.at(-2);
  if (isWhole) ends.push(tokens.length);
  const found = ends.map((end, index) => {
    const start = index ? ends[index - 1] : 0;
    return { start: tokens[start] - first, end: tokens[end - 1] - first, part: [start, end] };
  });
  return [found, isWhole ? length : found.at(-1).end];
}
