/** Runs Ortolan bundles in browsers and Node. */

export * from "./errors.js";
export { Decoder } from "./decoder.js";
export { Encoder } from "./encoder.js";
export { Seq2Seq } from "./seq2seq.js";
export { chosenFiles, folderFiles, urlFiles } from "./files.js";
export { load } from "./load.js";
