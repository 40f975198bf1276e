/** A bundle: its manifest and its checked files. See docs/bundle-format.md. */

import { check, failure } from "./checks.js";
import { BundleError, BundleFileError, BundleKindError, DeviceError, GraphError, ManifestError, OrtolanError } from "./errors.js";

/** Version of the format. */
const SCHEMA = 1;

/** Graphs of each kind of bundle. Others are for maps of attention, which this package leaves out. */
const ROLES = { decoder: ["decoder"], encoder: ["encoder"], "encoder-decoder": ["encoder", "decoder"] };

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
      const onBytes = (count) => onProgress((loaded += count), total, name);
      const bytes = await read(files, name, { sha256: file.sha256, onBytes });
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
  const version = `expected schema ${SCHEMA}, got ${manifest?.schema}`;
  const advice = "Export the bundle again, or install a newer version of this package.";
  check(manifest?.schema === SCHEMA, ManifestError, `${name}: ${version}. ${advice}`);
  const { kind, graphs, states, tokens, host } = manifest;
  check(Object.hasOwn(ROLES, kind), ManifestError, `${name}: expected a kind of bundle, got ${kind}. ${advice}`);
  const media = manifest.images ? "images" : manifest.sounds && "sounds";
  check(!media, BundleKindError, `Expected a decoder of text, got one of ${media}. Run it with Python.`);
  check(manifest.hidden_states?.head !== null, BundleKindError, "Expected a model, got the head of one. Load the folder above it.");
  const isWhole = ROLES[kind].every((role) => graphs?.[role] !== undefined);
  const one = `Expected the graphs ${ROLES[kind].join(" and ")}. Export the checkpoint without --graphs split.`;
  check(isWhole, ManifestError, one);
  checkNames(manifest);
  for (const { name, dtype, update } of states) {
    const isKnown = dtype === "float32" && ["append", "replace", "source"].includes(update);
    check(isKnown, BundleError, `The state ${name} is ${dtype}. Export the checkpoint with --device web.`);
  }
  const session = { config_entries: {}, ...host.session };
  for (const [key, pattern] of Object.entries(SETTINGS)) {
    const other = Object.entries(session[key]).find(([name, value]) => {
      return !pattern.test(name) || typeof value !== "string";
    });
    const refused = `manifest.json: host.session.${key} may not set ${other?.[0]}. ${advice}`;
    check(other === undefined, ManifestError, refused);
  }
  return { ...manifest, tokens: { eos: [], suppressed: [], suppressed_first: [], ...tokens }, host: { ...host, session } };
}

/** Names of the files that a manifest refers to. */
function usedFiles({ kind, graphs, weights, tokenizer }) {
  const used = ROLES[kind].map((role) => graphs[role].file);
  return [...used, ...weights, tokenizer].filter((name) => name != null);
}

/** Names of the files of a certificate, which only decoders replay here. */
const certificateFiles = ({ kind, certificate }) => {
  return kind === "decoder" && certificate ? [certificate, certificate.replace(/json$/, "bin")] : [];
};

/** Check that all files are listed, and that no name leads out of the bundle. */
function checkNames(manifest) {
  const names = manifest.files.map((file) => file.name);
  const outside = names.find((name) => !/^[\w.-]+$/.test(name) || /^\.+$/.test(name));
  const inside = "manifest.json: expected names of files in the bundle's folder";
  check(outside === undefined, ManifestError, `${inside}, got ${outside}.`);
  const missing = usedFiles(manifest).find((name) => !names.includes(name));
  const isListed = missing === undefined;
  check(isListed, ManifestError, `manifest.json does not list ${missing}. Export the bundle again.`);
}

/** Check that a graph has no options for onnxruntime: they can make it write files. */
function checkGraph(file, contents) {
  const text = new TextDecoder("latin1").decode(contents.get(file));
  const message = `${file} has settings of onnxruntime (${OPTIONS}). Export the checkpoint again.`;
  check(!text.includes(OPTIONS), GraphError, message);
}

async function checkFile(name, { size, sha256 }, bytes) {
  const cut = `${name}: expected ${size} bytes, got ${bytes.length}. ${AGAIN}`;
  check(bytes.length === size, BundleFileError, cut);
  const secure = "This page cannot check hashes. Open it with HTTPS, or from localhost.";
  check(globalThis.crypto?.subtle, DeviceError, secure);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const got = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  check(got === sha256, BundleFileError, `${name}: expected SHA-256 ${sha256}, got ${got}. ${AGAIN}`);
}
