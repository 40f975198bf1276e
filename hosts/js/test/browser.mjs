/**
 * Uses a page in headless Chromium: browser.mjs CHROMIUM PYTHON PAGE FOLDER SOUND RECORDING. SOUND is a file to
 * transcribe, and RECORDING what the microphone hears. Prints one JSON object, and writes pictures to FOLDER.
 */

import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as wait } from "node:timers/promises";

import { launched, served } from "./chromium.mjs";

const [chromium, python, built, folder, sound, recording] = process.argv.slice(2);
const { server, base } = await served(python, built);
const browser = await launched(chromium, {
  args: ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", `--use-file-for-fake-audio-capture=${recording}`],
});
const results = { tabs: {}, overflow: {} };
const SIZES = { wide: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };
const TIMEOUT = { timeout: 120_000 };

async function open(address, size = SIZES.wide) {
  const page = await browser.newPage();
  await page.setViewport(size);
  page.on("pageerror", (error) => console.error(String(error)));
  await page.goto(`${base}/${address}`);
  return page;
}
const text = (page, selector) => page.$eval(selector, (element) => element.textContent);
const settled = (page, tab) =>
  page.waitForFunction((id) => /^(Ready|Failed|Stopped)/.test(document.querySelector(`#${id} .state`).textContent), TIMEOUT, tab);
const picture = (page, name) => page.screenshot({ path: join(folder, `${name}.png`) });

async function answer(page, tokens) {
  await page.$eval("#chat [name=tokens]", (element, value) => (element.value = value), tokens);
  await page.click("#chat [name=go]");
  await settled(page, "chat");
  return { text: await text(page, "#chat article:last-of-type"), speed: await text(page, "#chat .speed") };
}

/** What is done in each tab before its button is pressed. */
const PREPARED = {
  chat: (page) => page.$eval("#chat [name=tokens]", (element) => (element.value = 24)),
  search: (page) => page.$eval("#search [name=query]", (element) => (element.value = "Opening hours of the museum")),
  speech: async (page) => (await page.$("#speech [name=sound]")).uploadFile(sound),
  async images(page) {
    const { x, y, width, height } = await (await page.$("#images canvas")).boundingBox();
    await page.mouse.move(x + 0.3 * width, y + 0.15 * height);
    await page.mouse.down();
    await page.mouse.move(x + 0.7 * width, y + 0.15 * height);
    await page.mouse.move(x + 0.4 * width, y + 0.85 * height, { steps: 5 });
    await page.mouse.up();
    await settled(page, "images");
  },
  translate: () => {},
};

async function useTabs(page, size) {
  for (const [tab, prepare] of Object.entries(PREPARED)) {
    await page.click(`[href="#${tab}"]`);
    await settled(page, tab);
    await prepare(page);
    await page.click(`#${tab} [name=go]`);
    await settled(page, tab);
    results.tabs[tab] = { output: await text(page, `#${tab} .output`), error: await text(page, `#${tab} .error`) };
    results.overflow[`${tab} ${size}`] = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    await picture(page, `${tab}-${size}`);
  }
}

async function record(page) {
  await page.click('[href="#speech"]');
  await page.$eval("#speech .output", (list) => list.replaceChildren());
  await page.click("#speech [name=record]");
  await wait(5000);
  await page.click("#speech [name=record]");
  await page.waitForFunction(() => document.querySelector("#speech .output").textContent, TIMEOUT);
  await settled(page, "speech");
  return text(page, "#speech .output");
}

/** Use the page again without a server. */
async function useOffline(page) {
  await page.bringToFront(); // a page behind others draws no frames, which clicks wait for
  await page.evaluate(async () => (await navigator.serviceWorker.ready).scope);
  server.kill();
  await once(server, "exit");
  await page.reload();
  results.tabs = {};
  await useTabs(page, "wide");
}

try {
  const page = await open("index.html");
  await page.waitForFunction(() => document.querySelector("#chat progress").value > 0.05).catch(() => {});
  await picture(page, "loading");
  await settled(page, "chat");
  results.isolated = await page.evaluate(() => crossOriginIsolated);
  results.chat = await answer(page, 32);
  await page.click("#chat [name=verify]");
  await settled(page, "chat");
  results.certificate = await text(page, "#chat .about");
  await page.reload();
  await settled(page, "chat");
  results.again = (await answer(page, 8)).text;
  await useTabs(page, "wide");
  results.recorded = await record(page);
  await useTabs(await open("index.html", SIZES.phone), "phone");

  const small = await open("index.html?chat=int4");
  await settled(small, "chat");
  results.int4 = (await answer(small, 8)).text;

  const gpu = await open("index.html?device=webgpu#images");
  await settled(gpu, "images");
  results.gpuError = await text(gpu, "#images .error");
  if (!results.gpuError) await PREPARED.images(gpu);
  results.webgpu = await text(gpu, "#images .output");

  for (const name of ["nowhere", "broken"]) {
    const failing = await open(`index.html?chat=${name}`);
    await settled(failing, "chat");
    results[name] = await text(failing, "#chat .error");
    if (name === "broken") await picture(failing, "failing");
  }
  await useOffline(page);
} finally {
  console.log(JSON.stringify(results));
  server.kill();
  await browser.close();
}
