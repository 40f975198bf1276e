/**
 * Drives the page in headless Chromium: browser.mjs CHROMIUM URL FOLDER. Prints one JSON object, and
 * writes pictures of the page to FOLDER.
 */

import { join } from "node:path";

import puppeteer from "puppeteer-core";

const [chromium, base, folder] = process.argv.slice(2);
const browser = await puppeteer.launch({
  executablePath: chromium,
  args: ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan", "--ignore-gpu-blocklist"],
  protocolTimeout: 280_000,
});
const results = {};

async function open(query, { width = 900, height = 700 } = {}) {
  const page = await browser.newPage();
  await page.setViewport({ width, height });
  page.on("pageerror", (error) => console.error(String(error)));
  await page.goto(`${base}/${query}`);
  return page;
}
const state = (page) => page.$eval("#state", (element) => element.textContent);
const settled = (page) =>
  page.waitForFunction(() => ["Ready", "Failed"].includes(document.getElementById("state").textContent), { timeout: 240_000 });
const picture = (page, name) => page.screenshot({ path: join(folder, `${name}.png`) });

async function answer(page, tokens) {
  await page.$eval("#tokens", (element, value) => (element.value = value), tokens);
  await page.$eval("#speed", (element) => (element.textContent = ""));
  await page.click("#send");
  const isDone = () => document.getElementById("speed").textContent.includes("tokens per second");
  await page.waitForFunction(isDone, { timeout: 240_000 });
  const text = await page.$eval("article:last-of-type span", (element) => element.textContent);
  return { text, speed: await page.$eval("#speed", (element) => element.textContent) };
}

try {
  const page = await open("index.html");
  await page.waitForFunction(() => document.getElementById("bar").value > 0.05).catch(() => {});
  await picture(page, "loading");
  await settled(page);
  results.isolated = await page.evaluate(() => crossOriginIsolated);
  results.state = await state(page);
  results.wasm = await answer(page, 32);
  await page.click("#verify");
  await page.waitForFunction(() => document.getElementById("model").textContent.includes("Certificate"), { timeout: 200_000 });
  results.certificate = await page.$eval("#model", (element) => element.textContent);
  await picture(page, "answer");
  await page.reload();
  await settled(page);
  results.again = (await answer(page, 8)).text;

  const narrow = await open("index.html", { width: 360, height: 640 });
  await settled(narrow);
  await answer(narrow, 16);
  results.overflow = await narrow.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  await picture(narrow, "narrow");

  const small = await open("index.html?bundle=int4");
  await settled(small);
  results.int4Error = await small.$eval("#error", (element) => element.textContent);
  results.int4 = (await answer(small, 8)).text;

  const gpu = await open("index.html?device=webgpu");
  await settled(gpu);
  results.gpuState = await state(gpu);
  results.gpuError = await gpu.$eval("#error", (element) => element.textContent);
  if (results.gpuState === "Ready") results.webgpu = await answer(gpu, 8);

  for (const [name, query] of [["missing", "index.html?bundle=nowhere"], ["broken", "index.html?bundle=broken"]]) {
    const failing = await open(query);
    await settled(failing);
    results[name] = await failing.$eval("#error", (element) => element.textContent);
    if (name === "broken") await picture(failing, "failing");
  }
} finally {
  console.log(JSON.stringify(results));
  await browser.close();
}
