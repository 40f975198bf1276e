/** `load`: from the files of a bundle to a model that is ready to use. */

import { given } from "./arguments.js";
import { readBundle } from "./bundle.js";
import { Decoder } from "./decoder.js";
import { Encoder } from "./encoder.js";
import { Engine } from "./engine.js";
import { Seq2Seq } from "./seq2seq.js";
import { check, failure, BundleError, BundleKindError, DeviceError, InputError } from "./errors.js";

const DEVICES = ["wasm", "webgpu", "cpu"];

const MODELS = [Decoder, Encoder, Seq2Seq];

export async function load(files, options) {
  try {
    return await loaded(files, options);
  } catch (cause) {
    // what a damaged bundle makes parsers and constructors throw
    throw failure(cause, BundleError, "The bundle cannot be loaded", " Copy it again, or export it again.");
  }
}

async function loaded(files, options) {
  const { ort, device = "wasm", kind, onProgress } = given(options);
  check(DEVICES.includes(device), DeviceError, `device must be wasm, webgpu or cpu (got ${device}).`);
  check(kind === undefined || MODELS.includes(kind), InputError, "kind must be Decoder, Seq2Seq or Encoder.");
  const isOffered = device !== "webgpu" || (await globalThis.navigator?.gpu?.requestAdapter());
  check(isOffered, DeviceError, "This browser offers no WebGPU. Choose the device wasm.");
  const bundle = await readBundle(files, { onProgress });
  const own = bundle.manifest.kind;
  const Kind = MODELS.find((model) => model.kind === own);
  check(!kind || kind === Kind, BundleKindError, `load: expected the kind ${kind?.kind}, got ${own}. Use ${Kind?.name}.`);
  const engine = await Engine.open(ort, device, bundle);
  const parts = {};
  try {
    for (const [name, part] of Object.entries(bundle.parts)) {
      parts[name] = { engine: await Engine.open(ort, device, part), contents: part.contents };
    }
    return new Kind(engine, bundle.contents, parts);
  } catch (error) {
    for (const { engine: own } of [{ engine }, ...Object.values(parts)]) await own.dispose();
    throw error;
  }
}
