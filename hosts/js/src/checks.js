/** Conditions and failures as errors. */

import { MemoryError, OrtolanError } from "./errors.js";

/** Throw an error unless a condition holds. */
export function check(holds, Kind, message) {
  if (!holds) throw new Kind(message);
}

/** Advice if a bundle was made for another place than a browser; else "". */
export function forBrowsers(manifest, device) {
  if (device === "cpu" || manifest.devices?.includes("webgpu")) return "";
  return ` This bundle was exported for ${manifest.devices}. Export the checkpoint with --device web.`;
}

/** How ONNX Runtime and JavaScript engines say that memory ran out. */
const NO_MEMORY = /bad.?alloc|out of memory|failed to allocate|allocation failed|OOM/i;

/** The error for a failure: a `MemoryError` if memory ran out. */
export function failure(cause, Kind, what, advice = "") {
  if (cause instanceof OrtolanError) return cause;
  const text = String(cause?.message ?? cause);
  const isMemory = cause instanceof RangeError || NO_MEMORY.test(text);
  if (!isMemory) return new Kind(`${what}: ${text}${advice}`, { cause });
  const smaller = "Use a smaller bundle or a shorter text, or close other programs.";
  return new MemoryError(`${what}: memory ran out (${text}). ${smaller}`, { cause });
}
