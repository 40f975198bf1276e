/** Spectrograms and resampled sounds against Python; tests/hosts/test_js_speech.py writes ORTOLAN_CASES. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

import { InputError, Seq2Seq } from "../src/index.js";
import { Transcriber } from "../src/transcription.js";
import { concatenated, logMel, readSamples, Resampler } from "../src/sounds.js";

const { mels, rates } = JSON.parse(await readFile(process.env.ORTOLAN_CASES, "utf8"));
const floats = (base64) => new Float32Array(Uint8Array.from(Buffer.from(base64, "base64")).buffer);

function near(got, expected, tolerance) {
  assert.equal(got.length, expected.length);
  const error = expected.reduce((most, value, index) => Math.max(most, Math.abs(value - got[index])), 0);
  assert.ok(error <= tolerance, `differs by ${error}`);
}

for (const { source, samples, values } of mels) {
  const given = floats(samples);
  test(`${source.bins} bins of ${given.length} samples`, () => {
    const { values: got } = logMel(given, source, (source.frames * source.hop) >> 1);
    near(got, floats(values), 1e-4);
  });
}

for (const { rate, samples, values } of rates) {
  const [given, source] = [floats(samples), { rate: 16_000 }];
  test(`resampled from ${rate} Hz, whole and in blocks`, () => {
    const got = readSamples(given, source, rate);
    near(got, floats(values), 0.02); // soxr reads the silence before a sound differently
    near(got.subarray(3), floats(values).subarray(3), 5e-4);
    const resampler = new Resampler(rate, 16_000);
    const parts = [];
    for (let at = 0; at < given.length; at += 777) parts.push(resampler.next(given.subarray(at, at + 777)));
    assert.deepEqual(concatenated([...parts, resampler.next(new Float32Array(0), true)]), readSamples(given, source, rate));
  });
}

test("channels of an AudioBuffer are mixed, at its own rate", () => {
  const [left, right] = [Float32Array.of(0.5, -0.5, 0.25), Float32Array.of(0.25, -0.25, 0.25)];
  const buffer = { numberOfChannels: 2, sampleRate: 16_000, getChannelData: (channel) => [left, right][channel] };
  assert.deepEqual(readSamples(buffer, { rate: 16_000 }), Float32Array.of(0.375, -0.375, 0.25));
  assert.throws(() => readSamples(buffer, { rate: 16_000 }, 8000), /states its own/);
  assert.equal(readSamples({ ...buffer, sampleRate: 1000 }, { rate: 16_000 }).length, 48);
});

test("sounds and callbacks that are none are errors", () => {
  for (const blocks of [0, null, {}, { length: 5 }]) assert.throws(() => Seq2Seq.prototype.listen(blocks), InputError);
  const model = { manifest: { source: { kind: "audio" }, tokens: {} } };
  for (const onSegment of [0, []]) assert.throws(() => new Transcriber(model, null, { onSegment }), /onSegment must be a function/);
  const options = Object.fromEntries(["language", "timestamps", "tokensPerSecond", "rate", "onSegment", "seed"].map((name) => [name, null]));
  for (const none of [null, options]) assert.equal(new Transcriber(model, null, none).language, null);
});
