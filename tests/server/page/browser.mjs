/**
 * Drives the page in headless Chromium: browser.mjs CHROMIUM URL KEYED_URL KEY FOLDER, in a folder where
 * puppeteer-core is installed. Prints one JSON object, and writes pictures to FOLDER.
 */

import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

import { gateway } from "./gateway.mjs";

const found = createRequire(join(process.cwd(), "package.json")).resolve("puppeteer-core");
const { default: puppeteer } = await import(pathToFileURL(found));

const [chromium, target, keyed, key, folder] = process.argv.slice(2);
const seen = {};
const results = { seen, requests: [], problems: [] };
const served = await gateway(target, seen);
const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox"] });

async function newPage() {
  const page = await browser.newPage();
  page.setDefaultTimeout(120_000); // machines under load
  return page;
}

async function open(address = served.url, { width = 1000, height = 700, scheme = "light" } = {}) {
  const page = await newPage();
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  page.on("request", (request) => results.requests.push(request.url()));
  page.on("pageerror", (error) => results.problems.push(String(error)));
  page.on("console", (message) => results.problems.push(message.text()));
  await page.goto(address);
  return page;
}

async function ready(...options) {
  const page = await open(...options);
  await page.waitForSelector("#model:not(:disabled)");
  return page;
}

const text = (page, selector) => page.$$eval(selector, (all) => all.map((element) => element.textContent));
const visible = (page, selector) => page.$$eval(selector, (all) => all.filter((element) => element.checkVisibility()).map((element) => element.textContent));
const focused = (page) => page.evaluate(() => document.activeElement.id || document.activeElement.className);
const idle = (page) => page.waitForSelector("#stop[hidden]");
const picture = (page, name) => page.screenshot({ path: join(folder, `${name}.png`) });
const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
const hint = (page) => page.$$eval("#hint:not([hidden]) div", (rows) => rows.map((row) => ({
  text: row.children[0].textContent, share: row.children[2].textContent, isChosen: row.className === "chosen",
})));

async function ask(page, question) {
  await page.type("#prompt", question);
  await page.keyboard.press("Enter");
}

async function answered(page, question) {
  await ask(page, question);
  await idle(page);
  return { content: await text(page, ".turn:last-of-type .content"), note: await visible(page, ".turn:last-of-type .note") };
}

