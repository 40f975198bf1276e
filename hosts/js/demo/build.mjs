/** Writes the page with all that it needs into one folder, for any web server: build.mjs OUT [BUNDLE] */

import { cp, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const [out, bundle] = process.argv.slice(2);
if (!out || out.startsWith("-")) {
  console.log("usage: build.mjs OUT [BUNDLE]");
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
for (const name of ["index.html", "style.css", "page.js"]) await cp(at(name), join(out, name));
for (const name of RUNTIME) await cp(at(`../node_modules/onnxruntime-web/dist/${name}`), join(out, "lib", name));
for (const [name, file] of Object.entries(PACKAGES)) {
  await cp(at(`../node_modules/${name}/${file}`), join(out, "lib", `${name.split("/")[1]}.js`));
}
for (const name of (await readdir(at("../src"))).filter((file) => file.endsWith(".js"))) {
  let code = await readFile(at(`../src/${name}`), "utf8");
  for (const library of Object.keys(PACKAGES)) code = code.replace(`"${library}"`, `"./${library.split("/")[1]}.js"`);
  await writeFile(join(out, "lib", name), code);
}
if (bundle) await cp(bundle, join(out, "bundle"), { recursive: true });
