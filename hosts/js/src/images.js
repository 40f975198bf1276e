/**
 * Pixels for an encoder of images, as Python makes them with Pillow: the same filters and roundings.
 * Values are a `Uint8Array`, or a `Float32Array` where resized values keep their fractions, row by row.
 *
 * Source: Pillow's Resample.c and AlphaComposite.c.
 */

import { shown } from "./arguments.js";
import { check, BundleKindError, InputError } from "./errors.js";

/** Fraction bits of weights for values of 8 bits. */
const PRECISION = 22;

const MOST_PIXELS = 1 << 28;

const sinc = (x) => (x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI));
const cubic = (x) => (x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0);

/** Filters by name: half their width, and their weights at a distance. */
const FILTERS = {
  box: [0.5, (x) => (x > -0.5 && x <= 0.5 ? 1 : 0)],
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  hamming: [1, (x) => (x === 0 ? 1 : Math.abs(x) >= 1 ? 0 : sinc(x) * (0.54 + 0.46 * Math.cos(x * Math.PI)))],
  bicubic: [2, (x) => cubic(Math.abs(x))],
  lanczos: [3, (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)],
};

/** Read an image like `ImageData`: `{data, width, height}`, with 1 to 4 bytes per pixel. */
export function readPixels(image, source) {
  const { channels, height, width, fit } = source;
  check(channels === 1 || channels === 3, BundleKindError, `This package reads gray and RGB images, and the bundle needs ${channels} channels. Run it with Python.`);
  const steps = fit ?? { resize: [height, width] };
  let pixels = converted(checked(image), source);
  pixels = resized(pixels, ...newSize(pixels, steps), source);
  if (steps.crop) pixels = cropped(pixels, ...steps.crop);
  const isRight = pixels.height === height && pixels.width === width;
  const fits = isRight || (steps.pad && pixels.height <= height && pixels.width <= width);
  const other = `The image has ${pixels.width} by ${pixels.height} pixels after the steps of the model's image processor, and the model needs ${width} by ${height}. Resize it first.`;
  check(fits, InputError, other);
  return normalized(pixels, source);
}

function checked(image) {
  const { data, width, height } = image ?? {};
  const isBytes = data instanceof Uint8Array || data instanceof Uint8ClampedArray || Array.isArray(data);
  const isImage = isBytes && [width, height].every((side) => Number.isInteger(side) && side > 0);
  check(isImage, InputError, `An image must be like ImageData: bytes as data, width and height (got ${shown(image)}).`);
  check(width * height <= MOST_PIXELS, InputError, `The image has ${width} by ${height} pixels, more than ${MOST_PIXELS}. Make it smaller first.`);
  const channels = data.length / (width * height);
  check([1, 2, 3, 4].includes(channels), InputError, `The image has ${data.length} bytes for ${width} by ${height} pixels. Pass 1 to 4 for each.`);
  return { data, width, height, channels };
}

/** Give an image the channels of an encoder. */
function converted({ data, width, height, channels }, { channels: wanted, background }) {
  if (channels === wanted) return { data: Uint8Array.from(data), width, height };
  const [hasAlpha, isGray] = [channels % 2 === 0, channels < 3];
  const result = new Uint8Array(width * height * wanted);
  const colors = [0, 0, 0];
  for (let pixel = 0; pixel < width * height; pixel++) {
    const start = pixel * channels;
    for (let color = 0; color < 3; color++) colors[color] = data[start + (isGray ? 0 : color)];
    if (hasAlpha && background === "white") {
      const alpha = data[start + channels - 1] << 7;
      for (let color = 0; color < 3; color++) {
        const sum = colors[color] * alpha + 255 * (255 * 128 - alpha) + (128 << 7);
        colors[color] = ((sum >> 8) + sum) >> 15;
      }
    }
    if (wanted === 3) result.set(colors, pixel * 3);
    else result[pixel] = isGray ? colors[0] : (colors[0] * 19595 + colors[1] * 38470 + colors[2] * 7471 + 0x8000) >> 16;
  }
  return { data: result, width, height };
}

/** Height and width after the first step. */
function newSize({ height, width }, { resize, inside }) {
  if (resize == null) return [height, width];
  if (!Array.isArray(resize)) {
    const longest = Math.trunc((resize * Math.max(height, width)) / Math.min(height, width));
    return width <= height ? [longest, resize] : [resize, longest];
  }
  if (!inside) return resize;
  const factor = Math.min(resize[0] / height, resize[1] / width);
  const size = [Math.trunc(height * factor), Math.trunc(width * factor)];
  const narrow = `An image of ${width} by ${height} pixels is too narrow for this model, which keeps proportions. Crop it first.`;
  check(!size.includes(0), InputError, narrow);
  return size;
}

