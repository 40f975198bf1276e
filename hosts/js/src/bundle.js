/** A bundle: its manifest and its checked files. See docs/bundle-format.md. */

import { shown } from "./arguments.js";
import { check, failure, BundleError, BundleFileError, BundleKindError, DeviceError, GraphError, ManifestError, OrtolanError } from "./errors.js";

/** Version of the format. */
const SCHEMA = 1;

/** Graphs of each kind of bundle. Others are for maps of attention, which this package leaves out. */
const ROLES = { decoder: ["decoder"], encoder: ["encoder"], "encoder-decoder": ["encoder", "decoder"] };

/** Least and most of what a manifest and its source count, as in ortolan/runtime/limits.py. */
const [TOKENS, SIDE, PARTS] = [[1, 2 ** 21], [1, 2 ** 13], [1, 2 ** 16]];
const SOUND = { rate: [1000, 384_000], window: PARTS, hop: PARTS, vectors: TOKENS };
const RANGES = {
  model: { vocab_size: [1, 2 ** 20], context_length: TOKENS },
  text: { max_tokens: TOKENS },
  image: { channels: [1, 4], height: SIDE, width: SIDE },
  audio: { ...SOUND, window: [2, 2 ** 16], bins: [1, 1024], frames: [2, 2 ** 21] },
  wave: SOUND,
};

/** Fields of its tokens that are lists. */
const LISTS = ["eos", "suppressed", "suppressed_first", "opening"];

/** Words in the shapes of states for sizes that change. */
const SIZES = ["batch", "capacity", "source"];

/** Settings that select kernels. Others could write files or change the process. */
const SETTINGS = {
  environment: /^ORT_GQA_DISABLE_FLASH_ATTENTION$/,
  config_entries: /^mlas\.\w+$/,
};

/** Metadata of a graph that onnxruntime takes options from if ORT_LOAD_CONFIG_FROM_MODEL is set. */
const OPTIONS = "ort_config";

const TEXT = ["tokenizer_config.json", "chat_template.jinja", "generation_config.json"];

const AGAIN = "The bundle is incomplete or was changed: copy it again, or export it again.";

/**
 * Read the files of a bundle and of the bundles in it, and check their sizes and hashes. Returns
 * `{manifest, contents, folder, parts}`; `contents` has the bytes by name, `parts` more of the same.
 */
export async function readBundle(files, { onProgress = () => {} } = {}) {
  const whole = await opened(files, "");
  const bundles = [whole, ...Object.values(whole.parts)];
  const total = bundles.flatMap(({ listed }) => listed).reduce((sum, { size }) => sum + size, 0);
  let loaded = 0;
  for (const { prefix, listed, contents, manifest } of bundles) {
    for (const file of listed) {
      const name = prefix + file.name;
      const [end, onBytes] = [loaded + file.size, (count) => onProgress((loaded += count), total, name)];
      const bytes = await read(files, name, { sha256: file.sha256, onBytes });
      onProgress((loaded = end), total, name);
      await checkFile(name, file, bytes).catch(async (error) => {
        await files.forget?.(name, file);
        throw error;
      });
      contents.set(file.name, bytes);
    }
    for (const role of ROLES[manifest.kind]) checkGraph(manifest.graphs[role].file, contents);
  }
  return whole;
}

/** A bundle whose files are not read yet, and those in it. */
async function opened(files, prefix, sha256) {
  const manifest = await readManifest(files, prefix, sha256);
  const names = [...usedFiles(manifest), ...TEXT, ...certificateFiles(manifest)];
  const { texts } = manifest;
  return {
    manifest,
    prefix,
    contents: new Map(),
    listed: manifest.files.filter((file) => names.includes(file.name)),
    folder: files.folder && `${files.folder}/${prefix}`,
    parts: texts && !prefix ? { texts: await opened(files, "text/", texts.encoder) } : {},
  };
}

async function read(files, name, options) {
  try {
    return await files.read(name, options);
  } catch (cause) {
    throw cause instanceof OrtolanError ? cause : failure(cause, BundleFileError, `${name} cannot be read`);
  }
}

