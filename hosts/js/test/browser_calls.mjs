/**
 * Repeats calls in headless Chromium: browser_calls.mjs CHROMIUM URL. The server has the library of a page in
 * src, this folder in test, and cases.json with the calls. Prints what each returned as JSON.
 */

import { launched } from "./chromium.mjs";

const [chromium, base] = process.argv.slice(2);
const browser = await launched(chromium);
try {
  const page = await browser.newPage();
  page.on("pageerror", (error) => console.error(String(error)));
  await page.goto(`${base}/cases.json`);
  const results = await page.evaluate(async () => {
    const { cases, tolerance, device } = await (await fetch("/cases.json")).json();
    const { load, urlFiles } = await import("/src/index.js");
    const { repeated } = await import("/test/calls.js");
    const ort = await import(`/src/ort.${device}.min.mjs`);
    ort.env.wasm.numThreads = 1;
    const results = [];
    const models = new Map();
    for (const call of cases) {
      const { bundle } = call;
      if (!models.has(bundle)) models.set(bundle, await load(urlFiles(`/${bundle}`), { ort, device }).catch((error) => error));
      const model = models.get(bundle);
      const isRefused = model instanceof Error;
      results.push(isRefused ? { differences: [], refused: [model.name, model.message] } : await repeated(model, call, tolerance));
    }
    return results;
  });
  console.log(JSON.stringify(results));
} finally {
  await browser.close();
}