const cases = {
  async live() {
    const page = await ready();
    await picture(page, "empty");
    const certificate = await text(page, "#quality, #verdict, #figures > *");
    await page.type("#system", "Be brief.");
    await page.type("#temperature", "0");
    await page.type("#limit", "12");
    const answer = await answered(page, "Hello.");
    const tokens = await page.$$(".token");
    const hints = [];
    for (const token of tokens) {
      await token.hover();
      hints.push(await hint(page));
    }
    await picture(page, "hover");
    const second = await answered(page, "And?");
    const figures = await text(page, ".figures");
    await page.click(".turn:last-of-type .again");
    await idle(page);
    const again = await text(page, ".turn:last-of-type .content");
    const turns = await text(page, ".turn");
    await page.click("#new");
    const models = await page.$$eval("#model option", (all) => all.map(({ value, disabled }) => ({ value, disabled })));
    return { certificate, answer, hints, second, figures, again, turns: turns.length, left: (await text(page, ".turn")).length, models };
  },

  async stop() {
    const page = await ready();
    await ask(page, "slow");
    await page.waitForFunction(() => document.querySelectorAll(".token").length > 3);
    await (await page.$(".token")).hover();
    const during = { hint: await hint(page), buttons: await visible(page, "button"), busy: await text(page, "[aria-busy=true]") };
    await picture(page, "streaming");
    await page.click("#stop");
    await idle(page);
    const content = await text(page, ".content");
    const note = await visible(page, ".note");
    await ask(page, "fences");
    await idle(page);
    return { during, content, note, following: JSON.parse(seen.fences.body).messages };
  },

  async keyboard() {
    const page = await ready();
    const start = await focused(page);
    await page.keyboard.type("sl");
    await page.keyboard.down("Shift");
    await page.keyboard.press("Enter");
    await page.keyboard.up("Shift");
    const lines = await page.$eval("#prompt", ({ value }) => value);
    for (let count = 0; count < 3; count++) await page.keyboard.press("Backspace");
    await page.keyboard.type("slow");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelectorAll(".token").length > 3);
    await page.keyboard.press("Escape");
    await idle(page);
    const walk = [];
    await page.focus("#model");
    for (let count = 0; count < 10; count++) {
      await page.keyboard.press("Tab");
      walk.push(await focused(page));
      if (walk.at(-1) !== "token") continue;
      const first = await page.evaluate(() => document.activeElement.textContent);
      await page.keyboard.press("ArrowRight");
      const second = await page.evaluate(() => document.activeElement.textContent);
      results.tokens = { first, second, hint: await hint(page), stops: (await page.$$(".token[tabindex]")).length };
      await page.keyboard.press("Escape");
      results.tokens.closed = await hint(page);
    }
    return { start, lines, walk, stopped: await visible(page, ".note") };
  },

  async text() {
    const page = await ready();
    const blocks = () => page.$$eval(".turn:last-of-type .content > *", (all) => all.map((block) => [block.tagName, block.dataset.language ?? "", block.textContent]));
    await ask(page, "html");
    await idle(page);
    const html = {
      hacked: await page.evaluate(() => window.hacked ?? 0),
      elements: (await page.$$(".turn :is(img, b, script)")).length,
      blocks: await blocks(), reasoning: await text(page, ".reasoning .blocks"), calls: await text(page, ".calls pre"),
    };
    await ask(page, "fences");
    await idle(page);
    const fences = await blocks();
    await browser.defaultBrowserContext().overridePermissions(new URL(served.url).origin, ["clipboard-read", "clipboard-sanitized-write"]);
    await page.click(".turn:last-of-type .copy");
    const copied = await page.evaluate(() => navigator.clipboard.readText());
    const tokens = () => page.$$eval(".turn:last-of-type .token", (all) => all.map(({ textContent }) => textContent));
    await ask(page, "thinking");
    await idle(page);
    const thinking = await tokens();
    const isOpen = await page.$eval(".turn:last-of-type details", (element) => element.open);
    const last = await page.$$(".turn:last-of-type .content .token");
    await last.at(-1).hover();
    const missing = await hint(page);
    await last.at(-2).hover();
    const halves = await hint(page);
    await page.click("#shade");
    const bands = await page.$$eval(".shaded .turn:last-of-type .content .token", (all) => all.map(({ dataset }) => dataset.band));
    return { html, fences, copied, thinking, isOpen, missing, halves, bands };
  },

  async markdown() {
    const page = await ready(undefined, { width: 1000, height: 1300 });
    await browser.defaultBrowserContext().overridePermissions(new URL(served.url).origin, ["clipboard-read", "clipboard-sanitized-write"]);
    const shown = () => page.$eval(".turn:last-of-type .content", (content) => {
      const copy = content.cloneNode(true);
      for (const token of copy.querySelectorAll(".token")) token.replaceWith(token.textContent);
      copy.normalize();
      return copy.innerHTML;
    });
    const all = [];
    for (const question of ["sample by 1", "sample by 7", "sample whole", "sample"]) {
      await answered(page, question);
      all.push(await shown());
    }
    await page.click(".turn:last-of-type .copy");
    const copied = await page.evaluate(() => navigator.clipboard.readText());
    const cell = await page.$(".turn:last-of-type td code .token");
    await cell.hover();
    const hints = [await hint(page)];
    await picture(page, "markdown");
    await page.focus(".turn:last-of-type .token");
    await page.keyboard.press("End");
    for (let count = 0; count < 2; count++) await page.keyboard.press("ArrowLeft");
    hints.push(await hint(page));
    const before = results.requests.length;
    await answered(page, "attacks");
    const attacks = await page.evaluate(() => ({
      hacked: window.hacked ?? 0,
      elements: document.querySelectorAll(".turn:last-of-type :is(img, script, svg, iframe, style, form, h1, .content button)").length,
      links: [...document.querySelectorAll(".turn:last-of-type .content a")].map(({ href, rel, target }) => [href, rel, target]),
      events: [...document.querySelectorAll(".turn *")].flatMap((element) => element.getAttributeNames()).filter((name) => name.startsWith("on") || name === "style"),
    }));
    return { all, copied, hints, attacks, requests: results.requests.length - before };
  },

  async nodes() {
    const page = await ready();
    await page.evaluate(() => {
      window.counts = [];
      new MutationObserver((records) => window.counts.push(records.filter(({ target }) => target.closest?.(".content")).reduce((sum, { removedNodes }) => sum + removedNodes.length, 0)))
        .observe(document.getElementById("log"), { childList: true, subtree: true });
    });
    await answered(page, "sample by 7");
    return page.evaluate(() => window.counts.reduce((sum, count) => sum + count, 0));
  },

  async reload() {
    const page = await ready();
    const reloaded = async () => {
      await page.reload();
      await page.waitForSelector("#model:not(:disabled)");
    };
    const state = async () => ({
      turns: await text(page, ".question"),
      html: await page.$$eval(".content", (all) => all.map(({ innerHTML }) => innerHTML.replace(/ (tabindex|aria-describedby)="[^"]*"/g, ""))),
      figures: await text(page, ".turn .figures"),
      notes: await visible(page, ".note"),
      values: await page.$$eval("#model, #system, #temperature, #limit, #prompt", (all) => all.map(({ value }) => value)),
      isShaded: await page.$eval("#log", ({ className }) => className),
    });
    await page.select("#model", "int4");
    await page.type("#system", "Be brief.");
    await page.type("#temperature", "0.5");
    await page.click("#shade");
    await answered(page, "thinking");
    await answered(page, "sample");
    await page.type("#prompt", "A draft");
    const states = [await state()];
    await reloaded();
    states.push(await state());
    await (await page.$(".content td .token")).hover();
    const shown = await hint(page);
    await page.$eval("#prompt", (prompt) => (prompt.value = ""));
    await ask(page, "slow");
    await page.waitForFunction(() => document.querySelectorAll(".turn:last-of-type .token").length > 3);
    await reloaded();
    const cut = { notes: await visible(page, ".note"), busy: (await text(page, "[aria-busy=true]")).length, content: (await text(page, ".content")).at(-1) };
    await answered(page, "fences");
    const following = JSON.parse(seen.fences.body);
    const fill = () => page.evaluate(() => {
      for (let size = 2 ** 22; size >= 1; size /= 2) {
        try {
          for (let count = 0; count < 8; count++) sessionStorage.setItem(`filler${size}-${count}`, "x".repeat(size));
        } catch { /* full */ }
      }
    });
    await fill();
    await answered(page, "sample by 7");
    const texts = await text(page, ".content");
    await reloaded();
    const tight = { isSame: String(await text(page, ".content")) === String(texts), tokens: (await page.$$(".turn:not(:last-of-type) .token")).length };
    await page.evaluate(() => sessionStorage.removeItem("ortolan-chat"));
    await fill();
    await answered(page, "fences");
    const full = await text(page, "#status");
    await reloaded();
    const lost = await text(page, ".question");
    await page.evaluate(() => Object.keys(sessionStorage).filter((name) => name.startsWith("filler")).forEach((name) => sessionStorage.removeItem(name)));
    await answered(page, "fences");
    await page.click("#new");
    await reloaded();
    const left = await text(page, ".question");
    await page.evaluate(() => addEventListener("pagehide", () => sessionStorage.setItem("ortolan-chat", '{"settings": {}, "turns": [{"question": "?"}]}')));
    await reloaded();
    return { states, shown, cut, following, tight, full, lost, left, broken: await text(page, ".question") };
  },

  async errors() {
    const page = await ready();
    const errors = {};
    for (const question of ["context", "invalid", "crash", "gone", "broken", "failing"]) {
      await ask(page, question);
      await page.waitForSelector(".error");
      await idle(page);
      errors[question] = await text(page, ".error > :not(button)");
      if (question === "context") await picture(page, "error");
    }
    const kept = await text(page, ".content");
    const shown = await text(page, ".question");
    const hacked = await page.evaluate(() => window.hacked ?? 0);
    await ask(page, "full");
    const status = await page.waitForFunction(() => document.getElementById("status").textContent.match(/Next try.*/)?.[0]);
    await page.waitForSelector(".turn:last-of-type .content");
    await idle(page);
    await ask(page, "crash");
    await page.waitForSelector(".error");
    const calls = seen.crash.calls;
    await page.click(".error button");
    await page.waitForFunction(() => !document.getElementById("stop").checkVisibility());
    return { errors, kept, shown, hacked, status: await status.jsonValue(), again: seen.crash.calls - calls, alone: (await text(page, ".error")).length };
  },

  async key() {
    const page = await open(`${keyed}/`);
    await page.waitForSelector("#key-dialog[open]");
    await page.keyboard.type("wrong");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#key-error:not([hidden])");
    await picture(page, "key");
    await page.keyboard.press("Escape");
    await page.waitForSelector(".error");
    const cancelled = await text(page, ".error strong");
    await page.click(".error button");
    await page.waitForSelector("#key-dialog[open]");
    await page.type("#key", key);
    await page.keyboard.press("Enter");
    await page.waitForSelector("#model:not(:disabled)");
    const answer = await answered(page, "Hello.");
    await page.reload();
    await page.waitForSelector("#model:not(:disabled)");
    return { cancelled, answer, kept: await page.evaluate(() => sessionStorage.getItem("ortolan-chat")), stored: await page.evaluate(() => [sessionStorage.length, localStorage.length]) };
  },

  async models() {
    const card = { id: "draft", kind: "decoder", precision: "int4", context_length: 64, quality: null, unverified: "no <b>device</b>" };
    const encoder = { ...card, id: "vectors", kind: "encoder", unverified: null };
    const answers = [null, [encoder], [encoder, card]];
    const page = await newPage();
    await page.setViewport({ width: 1000, height: 700 });
    await page.setRequestInterception(true);
    page.on("request", (request) => {
      if (!request.url().endsWith("/v1/models")) return request.continue();
      const data = answers.shift();
      return data ? request.respond({ contentType: "application/json", body: JSON.stringify({ data }) }) : request.abort();
    });
    const shown = async () => ({ welcome: await text(page, "#welcome"), certificate: await visible(page, "#quality, #verdict, dd") });
    await page.goto(served.url);
    await page.waitForSelector(".error");
    const gone = [await text(page, ".error strong"), await shown()];
    await page.click(".error button");
    await page.waitForFunction(() => document.getElementById("model").options.length === 1);
    await page.type("#prompt", "Hello");
    const none = [await page.$eval("#send", (button) => button.disabled), await shown()];
    await page.reload();
    await page.waitForSelector("#model:not(:disabled)");
    const options = await page.$$eval("#model option", (all) => all.map(({ label, disabled, selected }) => [label, disabled, selected]));
    return { gone, none, draft: await shown(), options };
  },

  async narrow() {
    const page = await ready(undefined, { width: 360, height: 640, scheme: "dark" });
    const widths = [await overflow(page)];
    await answered(page, "long");
    widths.push(await overflow(page));
    await (await page.$(".token")).hover();
    const box = await page.$eval("#hint", (element) => element.getBoundingClientRect().toJSON());
    widths.push(await overflow(page));
    await picture(page, "narrow");
    await answered(page, "sample");
    widths.push(await overflow(page));
    await picture(page, "narrow-markdown");
    const before = await visible(page, "#settings");
    await page.click("#toggle");
    await page.type("#temperature", "0.5");
    widths.push(await overflow(page));
    await picture(page, "narrow-settings");
    await page.click("#toggle");
    const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await (await ready()).evaluate(() => getComputedStyle(document.body).backgroundColor);
    return { widths, box, before, dark, light };
  },
};

try {
  for (const [name, run] of Object.entries(cases)) results[name] = await run();
} finally {
  console.log(JSON.stringify(results));
  await browser.close();
  served.close();
}
