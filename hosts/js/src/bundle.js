/** A bundle: its manifest and its checked files. See docs/bundle-format.md. */

import { BundleError, DeviceError } from "./errors.js";

/** Versions of the format that are read. */
const SCHEMAS = [2, 3];

const TEXT = ["tokenizer_config.json", "chat_template.jinja", "generation_config.json"];

/**
 * Read the files of a bundle, and check their sizes and hashes.
 *
 * @param files from `urlFiles`, `chosenFiles` or `folderFiles`
 * @param {object} options
 * @param {(loaded: number, total: number, name: string) => void} options.onProgress
 * @returns {Promise<{manifest: object, contents: Map<string, Uint8Array>}>}
 */
export async function readBundle(files, { onProgress = () => {} } = {}) {
  const manifest = await readManifest(files);
  const names = [...usedFiles(manifest), ...TEXT];
  const listed = manifest.files.filter((file) => names.includes(file.name));
  const total = listed.reduce((sum, file) => sum + file.size, 0);
  let loaded = 0;
  const contents = new Map();
  for (const file of listed) {
    const onBytes = (count) => onProgress((loaded += count), total, file.name);
    const bytes = await files.read(file.name, { sha256: file.sha256, onBytes });
    try {
      await check(file, bytes);
    } catch (error) {
      await files.forget?.(file.name, file);
      throw error;
    }
    contents.set(file.name, bytes);
  }
  return { manifest, contents };
}

async function readManifest(files) {
  const bytes = await files.read("manifest.json");
  let manifest;
  try {
    manifest = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (cause) {
    throw new BundleError("manifest.json is not JSON. Copy the bundle again.", { cause });
  }
  if (!SCHEMAS.includes(manifest?.schema)) {
    throw new BundleError(
      `manifest.json: expected schema ${SCHEMAS.join(" or ")}, got ${manifest?.schema}. ` +
        "Export the bundle again, or install a newer version of this package.",
    );
  }
  if (manifest.kind !== "decoder") {
    throw new BundleError(`Expected a decoder, got an ${manifest.kind}. Run it with Python.`);
  }
  if (!manifest.graphs?.decoder) {
    throw new BundleError("Expected one graph. Export the checkpoint without --graphs split.");
  }
  checkFiles(manifest);
  for (const state of manifest.states) {
    if (state.dtype !== "float32" || !["append", "replace"].includes(state.update)) {
      throw new BundleError(
        `The state ${state.name} is ${state.dtype}. Export the checkpoint with --device web.`,
      );
    }
  }
  return manifest;
}

/** Names of the files that a manifest refers to. */
function usedFiles({ graphs, weights, tokenizer, certificate }) {
  const data = certificate?.endsWith(".json") ? certificate.replace(/json$/, "bin") : null;
  return [graphs.decoder.file, ...weights, tokenizer, certificate, data].filter((name) => name != null);
}

/** Check that all files are listed, and that no name leads out of the bundle. */
function checkFiles(manifest) {
  const names = manifest.files.map((file) => file.name);
  const wrong = names.find((name) => !/^[\w.-]+$/.test(name) || /^\.+$/.test(name));
  if (wrong !== undefined) {
    throw new BundleError(`manifest.json: expected names of files in the bundle's folder, got ${wrong}.`);
  }
  const missing = usedFiles(manifest).find((name) => !names.includes(name));
  if (missing !== undefined) {
    throw new BundleError(`manifest.json does not list ${missing}. Export the bundle again.`);
  }
}

async function check(file, bytes) {
  const advice = "The bundle is incomplete or was changed: copy it again, or export it again.";
  if (bytes.length !== file.size) {
    throw new BundleError(`${file.name}: expected ${file.size} bytes, got ${bytes.length}. ${advice}`);
  }
  if (!globalThis.crypto?.subtle) {
    throw new DeviceError("This page cannot check hashes. Open it with HTTPS, or from localhost.");
  }
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const got = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (got !== file.sha256) {
    throw new BundleError(`${file.name}: expected SHA-256 ${file.sha256}, got ${got}. ${advice}`);
  }
}
