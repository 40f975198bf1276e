/**
 * A page that chats with a bundle, or continues a prompt if it has no chat template.
 *
 * Parameters of the address: bundle (its URL), device (wasm or webgpu).
 */

/** Builds of ONNX Runtime: that for WebGPU has fewer kernels on the CPU. */
const BUILDS = { wasm: "lib/ort.wasm.min.mjs", webgpu: "lib/ort.webgpu.min.mjs" };

const parameters = new URLSearchParams(location.search);
const at = (id) => document.getElementById(id);
const worker = new Worker("lib/worker.js", { type: "module" });

let messages = [];
let hasChat = false;
let article;
let started;
let count;

const size = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

/** Send a request to the worker; resolves to its result. */
function ask(kind, request = {}) {
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => {
      if (data.kind === "done") resolve(data.result);
      else if (data.kind === "failed") reject(data);
      else if (data.kind === "loading") progress(data);
      else piece(data.piece);
    };
    worker.onerror = (event) => reject({ name: "Error", message: event.message });
    worker.postMessage({ kind, ...request });
  });
}

function progress({ loaded, total, name }) {
  at("bar").value = loaded / total;
  at("file").textContent = name ? `${name}: ${size(loaded)} of ${size(total)}` : `${loaded} of ${total} tokens`;
}

function piece(text) {
  article.lastChild.append(text);
  count++;
  const seconds = (performance.now() - started) / 1000;
  at("speed").textContent = `${(count / seconds).toFixed(1)} pieces per second`;
  article.scrollIntoView({ block: "end" });
}

/** Run a request with the buttons of the page in their proper state. */
async function during(state, work) {
  at("error").hidden = true;
  at("state").textContent = state;
  for (const id of ["send", "verify"]) at(id).disabled = true;
  try {
    await work();
    at("state").textContent = "Ready";
  } catch (error) {
    at("state").textContent = "Failed";
    at("error").textContent = `${error.name}: ${error.message}`;
    at("error").hidden = false;
    if (state === "Loading") return;
  } finally {
    at("stop").disabled = true;
    at("loading").hidden = true;
  }
  for (const id of ["send", "verify"]) at(id).disabled = false;
}

function load(source) {
  at("loading").hidden = false;
  return during("Loading", async () => {
    const device = parameters.get("device") ?? "wasm";
    const clock = performance.now();
    const about = await ask("load", { ...source, device, ort: new URL(BUILDS[device] ?? BUILDS.wasm, location.href).href });
    hasChat = about.hasChat;
    messages = [];
    const { quality } = about;
    const words = quality ? `, quality ${quality.word ?? "measured"}` : "";
    const seconds = ((performance.now() - clock) / 1000).toFixed(1);
    at("model").textContent = `${device}, context ${about.context}${words}, loaded in ${seconds} s`;
    at("send").textContent = hasChat ? "Send" : "Generate";
  });
}

function say(role, text, kind) {
  article = document.createElement("article");
  if (kind) article.className = kind;
  const name = document.createElement("b");
  name.textContent = role ? `${role}\n` : "";
  article.append(name, document.createElement("span"));
  article.lastChild.append(text);
  at("answers").append(article);
}

at("form").onsubmit = (event) => {
  event.preventDefault();
  const text = at("prompt").value || at("prompt").placeholder;
  if (hasChat) {
    messages.push({ role: "user", content: text });
    say("You", text);
    say("Model", "");
    at("prompt").value = "";
  } else {
    say("", text, "code");
  }
  during("Generating", async () => {
    at("stop").disabled = false;
    [started, count] = [performance.now(), 0];
    const options = { temperature: Number(at("temperature").value), maxNewTokens: Number(at("tokens").value) };
    const done = await ask("generate", { prompt: hasChat ? messages : text, options });
    if (hasChat) messages.push({ role: "assistant", content: done.text });
    const speed = (done.tokens.length / done.decodeMs) * 1000;
    at("speed").textContent = `${speed.toFixed(1)} tokens per second, first after ${done.prefillMs.toFixed(0)} ms`;
  });
};

// Enter sends, Shift+Enter starts a new line; an input method's Enter chooses a word.
at("prompt").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!at("send").disabled) at("form").requestSubmit();
};

at("stop").onclick = () => worker.postMessage({ kind: "stop" });
at("files").onchange = (event) => load({ files: [...event.target.files] });
at("verify").onclick = () => {
  at("loading").hidden = false;
  during("Verifying", async () => {
    const { verdict, meanKl, positions } = await ask("verify");
    at("model").textContent = `Certificate: ${verdict}, mean KL ${meanKl.toPrecision(2)} at ${positions} tokens`;
  });
};

load({ url: new URL(parameters.get("bundle") ?? "bundle", location.href).href });
