/**
 * Writes the page with all that it needs into one folder, for any web server:
 * build.mjs OUT [TAB=BUNDLE ...], where a tab is chat, search, speech, images or translate.
 */

import { cp, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const [out, ...given] = process.argv.slice(2);
const bundles = given.map((pair) => pair.split(/=(.*)/s));
if (!out || out.startsWith("-") || bundles.some(([tab, bundle]) => !/^(chat|search|speech|images|translate)$/.test(tab) || !bundle)) {
  console.log("usage: build.mjs OUT [chat=BUNDLE] [search=BUNDLE] [speech=BUNDLE] [images=BUNDLE] [translate=BUNDLE]");
  process.exit(out === "--help" ? 0 : 2);
}
const at = (path) => fileURLToPath(new URL(path, import.meta.url));

/** Names of packages, which a browser cannot resolve, and their files. */
const PACKAGES = {
  "@huggingface/tokenizers": "dist/tokenizers.mjs",
  "@huggingface/jinja": "dist/index.js",
};
const RUNTIME = ["", ".asyncify"].flatMap((kind) => [
  kind ? "ort.webgpu.min.mjs" : "ort.wasm.min.mjs",
  `ort-wasm-simd-threaded${kind}.mjs`,
  `ort-wasm-simd-threaded${kind}.wasm`,
]);

await mkdir(join(out, "lib"), { recursive: true });
for (const name of ["index.html", "style.css", "page.js", "offline.js"]) await cp(at(name), join(out, name));
for (const name of RUNTIME) await cp(at(`../node_modules/onnxruntime-web/dist/${name}`), join(out, "lib", name));
for (const [name, file] of Object.entries(PACKAGES)) {
  await cp(at(`../node_modules/${name}/${file}`), join(out, "lib", `${name.split("/")[1]}.js`));
}
for (const name of (await readdir(at("../src"))).filter((file) => file.endsWith(".js"))) {
  let code = await readFile(at(`../src/${name}`), "utf8");
  for (const library of Object.keys(PACKAGES)) code = code.replace(`"${library}"`, `"./${library.split("/")[1]}.js"`);
  await writeFile(join(out, "lib", name), code);
}
for (const [tab, bundle] of bundles) await cp(bundle, join(out, "bundles", tab), { recursive: true });

// a new version makes browsers keep the page anew
const kept = { files: ["index.html", "style.css", "page.js", "kept.js", ...(await readdir(join(out, "lib"))).map((name) => `lib/${name}`)], bundles: bundles.map(([tab]) => tab), version: Date.now() };
const code = Object.entries(kept).map(([name, value]) => `export const ${name} = ${JSON.stringify(value)};\n`);
await writeFile(join(out, "kept.js"), code.join(""));
