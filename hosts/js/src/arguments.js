/** Checks of what callers pass. */

import { check, ContextLengthError, InputError, TokenizerError } from "./errors.js";

const isObject = (value) => typeof value === "object" && value !== null;

/** A value for an error, briefly. */
export const shown = (value) => {
  const text = typeof value === "string" ? JSON.stringify(value) : Array.isArray(value) ? `a list of ${value.length}` : isObject(value) ? Object.prototype.toString.call(value) : String(value);
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
};

/** Options as an object; null means that one is left out, or all of them. */
export function given(options) {
  check(options == null || isObject(options), InputError, `Options must be an object (got ${shown(options)}).`);
  return Object.fromEntries(Object.entries(options ?? {}).map(([name, value]) => [name, value ?? undefined]));
}

/** The same options, which may have no other names. */
export function checkNames(options, names) {
  const all = given(options);
  const unknown = Object.keys(all).find((name) => !names.includes(name));
  check(unknown === undefined, InputError, `Unknown option ${unknown}. Expected one of ${names.join(", ")}.`);
  return all;
}

export function checkedCount(name, value, least = 1, most = Infinity) {
  const allowed = most === Infinity ? `above ${least - 1}` : `from ${least} to ${most}`;
  check(Number.isInteger(value) && value >= least && value <= most, InputError, `${name} must be a whole number ${allowed} (got ${shown(value)}).`);
  return value;
}

export function checkedFlag(name, value) {
  check(typeof value === "boolean", InputError, `${name} must be true or false (got ${shown(value)}).`);
  return value;
}

/** Ids of the vocabulary as plain numbers. */
export function checkedIds(ids, size, what, { fewest = 0, most = Infinity } = {}) {
  const isList = Array.isArray(ids) || (ArrayBuffer.isView(ids) && !(ids instanceof DataView));
  check(isList, InputError, `${what} must be a list of token ids (got ${shown(ids)}).`);
  const plain = Array.from(ids, (id) => (typeof id === "bigint" ? Number(id) : id));
  check(plain.length >= fewest, InputError, `${what} has no token ids. Pass at least one.`);
  check(plain.length <= most, ContextLengthError, `${what} has ${plain.length} tokens, and the limit is ${most}. Use a shorter sequence.`);
  const at = plain.findIndex((id) => !Number.isInteger(id) || id < 0 || id >= size);
  check(at < 0, InputError, `Ids must be 0 to ${size - 1} (got ${shown(plain[at])} at position ${at} of ${what}).`);
  return plain;
}

/** The tokenizer of a model, which must have one. */
export function tokenizerOf({ text }, what) {
  check(text, TokenizerError, `${what}: this bundle has no tokenizer. Pass token ids, or export with --tokenizer.`);
  return text;
}

/** Whether inputs are a list of inputs, rather than the ids of one. */
export const isBatch = (inputs) => Array.isArray(inputs) && typeof inputs[0] !== "number" && typeof inputs[0] !== "bigint";

export const asList = (inputs) => (isBatch(inputs) ? Array.from(inputs) : [inputs]);

export function checkedFunction(name, value) {
  check(value === undefined || typeof value === "function", InputError, `${name} must be a function (got ${shown(value)}).`);
  return value;
}

export function checkedSignal(signal) {
  check(signal === undefined || typeof signal?.throwIfAborted === "function", InputError, `signal must be an AbortSignal (got ${shown(signal)}).`);
  return signal;
}
