/** Calls of models, compared with what Python returns or raises; for Node and browsers. */

import { OrtolanError } from "../src/index.js";

const KINDS = { float32: Float32Array, float64: Float64Array, int16: Int16Array, int32: Int32Array };

/** Arguments as JavaScript has them: sounds are arrays of samples. */
function revived(value) {
  if (Array.isArray(value)) return value.map(revived);
  return value?.samples ? new KINDS[value.dtype](Uint8Array.from(atob(value.samples), (char) => char.charCodeAt(0)).buffer) : value;
}

/** The items of an iterator, or the result itself. */
async function collected(result) {
  if (!result?.[Symbol.asyncIterator]) return result;
  const items = [];
  for await (const item of result) items.push(item);
  return items;
}

/** Paths of the values that differ. A result may have more fields than expected, such as times. */
function differences(got, expected, tolerance, path) {
  if (Array.isArray(expected) && got?.length !== expected.length) return [`${path}: expected ${expected}, got ${got}`];
  if (expected !== null && typeof expected === "object") {
    return Object.entries(expected).flatMap(([name, value]) => differences(got?.[name], value, tolerance, `${path}.${name}`));
  }
  const isNear = got === expected || Math.abs(got - expected) <= tolerance * Math.max(1, Math.abs(expected));
  return isNear ? [] : [`${path}: expected ${expected}, got ${got}`];
}

/**
 * Repeat a call. Returns what differs from its result, or `refused`, the name and message of an error
 * of this package where a result is expected.
 */
export async function repeated(model, { method, arguments: given, result, error }, tolerance) {
  if (typeof model[method] !== "function") return { differences: [`there is no method ${method}`] };
  const done = await (async () => collected(model[method](...given.map(revived))))().catch((cause) => cause);
  const { live } = model.engine;
  if (live) return { differences: [`${live} states are left`] };
  if (done instanceof OrtolanError && !error) return { differences: [], refused: [done.name, done.message] };
  if (error) return { differences: done?.name === error ? [] : [`expected ${error}, got ${done?.stack ?? JSON.stringify(done)}`] };
  return { differences: done instanceof Error ? [done.stack] : differences(done, result, tolerance, method) };
}
