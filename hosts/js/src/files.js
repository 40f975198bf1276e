/** Where the files of a bundle come from: a URL, `File` objects, or a folder in Node. */

import { BundleError } from "./errors.js";

const CACHE = "ortolan-bundles";

/**
 * Files below a URL. Those that the manifest lists are kept in the browser's cache by their hash.
 *
 * @param {string | URL} base
 */
export function urlFiles(base) {
  const folder = new URL(String(base).replace(/\/?$/, "/"), globalThis.location?.href);
  return {
    async read(name, { sha256, onBytes = () => {} } = {}) {
      const url = new URL(name, folder);
      const cache = sha256 && globalThis.caches ? await caches.open(CACHE) : null;
      const key = new Request(new URL(`?sha256=${sha256}`, url));
      const kept = await cache?.match(key);
      const response = kept ?? (await fetched(url));
      const bytes = await collected(response, onBytes);
      if (cache && !kept) await cache.put(key, new Response(bytes)).catch(() => {}); // it may be full
      return bytes;
    },
    async forget(name, { sha256 }) {
      const cache = globalThis.caches ? await caches.open(CACHE) : null;
      await cache?.delete(new Request(new URL(`?sha256=${sha256}`, new URL(name, folder))));
    },
  };
}

/**
 * Files that the user chose.
 *
 * @param {Iterable<File>} files
 */
export function chosenFiles(files) {
  const byName = new Map(Array.from(files, (file) => [file.name, file]));
  return {
    async read(name, { onBytes = () => {} } = {}) {
      const file = byName.get(name);
      if (!file) throw new BundleError(`${name} is missing. Choose all files of the bundle.`);
      const bytes = new Uint8Array(await file.arrayBuffer());
      onBytes(bytes.length);
      return bytes;
    },
  };
}

/**
 * Files of a folder, in Node.
 *
 * @param {string} folder
 */
export function folderFiles(folder) {
  return {
    async read(name, { onBytes = () => {} } = {}) {
      const [{ readFile }, { join }] = await Promise.all([import("node:fs/promises"), import("node:path")]);
      try {
        const bytes = new Uint8Array(await readFile(join(folder, name)));
        onBytes(bytes.length);
        return bytes;
      } catch (cause) {
        throw new BundleError(`${name} cannot be read from ${folder} (${cause.code}).`, { cause });
      }
    },
    folder,
  };
}

async function fetched(url) {
  let response;
  try {
    response = await fetch(url);
  } catch (cause) {
    throw new BundleError(`${url} cannot be loaded: ${cause.message}. Check the address.`, { cause });
  }
  if (!response.ok) {
    throw new BundleError(`${url}: the server answered ${response.status}. Check the address.`);
  }
  return response;
}

async function collected(response, onBytes) {
  const parts = [];
  let size = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    size += value.length;
    onBytes(value.length);
  }
  const bytes = new Uint8Array(size);
  let offset = 0;
  for (const part of parts) {
    bytes.set(part, offset);
    offset += part.length;
  }
  return bytes;
}
