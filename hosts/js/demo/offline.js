/** A service worker that keeps the page and its bundles, so that they open without a network after the first visit. */

import { bundles, files, version } from "./kept.js";
import { readBundle } from "./lib/bundle.js";
import { urlFiles } from "./lib/files.js";

const PREFIX = "ortolan-page-";
const CACHE = PREFIX + version;

/** Keep the page and manifests here; the library keeps the other files of bundles as it reads them. */
async function keep() {
  const cache = await caches.open(CACHE);
  await cache.addAll(["./", ...files, ...bundles.map((name) => `bundles/${name}/manifest.json`)]);
  for (const name of bundles) await readBundle(urlFiles(new URL(`bundles/${name}`, location.href)));
}

async function forget() {
  const others = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== CACHE);
  await Promise.all(others.map((name) => caches.delete(name)));
}

async function answer(request) {
  const kept = await (await caches.open(CACHE)).match(request, { ignoreSearch: true });
  return kept ?? fetch(request);
}

self.oninstall = (event) => event.waitUntil(keep());
self.onactivate = (event) => event.waitUntil(forget());
self.onfetch = (event) => event.respondWith(answer(event.request));
