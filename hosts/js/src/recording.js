/** Sounds that are read window by window, whole or while they are recorded: see ortolan/runtime/transcription/recording.py. */

import { check, ContextLengthError } from "./errors.js";
import { concatenated, framesOf, logMel, waveOf } from "./sounds.js";

/** The quietest place is looked for in the last eighth of a part, in frames of 10 ms. */
const [SEARCHED, FRAMES_PER_SECOND] = [8, 100];

/** A sound from its current window on; `samples` are those of a whole one. */
class Windows {
  at = 0; // samples before it

  constructor(source, samples) {
    [this.source, this.samples] = [source, samples ?? new Float32Array(0)];
  }

  /** Seconds from the start of the sound to the window. */
  get start() {
    return this.at / this.source.rate;
  }

  get isDone() {
    return this.size === 0;
  }

  extend(samples) {
    this.samples = concatenated([this.samples, samples]);
  }

  /** Start the next window this number of vectors later; at the end of this one if there is none. */
  move(vectors) {
    const count = vectors === undefined ? this.size : vectors * this.step;
    this.at += count;
    this.samples = this.samples.subarray(count);
  }
}

/** Spectrograms. The loudest part of a whole sound sets the scale of all; of one that grows, each has its own. */
export class Spectrograms extends Windows {
  #whole;

  constructor(source, samples) {
    const { frames, vectors, hop } = source;
    super(source, samples && concatenated([samples, new Float32Array(Math.max(0, hop - samples.length))]));
    this.step = Math.floor(frames / vectors) * hop;
    this.most = frames * hop;
    this.#whole = samples && logMel(samples, source, this.most);
  }

  /** Whether what follows can no longer change the window. */
  get isFull() {
    return this.size === this.most;
  }

  /** Samples of the window. */
  get size() {
    const { hop } = this.source;
    return Math.min(Math.floor(this.samples.length / hop) * hop, this.most);
  }

  window() {
    const { source, most, step } = this;
    const { frames, hop, rate } = source;
    const spectrogram = this.#whole ?? logMel(this.samples.subarray(0, most), source, most);
    const vectors = Math.max(1, Math.floor(this.size / step));
    const values = framesOf(spectrogram, this.#whole ? this.at / hop : 0, frames);
    return { values, vectors, seconds: (vectors * (most / rate)) / source.vectors };
  }
}

/** Parts of a wave that end where it is quietest. */
export class WaveParts extends Windows {
  #pace;
  #longest;

  constructor(source, samples, { contextLength, pace }) {
    super(source, samples);
    const { hop, vectors, rate, window } = source;
    [this.step, this.#pace] = [hop, pace];
    this.#longest = Math.min(vectors * hop, Math.floor(((contextLength - 1) / pace) * rate));
    const advice = "Export it with a larger --max-context, or lower tokensPerSecond.";
    const short = `This bundle writes at most ${contextLength - 1} tokens about at most ${(vectors * hop) / rate} seconds, too little to transcribe. ${advice}`;
    check(Math.floor(this.#longest / SEARCHED) > window, ContextLengthError, short);
  }

  get isFull() {
    return this.samples.length > this.#longest + this.source.window;
  }

  get size() {
    const { samples, source } = this;
    if (samples.length <= this.#longest) return samples.length;
    const frame = Math.max(1, Math.floor(source.rate / FRAMES_PER_SECOND));
    const start = this.#longest - Math.floor(this.#longest / SEARCHED);
    const last = samples.subarray(start, Math.min(this.#longest, samples.length - source.window));
    if (last.length < frame) return start;
    let [best, least] = [0, Infinity];
    for (let index = 0; (index + 1) * frame <= last.length; index++) {
      const loud = last.subarray(index * frame, (index + 1) * frame).reduce((sum, value) => sum + Math.abs(value), 0);
      if (loud < least) [best, least] = [index, loud];
    }
    return start + best * frame + (frame >> 1);
  }

  window() {
    const { size, source } = this;
    const seconds = size / source.rate;
    const values = waveOf(this.samples.subarray(0, size), source);
    return { values, vectors: Math.ceil(size / source.hop), seconds, mostTokens: Math.ceil(seconds * this.#pace) };
  }
}
