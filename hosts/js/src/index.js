/** Runs Ortolan bundles in browsers and Node. */

export * from "./errors.js";
export { Decoder } from "./decoder.js";
export { chosenFiles, folderFiles, urlFiles } from "./files.js";
export { load } from "./load.js";