async function readManifest(files, prefix, sha256) {
  const name = `${prefix}manifest.json`;
  const bytes = await read(files, name, { sha256 });
  if (sha256) await checkFile(name, { size: bytes.length, sha256 }, bytes);
  let manifest;
  try {
    manifest = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (cause) {
    throw new ManifestError(`${name} is not JSON. Copy the bundle again.`, { cause });
  }
  const advice = "Export the bundle again, or install a newer version of this package.";
  check(manifest?.schema === SCHEMA, ManifestError, `${name}: expected schema ${SCHEMA}, got ${manifest?.schema}. ${advice}`);
  const { kind, graphs, states, tokens, host } = manifest;
  check(Object.hasOwn(ROLES, kind), ManifestError, `${name}: expected a kind of bundle, got ${kind}. ${advice}`);
  const media = manifest.images ? "images" : manifest.sounds && "sounds";
  check(!media, BundleKindError, `Expected a decoder of text, got one of ${media}. Run it with Python.`);
  check(manifest.hidden_states?.head !== null, BundleKindError, "Expected a model, got the head of one. Load the folder above it.");
  const missing = ROLES[kind].find((role) => typeof graphs?.[role]?.file !== "string");
  check(!missing, ManifestError, `Expected the graphs ${ROLES[kind].join(" and ")}. Export the checkpoint without --graphs split.`);
  checkNames(manifest);
  checkNumbers(manifest);
  for (const { name, input, output, dtype, update, shape } of states) {
    const isNamed = [name, input, output].every((one) => typeof one === "string");
    check(isNamed, ManifestError, `manifest.json: expected the name, input and output of a state, got ${shown(name)}, ${shown(input)} and ${shown(output)}. ${advice}`);
    const isShape = Array.isArray(shape) && shape.every((size) => SIZES.includes(size) || isWhole(size, 1));
    check(isShape, ManifestError, `manifest.json: expected sizes or ${SIZES.join(", ")} as the shape of ${name}, got ${shown(shape)}. ${advice}`);
    const isKnown = dtype === "float32" && ["append", "replace", "source"].includes(update);
    check(isKnown, BundleError, `The state ${name} is ${dtype}. Export the checkpoint with --device web.`);
  }
  const session = { config_entries: {}, ...host.session };
  for (const [key, pattern] of Object.entries(SETTINGS)) {
    const other = Object.entries(session[key]).find(([name, value]) => !pattern.test(name) || typeof value !== "string");
    check(!other, ManifestError, `manifest.json: host.session.${key} may not set ${other?.[0]}. ${advice}`);
  }
  return { ...manifest, tokens: { eos: [], suppressed: [], suppressed_first: [], ...tokens }, host: { ...host, session } };
}

/** Names of the files that a manifest refers to. */
function usedFiles({ kind, graphs, weights, tokenizer }) {
  const used = ROLES[kind].map((role) => graphs[role].file);
  return [...used, ...weights, tokenizer].filter((name) => name != null);
}

/** Names of the files of a certificate, which only decoders replay here. */
const certificateFiles = ({ kind, certificate }) =>
  kind === "decoder" && certificate ? [certificate, certificate.replace(/json$/, "bin")] : [];

/** Check that all files are listed, and that no name leads out of the bundle. */
function checkNames(manifest) {
  const names = manifest.files.map((file) => file.name);
  const outside = names.find((name) => !/^[\w.-]+$/.test(name) || /^\.+$/.test(name));
  check(outside === undefined, ManifestError, `manifest.json: expected names of files in the bundle's folder, got ${outside}.`);
  const missing = usedFiles(manifest).find((name) => !names.includes(name));
  check(missing === undefined, ManifestError, `manifest.json does not list ${missing}. Export the bundle again.`);
}

const isWhole = (value, least, most = 2 ** 40) => Number.isInteger(value) && value >= least && value <= most;

/** Check the sizes of a model, and that the ids of its tokens are below the vocabulary's. */
function checkNumbers(manifest) {
  const { vocab_size: size, tokens, source } = manifest;
  for (const [kind, owner] of [["model", manifest], [source?.kind, source]]) {
    const own = Object.hasOwn(RANGES, kind) ? RANGES[kind] : {};
    for (const [name, [least, most]] of Object.entries(own)) {
      check(isWhole(owner[name], least, most), ManifestError, `manifest.json: expected ${least} to ${most} for ${name}, got ${shown(owner[name])}. ${AGAIN}`);
    }
  }
  for (const [name, value] of Object.entries(tokens ?? {})) {
    const isList = LISTS.includes(name);
    const mayLack = !isList || name === "opening";
    const fits = Array.isArray(value) === isList && [value].flat().every((id) => isWhole(id, 0, size - 1) || (mayLack && id === null));
    check(fits, ManifestError, `manifest.json: expected ${isList ? "a list of ids" : "an id"} below ${size}, the vocabulary size, for tokens.${name}, got ${shown(value)}. ${AGAIN}`);
  }
}

/** Check that a graph has no options for onnxruntime: they can make it write files. */
function checkGraph(file, contents) {
  const text = new TextDecoder("latin1").decode(contents.get(file));
  check(!text.includes(OPTIONS), GraphError, `${file} has settings of onnxruntime (${OPTIONS}). Export the checkpoint again.`);
}

async function checkFile(name, { size, sha256 }, bytes) {
  check(bytes.length === size, BundleFileError, `${name}: expected ${size} bytes, got ${bytes.length}. ${AGAIN}`);
  check(globalThis.crypto?.subtle, DeviceError, "This page cannot check hashes. Open it with HTTPS, or from localhost.");
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const got = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  check(got === sha256, BundleFileError, `${name}: expected SHA-256 ${sha256}, got ${got}. ${AGAIN}`);
}
