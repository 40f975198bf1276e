/** Errors of this package, with the names that they have in Python. Each says what is wrong and what to do. */

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
