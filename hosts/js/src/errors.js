/** Errors of this package, with the names that they have in Python, and checks. Each says what is wrong and what to do. */

export class OrtolanError extends Error {}
export class BundleError extends OrtolanError {}
export class ManifestError extends BundleError {}
export class BundleFileError extends BundleError {}
export class GraphError extends BundleError {}
export class InputError extends OrtolanError {}
export class BundleKindError extends InputError {}
export class TokenizerError extends InputError {}
export class ContextLengthError extends InputError {}
export class SamplingError extends InputError {}
export class DeviceError extends OrtolanError {}
export class ComputeError extends OrtolanError {}
export class MemoryError extends OrtolanError {}
export class NumericError extends OrtolanError {}

// minifiers shorten the names of classes
const KINDS = {
  OrtolanError, BundleError, ManifestError, BundleFileError, GraphError, InputError, BundleKindError, TokenizerError,
  ContextLengthError, SamplingError, DeviceError, ComputeError, MemoryError, NumericError,
};
for (const [name, { prototype }] of Object.entries(KINDS)) Object.defineProperty(prototype, "name", { value: name });

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
  return new MemoryError(`${what}: memory ran out (${text}). Use a smaller bundle or a shorter text, or close other programs.`, { cause });
}
