/** Errors of this package. Each says what failed, what was expected, what was got and what to do. */

export class OrtolanError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = this.constructor.name;
  }
}

/** A bundle that is incomplete, damaged, of another version or of a kind that is not supported. */
export class BundleError extends OrtolanError {}

/** An invalid request. */
export class InputError extends OrtolanError {}

/** A prompt that does not fit into the context. */
export class ContextLengthError extends InputError {}

/** A sampling option that is out of range. */
export class SamplingError extends InputError {}

/** A device that is missing here, or that failed while computing. */
export class DeviceError extends OrtolanError {}

/** Logits that are not finite. */
export class NumericError extends OrtolanError {}
