/** Where the files of a bundle come from: a URL, `File` objects, or a folder in Node. */

import { BundleError, check } from "./errors.js";

const CACHE = "ortolan-bundles";

export function urlFiles(base) {
  const folder = new URL(String(base).replace(/\/?$/, "/"), globalThis.location?.href);
  const openCache = async () => (globalThis.caches ? caches.open(CACHE) : null);
  const keyOf = (name, sha256) => new Request(new URL(`?sha256=${sha256}`, new URL(name, folder)));
  return {
    async read(name, { sha256, onBytes } = {}) {
      const cache = sha256 ? await openCache() : null;
      const kept = await cache?.match(keyOf(name, sha256));
      const bytes = await collected(kept ?? (await fetched(new URL(name, folder))), onBytes);
      // the cache may be full
      if (cache && !kept) await cache.put(keyOf(name, sha256), new Response(bytes)).catch(() => {});
      return bytes;
    },
    async forget(name, { sha256 }) {
      await (await openCache())?.delete(keyOf(name, sha256));
    },
  };
}

export function chosenFiles(files) {
  const byName = new Map(Array.from(files, (file) => [file.name, file]));
  return {
    async read(name) {
      check(byName.has(name), BundleError, `${name} is missing. Choose all files of the bundle.`);
      return new Uint8Array(await byName.get(name).arrayBuffer());
    },
  };
}

export function folderFiles(folder) {
  return {
    async read(name) {
      const { readFile } = await import("node:fs/promises");
      return new Uint8Array(await readFile(`${folder}/${name}`));
    },
    folder,
  };
}

async function fetched(url) {
  const response = await fetch(url).catch((cause) => {
    throw new BundleError(`${url} cannot be loaded: ${cause.message}. Check the address.`, { cause });
  });
  check(response.ok, BundleError, `${url}: the server answered ${response.status}. Check the address.`);
  return response;
}

/** The bytes of a response; `onBytes` gets the number of each part. */
async function collected(response, onBytes) {
  const transform = (part, controller) => {
    onBytes?.(part.length);
    controller.enqueue(part);
  };
  return new Uint8Array(await new Response(response.body.pipeThrough(new TransformStream({ transform }))).arrayBuffer());
}
