/** Opens a page in headless Chromium and prints its text once its title is "done": open_page.mjs CHROMIUM URL. */

import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const found = createRequire(join(process.cwd(), "package.json")).resolve("puppeteer-core");
const { default: puppeteer } = await import(pathToFileURL(found));
const [chromium, address] = process.argv.slice(2);
const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  page.on("console", (message) => console.error(message.text()));
  await page.goto(address);
  await page.waitForFunction(() => document.title === "done", { timeout: 120_000 });
  console.log(await page.$eval("#out", (element) => element.textContent));
} finally {
  await browser.close();
}
