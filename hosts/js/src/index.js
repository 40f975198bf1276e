/** Runs Ortolan bundles in browsers and Node. */

export { Decoder } from "./decoder.js";
export { Encoder } from "./encoder.js";
export {
  BundleError, BundleFileError, BundleKindError, ComputeError, ContextLengthError, DeviceError, GraphError, InputError,
  ManifestError, MemoryError, NumericError, OrtolanError, SamplingError, TokenizerError,
} from "./errors.js";
export { Seq2Seq } from "./seq2seq.js";
export { chosenFiles, folderFiles, urlFiles } from "./files.js";
export { load } from "./load.js";
