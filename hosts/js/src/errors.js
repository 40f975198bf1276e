/** Errors of this package. Each says what is wrong and what to do. */

export class OrtolanError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = this.constructor.name;
  }
}

export class BundleError extends OrtolanError {}
export class InputError extends OrtolanError {}
export class ContextLengthError extends InputError {}
export class SamplingError extends InputError {}
export class DeviceError extends OrtolanError {}
export class MemoryError extends OrtolanError {}
export class NumericError extends OrtolanError {}
