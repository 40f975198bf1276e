/** A bundle: its manifest and its checked files. See docs/bundle-format.md. */

import { check, failure } from "./checks.js";
import { BundleError, DeviceError, OrtolanError } from "./errors.js";

/** Version of the format. */
const SCHEMA = 1;

/** Settings that select kernels. Others could write files or change the process. */
const SETTINGS = {
  environment: /^ORT_GQA_DISABLE_FLASH_ATTENTION$/,
  config_entries: /^mlas\.\w+$/,
};

/** Metadata of a graph that onnxruntime takes options from if ORT_LOAD_CONFIG_FROM_MODEL is set. */
const OPTIONS = "ort_config";

const TEXT = ["tokenizer_config.json", "chat_template.jinja", "generation_config.json"];

/** Read the files of a bundle and check their sizes and hashes; `contents` has the bytes by name. */
export async function readBundle(files, { onProgress = () => {} } = {}) {
  const manifest = await readManifest(files);
  const names = [...usedFiles(manifest), ...TEXT];
  const listed = manifest.files.filter((file) => names.includes(file.name));
  const total = listed.reduce((sum, file) => sum + file.size, 0);
  let loaded = 0;
  const contents = new Map();
  for (const file of listed) {
    const onBytes = (count) => onProgress((loaded += count), total, file.name);
    const bytes = await read(files, file.name, { sha256: file.sha256, onBytes });
    await checkFile(file, bytes).catch(async (error) => {
      await files.forget?.(file.name, file);
      throw error;
    });
    contents.set(file.name, bytes);
  }
  checkGraph(manifest.graphs.decoder.file, contents);
  return { manifest, contents };
}

async function read(files, name, options) {
  try {
    return await files.read(name, options);
  } catch (cause) {
    throw cause instanceof OrtolanError ? cause : failure(cause, BundleError, `${name} cannot be read`);
  }
}

async function readManifest(files) {
  const bytes = await read(files, "manifest.json");
  let manifest;
  try {
    manifest = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (cause) {
    throw new BundleError("manifest.json is not JSON. Copy the bundle again.", { cause });
  }
  const version = `expected schema ${SCHEMA}, got ${manifest?.schema}`;
  const advice = "Export the bundle again, or install a newer version of this package.";
  check(manifest?.schema === SCHEMA, BundleError, `manifest.json: ${version}. ${advice}`);
  const { kind, graphs, states, tokens, host } = manifest;
  check(kind === "decoder", BundleError, `Expected a decoder, got an ${kind}. Run it with Python.`);
  check(!manifest.images, BundleError, "Expected a decoder of text, got one of images. Run it with Python.");
  const hasDecoder = graphs?.decoder !== undefined;
  check(hasDecoder, BundleError, "Expected one graph. Export the checkpoint without --graphs split.");
  checkNames(manifest);
  for (const { name, dtype, update } of states) {
    const isKnown = dtype === "float32" && ["append", "replace"].includes(update);
    check(isKnown, BundleError, `The state ${name} is ${dtype}. Export the checkpoint with --device web.`);
  }
  const session = { config_entries: {}, ...host.session };
  for (const [key, pattern] of Object.entries(SETTINGS)) {
    const other = Object.entries(session[key]).find(([name, value]) => {
      return !pattern.test(name) || typeof value !== "string";
    });
    const refused = `manifest.json: host.session.${key} may not set ${other?.[0]}. ${advice}`;
    check(other === undefined, BundleError, refused);
  }
  return { ...manifest, tokens: { eos: [], suppressed: [], ...tokens }, host: { ...host, session } };
}

/** Names of the files that a manifest refers to. */
function usedFiles({ graphs, weights, tokenizer, certificate }) {
  const data = certificate?.endsWith(".json") ? certificate.replace(/json$/, "bin") : null;
  return [graphs.decoder.file, ...weights, tokenizer, certificate, data].filter((name) => name != null);
}

/** Check that all files are listed, and that no name leads out of the bundle. */
function checkNames(manifest) {
  const names = manifest.files.map((file) => file.name);
  const outside = names.find((name) => !/^[\w.-]+$/.test(name) || /^\.+$/.test(name));
  const inside = "manifest.json: expected names of files in the bundle's folder";
  check(outside === undefined, BundleError, `${inside}, got ${outside}.`);
  const missing = usedFiles(manifest).find((name) => !names.includes(name));
  const isListed = missing === undefined;
  check(isListed, BundleError, `manifest.json does not list ${missing}. Export the bundle again.`);
}

/** Check that a graph has no options for onnxruntime: they can make it write files. */
function checkGraph(file, contents) {
  const text = new TextDecoder("latin1").decode(contents.get(file));
  const message = `${file} has settings of onnxruntime (${OPTIONS}). Export the checkpoint again.`;
  check(!text.includes(OPTIONS), BundleError, message);
}

async function checkFile({ name, size, sha256 }, bytes) {
  const advice = "The bundle is incomplete or was changed: copy it again, or export it again.";
  const cut = `${name}: expected ${size} bytes, got ${bytes.length}. ${advice}`;
  check(bytes.length === size, BundleError, cut);
  const secure = "This page cannot check hashes. Open it with HTTPS, or from localhost.";
  check(globalThis.crypto?.subtle, DeviceError, secure);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const got = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  check(got === sha256, BundleError, `${name}: expected SHA-256 ${sha256}, got ${got}. ${advice}`);
}
