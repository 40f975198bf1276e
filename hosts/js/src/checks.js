/** Conditions and failures as errors. */

import { MemoryError } from "./errors.js";

/** Throw an error unless a condition holds. */
export function check(holds, Kind, message) {
  if (!holds) throw new Kind(message);
}

/** How ONNX Runtime and JavaScript engines say that memory ran out. */
const NO_MEMORY = /bad.?alloc|out of memory|failed to allocate|allocation failed|OOM/i;

/** The error for a failure: a `MemoryError` if memory ran out. */
export function failure(cause, Kind, what) {
  const text = String(cause?.message ?? cause);
  const isMemory = cause instanceof RangeError || NO_MEMORY.test(text);
  if (!isMemory) return new Kind(`${what}: ${text}`, { cause });
  const advice = "Use a smaller bundle or a shorter text, or close other programs.";
  return new MemoryError(`${what}: memory ran out (${text}). ${advice}`, { cause });
}
