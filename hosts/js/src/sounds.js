/**
 * Sounds as encoders read them: samples at one rate, waves and log-mel spectrograms. Computed as in
 * Python, see ortolan/runtime/inputs/audio.py, except that soxr resamples there.
 */

import { shown } from "./arguments.js";
import { check, ContextLengthError, InputError } from "./errors.js";

/** Least power before the logarithm, powers of ten that are kept, and what is added to a variance. */
const [FLOOR, RANGE, LEAST_VARIANCE] = [1e-10, 8, 1e-7];

/** Largest sample: floats exceed 1 a little, integers that were not scaled far more. */
const LOUDEST = 32;

const [LEAST_RATE, MOST_RATE, MOST_SECONDS, MOST_CHANNELS] = [1000, 384_000, 7200, 8];

/** Attenuation in dB, cutoff and width of the transition of soxr's filter, relative to the lower Nyquist frequency. */
const [ATTENUATION, CUTOFF, TRANSITION] = [132, 0.95675, 0.0865];

/** Phases of a filter that are kept rather than computed again. */
const MOST_PHASES = 1024;

const f32 = Math.fround;

/** Types of samples, and the value of the loudest. */
const SCALES = new Map([[Float32Array, 1], [Float64Array, 1], [Int16Array, 2 ** 15], [Int32Array, 2 ** 31]]);

export function concatenated(parts) {
  const whole = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => (whole.set(part, at), at + part.length), 0);
  return whole;
}

/** Samples of a sound at the rate of an encoder: the mean of its channels. */
export function readSamples(sound, source, rate) {
  const { samples, rate: own } = heard(sound, rate ?? source.rate, rate);
  if (own === source.rate) return samples;
  const result = new Resampler(own, source.rate).next(samples, true);
  check(result.length, InputError, `The sound has less than one sample at ${source.rate} Hz. Leave it out.`);
  return result;
}

/** A rate as a number that can be read. */
export function checkedRate(rate) {
  check(Number.isInteger(rate) && rate >= LEAST_RATE && rate <= MOST_RATE, InputError, `rate must be ${LEAST_RATE} to ${MOST_RATE} samples per second (got ${shown(rate)}). Resample the sound first.`);
  return rate;
}

function heard(sound, usual, rate) {
  const isBuffer = typeof sound?.getChannelData === "function";
  check(!isBuffer || rate === undefined, InputError, "rate is for arrays of samples; an AudioBuffer states its own. Leave it out.");
  const count = isBuffer ? sound.numberOfChannels : 1;
  check(count <= MOST_CHANNELS, InputError, `The sound has ${count} channels, and 1 to ${MOST_CHANNELS} are read. Mix them first.`);
  const channels = isBuffer ? Array.from({ length: count }, (_, channel) => sound.getChannelData(channel)) : [sound];
  const scale = SCALES.get(sound?.constructor) ?? (isBuffer && 1);
  check(scale, InputError, `A sound must be a Float32Array, an Int16Array or Int32Array, or an AudioBuffer (got ${shown(sound)}).`);
  const own = checkedRate(isBuffer ? sound.sampleRate : usual);
  const [{ length }] = channels;
  check(length, InputError, "The sound has no samples. Leave it out.");
  check(length <= own * MOST_SECONDS, InputError, `The sound has ${Math.floor(length / own)} seconds, more than ${MOST_SECONDS}. Split it.`);
  const samples = new Float32Array(length);
  for (const channel of channels) for (let index = 0; index < length; index++) samples[index] += channel[index] / scale;
  const wrong = samples.find((value) => !(Math.abs(value) <= LOUDEST * count));
  const advice = "Divide integers that were converted to floats by their largest value.";
  check(wrong === undefined, InputError, `Samples must be finite and between -1 and 1 (got ${wrong / count}). ${advice}`);
  return { samples: count > 1 ? samples.map((value) => value / count) : samples, rate: own };
}

/** Modified Bessel function of order 0, by its series. */
function bessel(x) {
  let [sum, term] = [1, 1];
  for (let n = 1; term > sum * 1e-16; n++) sum += term *= (x / 2 / n) ** 2;
  return sum;
}

/** Resamples a sound block by block, by a sinc with a Kaiser window; the result does not depend on the blocks. */
export class Resampler {
  #up;
  #down;
  #filter;
  #kept = new Map();
  #reach; // samples before and after the place of a new one
  #samples; // from index #first on, with silence before the sound
  #first;
  #count = 0;
  #done = 0;

