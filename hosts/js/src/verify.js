/** Compares a decoder with its certificate; see "Certificate" in docs/bundle-format.md. */

import { check, failure, BundleError } from "./errors.js";
import { highest, logSumExp } from "./sampling.js";

const KINDS = { int32: Int32Array, float32: Float32Array, uint8: Uint8Array };
const REST = 1e-5;
const TINY = 1e-300;

/** Replay the probes of the certificate among a bundle's contents; returns a `Verification`. */
export async function verify(decoder, contents, onProgress = () => {}) {
  const { certificate, unverified } = decoder.manifest;
  check(certificate != null, BundleError, `This bundle has no certificate: ${unverified ?? "the manifest names none"}.`);
  const { document, arrays } = readCertificate(certificate, contents);
  const { thresholds, top_k: kept } = document;
  const { token_ids: ids, log_sum_exp: sums, top_ids: topIds, top_logits: topLogits } = arrays;
  const found = { positions: 0, meanKl: 0, maxAbsDelta: 0, nearTies: 0, changed: 0, nonFinite: 0 };
  let row = 0;
  for (const { length } of document.probes) {
    await decoder.logits(Array.from(ids.subarray(row, row + length)), (logits, position) => {
      const at = row + position;
      const [top, expected] = [topIds, topLogits].map((all) => all.subarray(at * kept, (at + 1) * kept));
      compare(found, logits, top, expected, sums[at], thresholds);
      onProgress(++found.positions, ids.length);
    });
    row += length;
  }
  found.meanKl /= Math.max(1, found.positions - found.nonFinite);
  const largest = topLogits.reduce((most, value) => Math.max(most, Math.abs(value)), 1);
  const changedFiles = changes(document, decoder.manifest);
  const isRight =
    changedFiles.length === 0 &&
    found.nonFinite === 0 &&
    found.meanKl <= thresholds.mean_kl &&
    (thresholds.max_abs_delta == null || found.maxAbsDelta <= thresholds.max_abs_delta * largest) &&
    (thresholds.near_tie == null || found.changed === found.nearTies);
  const verdict = !isRight ? "FAIL" : found.nearTies > 0 ? "AMBIGUOUS" : "PASS";
  return { verdict, ...found, changedFiles, thresholds };
}

/** Files that differ from the export. */
function changes({ surroundings }, { files, graphs }) {
  if (!surroundings) return [];
  const expected = surroundings.files ?? {};
  const hashes = Object.fromEntries(files.map(({ name, sha256 }) => [name, sha256]));
  const others = Object.keys(expected).filter((name) => hashes[name] !== expected[name]);
  const used = Object.values(graphs).map(({ file }) => file);
  return [...others, ...used.filter((name) => !Object.hasOwn(expected, name))];
}

function compare(found, logits, ids, expected, logSum, thresholds) {
  if (!logits.every(Number.isFinite)) return void found.nonFinite++;
  const top = highest(logits);
  const got = Float64Array.from(ids, (id) => logits[id]);
  const deltas = got.map((value, index) => Math.abs(value - expected[index]));
  found.maxAbsDelta = Math.max(found.maxAbsDelta, ...deltas);
  const gotSum = logSumExp(logits);
  const trained = Float64Array.from(expected, (value) => value - logSum);
  found.meanKl += divergence(trained, got.map((value) => value - gotSum));
  if (top !== ids[0]) {
    found.changed++;
    if (expected[0] - expected[1] <= (thresholds.near_tie ?? -1)) found.nearTies++;
  }
}

/** KL divergence of q from p, log probabilities of the kept tokens; the others count as one. */
function divergence(p, q) {
  const mass = (values) => values.reduce((sum, value) => sum + Math.exp(value), 0);
  const pKept = Math.min(mass(p), 1 - REST);
  const qKept = Math.min(Math.max(mass(q), TINY), 1 - REST);
  const between = pKept * Math.log(pKept / qKept) + (1 - pKept) * Math.log((1 - pKept) / (1 - qKept));
  const [pSum, qSum] = [logSumExp(p), logSumExp(q)];
  const part = (value, index) => Math.exp(value - pSum) * (value - pSum - (q[index] - qSum));
  const among = p.map(part).reduce((a, b) => a + b, 0);
  return Math.max(between + pKept * among, 0);
}

function readCertificate(name, contents) {
  const again = "Export the bundle again.";
  check(name.endsWith(".json"), BundleError, `${name}: expected a certificate in JSON. ${again}`);
  const data = contents.get(name.replace(/json$/, "bin"));
  check(contents.has(name) && data, BundleError, `manifest.json does not list ${name} and its data. ${again}`);
  try {
    const document = JSON.parse(new TextDecoder().decode(contents.get(name)));
    const { schema, top_k: kept, probes, thresholds, arrays: listed } = document;
    check(schema === 1 && kept >= 2, BundleError, `${name}: expected logits in schema 1, got schema ${schema}. ${again}`);
    check(probes.length && probes.every(({ length }) => length >= 1), BundleError, `${name}: expected probes of at least one token. ${again}`);
    const arrays = Object.fromEntries(listed.map((array) => [array.name, readArray(array, data)]));
    const rows = probes.reduce((sum, { length }) => sum + length, 0);
    const counts = { token_ids: rows, log_sum_exp: rows, top_ids: rows * kept, top_logits: rows * kept };
    const wrong = Object.keys(counts).find((array) => arrays[array]?.length !== counts[array]);
    check(!wrong, BundleError, `${name}: expected ${counts[wrong]} numbers as ${wrong}, got ${arrays[wrong]?.length}. ${again}`);
    check(Number.isFinite(thresholds.mean_kl), BundleError, `${name}: expected thresholds.mean_kl as a number, got ${thresholds.mean_kl}. ${again}`);
    return { document, arrays };
  } catch (cause) {
    throw failure(cause, BundleError, `${name} is damaged`, `. ${again}`);
  }
}

function readArray({ name, dtype, shape, offset }, data) {
  const Kind = KINDS[dtype];
  const end = offset + shape.reduce((a, b) => a * b, 1) * Kind.BYTES_PER_ELEMENT;
  const isInside = [offset, end].every(Number.isInteger) && 0 <= offset && offset <= end && end <= data.length;
  check(isInside, BundleError, `certificate.bin: expected bytes ${offset} to ${end} for ${name}, got ${data.length}. Export the bundle again.`);
  return new Kind(data.slice(offset, end).buffer);
}
