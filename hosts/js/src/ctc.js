/**
 * Transcribes with an encoder and CTC: the most probable symbol of every vector, read as words. See
 * ortolan/runtime/transcription/ctc.py.
 */

import { checkedSignal, checkNames } from "./arguments.js";
import { check, ContextLengthError, TokenizerError } from "./errors.js";
import { highest, logSumExp } from "./sampling.js";
import { readSamples, waveOf } from "./sounds.js";
import { transcript } from "./transcription.js";

/** Parts of a window, of which neighbours decide the first and the last. */
const SIDES = 6;

/** Seconds without a symbol between two words that end a segment. */
const PAUSE = 0.5;

/** Transcribe a whole sound; `compute` returns the logits of a wave. */
export async function transcribeCtc(sound, { source, output, tokens }, compute, options) {
  const { rate, signal } = checkNames(options, ["rate", "signal"]);
  const { labels: texts = [] } = output;
  check(texts.length && tokens.pad != null, TokenizerError, "The checkpoint of this bundle had no vocab.json, so the symbols of its logits are not known. Call logits, or export it again with the file.");
  const samples = readSamples(sound, source, rate);
  const vectors = [];
  checkedSignal(signal);
  for (const { read, counts } of windows(samples.length, source)) {
    signal?.throwIfAborted();
    const rows = await compute(waveOf(samples.subarray(...read), source));
    vectors.push(...rows.slice(...counts).map((row) => ({ symbol: highest(row), logprob: row[highest(row)] - logSumExp(row) })));
  }
  const step = source.hop / source.rate;
  const segments = [];
  for (const word of words(vectors, texts, tokens.pad)) {
    const last = segments.at(-1)?.at(-1);
    if (!last || word.start - last.end >= PAUSE / step) segments.push([]);
    segments.at(-1).push(word);
  }
  return transcript(segments.map((all) => segmentOf(all, vectors, step)), samples.length / source.rate);
}

/** Runs of equal symbols without blanks, split at spaces. */
function words(vectors, texts, blank) {
  const all = [];
  let isNew = true;
  vectors.forEach(({ symbol }, place) => {
    const isRun = symbol === vectors[place - 1]?.symbol;
    if (symbol === blank) return;
    if (texts[symbol] === " ") isNew = true;
    else if (isNew) {
      all.push({ start: place, end: place + 1, symbols: [symbol] });
      isNew = false;
    } else {
      if (!isRun) all.at(-1).symbols.push(symbol);
      all.at(-1).end = place + 1;
    }
  });
  return all.map((word) => ({ ...word, text: word.symbols.map((symbol) => texts[symbol]).join("") }));
}

function segmentOf(all, vectors, step) {
  const [first, last] = [all[0].start, all.at(-1).end];
  const spoken = all.map(({ start, end, text }) => ({ start: start * step, end: end * step, text }));
  return {
    ...{ start: first * step, end: last * step, words: spoken },
    text: spoken.map(({ text }) => text).join(" "),
    tokens: all.flatMap(({ symbols }) => symbols),
    logprob: vectors.slice(first, last).reduce((sum, { logprob }) => sum + logprob, 0) / (last - first),
  };
}

/** Cut a sound into windows that overlap: samples to read, and those of their vectors that count. */
function* windows(samples, { vectors: longest, hop, window, rate }) {
  const [most, side] = [longest * hop, Math.floor(longest / SIDES)];
  if (samples <= most) return void (yield { read: [0, samples], counts: [0] });
  // the last vectors of a window would read beyond it
  const beyond = longest - Math.max(0, Math.floor((most - window) / hop) + 1);
  const short = `The encoder reads sounds of at most ${most / rate} seconds (got ${(samples / rate).toFixed(2)}), too short to cut longer ones into windows. Export it with a larger --max-context, or split the sound.`;
  check(side > beyond, ContextLengthError, short);
  for (let start = 0, isLast = false; !isLast; start += longest - 2 * side) {
    const first = start * hop;
    isLast = first + most >= samples;
    yield { read: [first, Math.min(first + most, samples)], counts: [start ? side : 0, isLast ? undefined : longest - side] };
  }
}