  constructor(rate, wanted) {
    const divisor = (a, b) => (b ? divisor(b, a % b) : a);
    [this.#up, this.#down] = [wanted, rate].map((one) => one / divisor(rate, wanted));
    const low = Math.min(1, wanted / rate);
    const half = (ATTENUATION - 7.95) / (14.36 * TRANSITION * low);
    const beta = 0.1102 * (ATTENUATION - 8.7);
    const whole = bessel(beta);
    this.#filter = (distance) => {
      const angle = Math.PI * CUTOFF * low * distance;
      const window = Math.abs(distance) < half ? bessel(beta * Math.sqrt(1 - (distance / half) ** 2)) / whole : 0;
      return CUTOFF * low * (angle === 0 ? 1 : Math.sin(angle) / angle) * window;
    };
    this.#reach = Math.ceil(half);
    [this.#samples, this.#first] = [new Float32Array(this.#reach), -this.#reach];
  }

  /** Samples that more of the sound adds; all that are left if it is the last part. */
  next(samples, isLast = false) {
    const [reach, up, down] = [this.#reach, this.#up, this.#down];
    this.#count += samples.length;
    this.#samples = concatenated([this.#samples, samples, new Float32Array(isLast ? 2 * reach : 0)]);
    const end = isLast ? Math.floor((this.#count * up) / down + 0.5) : Math.ceil(((this.#count - reach) * up) / down);
    const result = new Float32Array(Math.max(0, end - this.#done));
    let start = 0;
    for (let index = 0; index < result.length; index++) {
      const place = this.#done++ * down;
      start = Math.floor(place / up) - reach - this.#first;
      const weights = this.#weights(place % up);
      let sum = 0;
      for (let at = 0; at < weights.length; at++) sum += weights[at] * this.#samples[start + at];
      result[index] = sum;
    }
    this.#samples = this.#samples.slice(start);
    this.#first += start;
    return result;
  }

  #weights(phase) {
    let weights = this.#kept.get(phase);
    if (weights) return weights;
    weights = Float64Array.from({ length: 2 * this.#reach + 1 }, (_, at) => this.#filter(at - this.#reach - phase / this.#up));
    if (this.#up <= MOST_PHASES) this.#kept.set(phase, weights);
    return weights;
  }
}

/** Samples as an encoder of waves reads them: `(x - mean) / sqrt(variance + 1e-7)`, or unchanged. */
export function waveOf(samples, { window, rate, normalized }) {
  const short = `The encoder reads sounds of at least ${window} samples at ${rate} Hz (got ${samples.length}). Leave it out, or add silence.`;
  check(samples.length >= window, InputError, short);
  if (!normalized) return samples;
  const mean = (values, of) => values.reduce((sum, value) => sum + of(value), 0) / values.length;
  const middle = mean(samples, (value) => value);
  const spread = Math.sqrt(mean(samples, (value) => (value - middle) ** 2) + LEAST_VARIANCE);
  return samples.map((value) => (value - middle) / spread);
}

/** A Fourier transform of `size` complex numbers, by the prime factors of their number. */
function fourier(size) {
  const [cos, sin] = [Math.cos, Math.sin].map((of) => Float64Array.from({ length: size }, (_, index) => of((-2 * Math.PI * index) / size)));
  const [real, imaginary, re, im] = Array.from({ length: 4 }, () => new Float64Array(size));
  const transform = (values, count, step, from, to) => {
    if (count === 1) return void ([real[to], imaginary[to]] = [values[0][from], values[1][from]]);
    let radix = 2;
    while (count % radix) radix++;
    const part = count / radix;
    for (let r = 0; r < radix; r++) transform(values, part, step * radix, from + r * step, to + r * part);
    for (let place = to; place < to + part; place++) {
      for (let r = 0; r < radix; r++) [re[r], im[r]] = [real[place + r * part], imaginary[place + r * part]];
      for (let q = 0; q < radix; q++) {
        const turn = (place - to + q * part) * step;
        let [a, b] = [re[0], im[0]];
        for (let r = 1; r < radix; r++) {
          const at = (r * turn) % size;
          a += re[r] * cos[at] - im[r] * sin[at];
          b += re[r] * sin[at] + im[r] * cos[at];
        }
        [real[place + q * part], imaginary[place + q * part]] = [a, b];
      }
    }
  };
  return (values) => (transform(values, size, 1, 0, 0), [real, imaginary]);
}

/**
 * The log-mel spectrogram of a sound, `{bins, frames, values}`, where silence fills fewer than `least`
 * samples. Values are `max(log10(power), loudest - 8) / 4 + 1`; see `log_mel` in Python.
 */
export function logMel(samples, source, least = 0) {
  const { window, hop, bins } = source;
  const count = Math.max(samples.length, least);
  const frames = Math.floor(count / hop);
  const sample = (index) => samples[index < 0 ? -index : index < count ? index : 2 * (count - 1) - index] ?? 0;
  const hann = Float64Array.from({ length: window }, (_, index) => 0.5 - 0.5 * Math.cos((2 * Math.PI * index) / window));
  const [filters, transform] = [melFilters(source), fourier(window)];
  const values = new Float32Array(bins * frames);
  const pair = [new Float64Array(window), new Float64Array(window)]; // two frames by one transform
  for (let frame = 0; frame < frames; frame += 2) {
    for (const [side, own] of pair.entries()) {
      const start = (frame + side) * hop - (window >> 1);
      for (let index = 0; index < window; index++) own[index] = sample(start + index) * hann[index];
    }
    const [re, im] = transform(pair);
    for (let side = 0; side < Math.min(2, frames - frame); side++) {
      const sign = side ? -1 : 1;
      for (let bin = 0; bin < bins; bin++) {
        const { first, weights } = filters[bin];
        let power = 0;
        for (let at = 0; at < weights.length; at++) {
          const [place, mirror] = [first + at, (window - first - at) % window];
          power += (weights[at] * ((re[place] + sign * re[mirror]) ** 2 + (im[place] - sign * im[mirror]) ** 2)) / 4;
        }
        values[bin * frames + frame + side] = Math.log10(Math.max(power, FLOOR));
      }
    }
  }
  const lowest = f32(values.reduce((most, value) => Math.max(most, value), -Infinity) - RANGE);
  return { bins, frames, values: values.map((value) => f32(Math.max(value, lowest) / 4) + 1) };
}

/** Frames of a spectrogram from one on, with zeros after its end. */
export function framesOf({ bins, frames, values }, first, count) {
  const part = new Float32Array(bins * count);
  for (let bin = 0; bin < bins; bin++) {
    part.set(values.subarray(bin * frames + first, bin * frames + Math.min(frames, first + count)), bin * count);
  }
  return part;
}

/** Triangles of equal area on Slaney's mel scale: the first frequency of each, and its weights. */
function melFilters({ rate, window, bins, highest = 8000 }) {
  const step = Math.log(6.4) / 27; // linear up to 1 kHz, or 15 mels
  const top = highest < 1000 ? (highest * 3) / 200 : 15 + Math.log(highest / 1000) / step;
  const edges = Array.from({ length: bins + 2 }, (_, index) => (top * index) / (bins + 1)).map((mel) =>
    mel < 15 ? (mel * 200) / 3 : 1000 * Math.exp((mel - 15) * step),
  );
  const frequencies = Array.from({ length: (window >> 1) + 1 }, (_, index) => ((rate >> 1) * index) / (window >> 1));
  return Array.from({ length: bins }, (_, bin) => {
    const [low, middle, high] = edges.slice(bin, bin + 3);
    const all = frequencies.map((frequency) => Math.max(0, Math.min((frequency - low) / (middle - low), (high - frequency) / (high - middle))));
    const first = Math.max(0, all.findIndex((weight) => weight > 0));
    const last = all.findLastIndex((weight) => weight > 0);
    return { first, weights: all.slice(first, last + 1).map((weight) => (weight * 2) / (high - low)) };
  });
}

/** Read a sound that is one input of an encoder: its spectrogram, or its wave. */
export function readSound(sound, source) {
  const { rate, hop, frames, vectors } = source;
  const samples = readSamples(sound, source);
  const most = (frames ?? vectors) * hop;
  const long = `The encoder reads sounds of at most ${most / rate} seconds (got ${(samples.length / rate).toFixed(2)}). Split it, or call transcribe.`;
  check(samples.length <= most, ContextLengthError, long);
  return frames ? framesOf(logMel(samples, source, most), 0, frames) : waveOf(samples, source);
}
