/** Headless Chromium with a GPU in software, and a server of the pages that it shows. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";

import puppeteer from "puppeteer-core";

const SERVER = fileURLToPath(new URL("../demo/serve.py", import.meta.url));

const ARGUMENTS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan", "--ignore-gpu-blocklist"];

export function launched(executablePath, { args = [], ...options } = {}) {
  return puppeteer.launch({ executablePath, args: [...ARGUMENTS, ...args], protocolTimeout: 1_200_000, ...options });
}

/** The process of a server of a folder, on any free port, and its address. */
export async function served(python, folder) {
  const server = spawn(python, [SERVER, folder, "0"], { stdio: ["ignore", "pipe", "ignore"] });
  const ended = once(server, "exit").then(([code]) => Promise.reject(new Error(`${SERVER} ended with ${code}`)));
  const [line] = await Promise.race([once(server.stdout, "data"), ended]);
  ended.catch(() => {}); // it ends when it is no longer needed
  return { server, base: String(line).trim() };
}
