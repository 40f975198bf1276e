/** Runs Ortolan bundles in browsers and Node. */

export * from "./errors.js";
export { Decoder, load } from "./decoder.js";
export { chosenFiles, folderFiles, urlFiles } from "./files.js";