function resized(pixels, height, width, { resample, rounding, channels }) {
  if (pixels.height === height && pixels.width === width) return pixels;
  check(height * width <= MOST_PIXELS, InputError, `After resizing, the image has more than ${MOST_PIXELS} pixels. Make it smaller first.`);
  const isRounded = rounding !== "none";
  const across = (now) =>
    now.width === width ? now : { ...now, width, data: along(now.data, now.height, now.width, channels, width, resample, isRounded) };
  const down = (now) =>
    now.height === height ? now : { ...now, height, data: along(now.data, 1, now.height, now.width * channels, height, resample, isRounded) };
  // in the order of Pillow 13, which for images that shrink both ways is not always this one
  return height < pixels.height && width > pixels.width ? across(down(pixels)) : down(across(pixels));
}

/** Resize the middle axis of values `(outer, size, inner)`. */
function along(values, outer, size, inner, wanted, resample, isRounded) {
  const weights = Array.from({ length: wanted }, (_, place) => weightsAt(place, size, wanted, resample, isRounded));
  const result = new (isRounded ? Uint8Array : Float32Array)(outer * wanted * inner);
  for (let row = 0; row < outer; row++) {
    weights.forEach(({ first, factors }, place) => {
      for (let column = 0; column < inner; column++) {
        let sum = isRounded ? 1 << (PRECISION - 1) : 0;
        for (let at = 0; at < factors.length; at++) sum += values[(row * size + first + at) * inner + column] * factors[at];
        const value = isRounded ? Math.min(255, Math.max(0, sum >> PRECISION)) : sum;
        result[(row * wanted + place) * inner + column] = value;
      }
    });
  }
  return result;
}

/** The first value that a resized one is made of, and the weights from there on. */
function weightsAt(place, size, wanted, resample, isRounded) {
  const scale = size / wanted;
  if (resample === "nearest") return { first: Math.min(size - 1, Math.floor((place + 0.5) * scale)), factors: [isRounded ? 1 << PRECISION : 1] };
  const [reach, weight] = FILTERS[resample];
  const widened = Math.max(scale, 1); // filters widen when they shrink
  const center = (place + 0.5) * scale;
  const first = Math.max(0, Math.trunc(center - reach * widened + 0.5));
  const end = Math.min(size, Math.trunc(center + reach * widened + 0.5));
  const raw = Array.from({ length: end - first }, (_, at) => weight((at + first - center + 0.5) * (1 / widened)));
  const total = raw.reduce((a, b) => a + b, 0);
  const round = (factor) => Math.trunc(factor * (1 << PRECISION) + (factor < 0 ? -0.5 : 0.5));
  return { first, factors: raw.map((factor) => (isRounded ? round(factor / total) : factor / total)) };
}

/** The center, with a black border around smaller images. */
function cropped({ data, height, width }, wantedHeight, wantedWidth) {
  const channels = data.length / (height * width);
  const offset = (size, wanted) => (size < wanted ? -((wanted - size + 1) >> 1) : (size - wanted) >> 1);
  const [top, left] = [offset(height, wantedHeight), offset(width, wantedWidth)];
  const result = new data.constructor(wantedHeight * wantedWidth * channels);
  for (let row = 0; row < wantedHeight; row++) {
    const from = row + top;
    if (from < 0 || from >= height) continue;
    const [start, end] = [Math.max(0, left), Math.min(width, left + wantedWidth)];
    const part = data.subarray((from * width + start) * channels, (from * width + end) * channels);
    result.set(part, (row * wantedWidth + start - left) * channels);
  }
  return { data: result, height: wantedHeight, width: wantedWidth };
}

/** `(value * scale - mean) / std` as float32 `(channels, height, width)`, with zeros on the right and at the bottom. */
function normalized({ data, height, width }, { channels, height: rows, width: columns, scale, mean, std }) {
  const f32 = Math.fround;
  const result = new Float32Array(channels * rows * columns);
  for (let channel = 0; channel < channels; channel++) {
    const [factor, middle, spread] = [f32(scale), f32(mean[channel]), f32(std[channel])];
    for (let row = 0; row < height; row++) {
      for (let column = 0; column < width; column++) {
        const value = f32(f32(data[(row * width + column) * channels + channel] * factor) - middle);
        result[(channel * rows + row) * columns + column] = value / spread;
      }
    }
  }
  return result;
}
