/**
 * A page with a tab for each kind of bundle, whose model runs in a worker of its own.
 *
 * Parameters of the address: the URLs of bundles by tab, such as `chat`, and `device` (wasm or webgpu).
 */

import { bundles } from "./kept.js";

/** Builds of ONNX Runtime: that for WebGPU has fewer kernels on the CPU. */
const BUILDS = { wasm: "lib/ort.wasm.min.mjs", webgpu: "lib/ort.webgpu.min.mjs" };

const parameters = new URLSearchParams(location.search);
const device = parameters.get("device") ?? "wasm";

const address = (path) => new URL(path, location.href).href;

function add(parent, tag, text, className = "") {
  const element = Object.assign(document.createElement(tag), { textContent: text, className });
  parent.append(element);
  return element;
}

function ranked(list, scores) {
  list.replaceChildren();
  for (const { label, score } of scores) {
    const item = add(list, "li", `${label} `);
    item.title = score.toFixed(3);
    Object.assign(add(item, "meter", ""), { value: score });
  }
}

const sentences = (text) =>
  Array.from(new Intl.Segmenter("en", { granularity: "sentence" }).segment(text), ({ segment }) => segment.trim()).filter((one) => one);

/** A section of the page with its worker. */
class Tab {
  #worker;

  constructor(section, submit) {
    this.section = section;
    section.append(document.getElementById("frame").content.cloneNode(true));
    this.output = this.find(".output");
    this.fields = this.find("form").elements;
    this.find("form").onsubmit = (event) => {
      event.preventDefault();
      this.during("Working", () => submit(this));
    };
    if (this.fields.stop) this.fields.stop.onclick = () => this.#worker.postMessage({ kind: "stop" });
    this.find(".files").onchange = ({ target }) => this.open({ files: [...target.files] });
  }

  find(selector) {
    return this.section.querySelector(selector);
  }

  /** Show the tab, and load its bundle the first time. */
  show() {
    if (this.#worker) return;
    const { id } = this.section;
    if (parameters.has(id) || bundles.includes(id)) this.open({ url: address(parameters.get(id) ?? `bundles/${id}`) });
    else this.find(".state").textContent = `Open a bundle, or name one in the address: ?${id}=URL`;
  }

  open(source) {
    this.#worker ??= new Worker("lib/worker.js", { type: "module" });
    this.manifest = undefined;
    return this.during("Loading", async () => {
      const clock = performance.now();
      const { manifest, hasTemplate } = await this.ask("load", { ...source, device, ort: address(BUILDS[device] ?? BUILDS.wasm) });
      Object.assign(this, { manifest, messages: hasTemplate ? [] : null, read: undefined });
      const { kind, quality, context_length: context } = manifest;
      const seconds = ((performance.now() - clock) / 1000).toFixed(1);
      const words = quality ? `, quality ${quality.word ?? "measured"}` : "";
      this.find(".about").textContent = `${device}${kind === "decoder" ? `, context ${context}` : ""}${words}, loaded in ${seconds} s`;
      if (this.find(".labels")) this.find(".labels").hidden = !manifest.texts;
      navigator.serviceWorker?.register("offline.js", { type: "module" });
    });
  }

  /** Send a request to the worker; resolves to its result. */
  ask(kind, request, onPiece) {
    return new Promise((resolve, reject) => {
      this.#worker.onmessage = ({ data }) => {
        if (data.kind === "done") resolve(data.result);
        else if (data.kind === "failed") reject(data);
        else if (data.kind === "loading") this.find("progress").value = data.loaded / data.total;
        else onPiece(data.piece);
      };
      this.#worker.onerror = (event) => reject({ name: "Error", message: event.message });
      this.#worker.postMessage({ kind, ...request });
    });
  }

  call(method, inputs, options = {}, onPiece) {
    return this.ask("call", { method, inputs, options }, onPiece);
  }

  /** Run a request with the elements of the tab in their proper state. */
  async during(state, work) {
    const buttons = [...this.fields].filter(({ name }) => ["go", "verify", "record"].includes(name));
    const [error, progress] = [this.find(".error"), this.find("progress")];
    [error.hidden, progress.hidden] = [true, state === "Working"];
    this.find(".state").textContent = state;
    for (const button of buttons) button.disabled = true;
    if (this.fields.stop) this.fields.stop.disabled = state === "Loading";
    let after = "Ready";
    try {
      await work();
    } catch ({ name, message }) {
      after = name === "AbortError" ? "Stopped" : "Failed";
      error.textContent = `${name}: ${message}`;
      error.hidden = after === "Stopped";
    }
    progress.hidden = true;
    for (const button of buttons) button.disabled = !this.manifest;
    if (this.fields.stop) this.fields.stop.disabled = true;
    this.find(".state").textContent = after;
  }
}

let sound; // that was chosen or recorded last

const submits = {
  async chat(tab) {
    const { prompt, temperature, tokens } = tab.fields;
    const { messages, output } = tab;
    const text = prompt.value || prompt.placeholder;
    add(output, "article", text, messages ? "you" : "code");
    const answer = messages ? add(output, "article", "", "model") : output.lastChild;
    if (messages) prompt.value = "";
    messages?.push({ role: "user", content: text });
    const options = { temperature: Number(temperature.value), maxNewTokens: Number(tokens.value), signal: true };
    const [clock, speed] = [performance.now(), tab.find(".speed")];
    let count = 0;
    try {
      const done = await tab.call("stream", [messages ?? text], options, (piece) => {
        answer.append(piece);
        speed.textContent = `${((++count * 1000) / (performance.now() - clock)).toFixed(1)} pieces per second`;
        answer.scrollIntoView({ block: "nearest" });
      });
      const rate = ((done.tokens.length / done.decodeMs) * 1000).toFixed(1);
      speed.textContent = `${rate} tokens per second, first after ${done.prefillMs.toFixed(0)} ms`;
    } finally {
      messages?.push({ role: "assistant", content: answer.textContent });
    }
  },

  async search(tab) {
    const { texts, query } = tab.fields;
    const clock = performance.now();
    if (tab.read !== texts.value) {
      tab.parts = sentences(texts.value);
      tab.vectors = await tab.call("embed", [tab.parts], { truncate: true });
      tab.read = texts.value;
    }
    const prompt = tab.manifest.source.prompts?.query && "query";
    const [wanted] = await tab.call("embed", [[query.value]], { truncate: true, prompt });
    const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);
    const cosine = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
    const scores = tab.vectors.map((vector, index) => ({ label: tab.parts[index], score: cosine(vector, wanted) }));
    ranked(tab.output, scores.sort((a, b) => b.score - a.score).slice(0, 5));
    tab.find(".speed").textContent = `${tab.parts.length} sentences, ${(performance.now() - clock).toFixed(0)} ms`;
  },

  async speech(tab) {
    const { source, kind } = tab.manifest;
    if (!sound) throw { name: "No sound", message: "Choose a file, or record one." };
    const clock = performance.now();
    const heard = await new OfflineAudioContext(1, 1, source.rate).decodeAudioData(await sound.arrayBuffer());
    const channels = Array.from({ length: heard.numberOfChannels }, (_, channel) => heard.getChannelData(channel));
    const samples = channels[0].map((_, index) => channels.reduce((sum, one) => sum + one[index], 0) / channels.length);
    tab.output.replaceChildren();
    const show = ({ start, end, text }) => {
      add(add(tab.output, "li", ""), "small", `${start.toFixed(1)} to ${end.toFixed(1)} s`);
      tab.output.lastChild.append(` ${text}`);
    };
    const isWindowed = kind === "encoder-decoder";
    const { segments, seconds } = await tab.call("transcribe", [samples], { signal: true, ...(isWindowed && { onSegment: true }) }, show);
    if (!isWindowed) segments.forEach(show);
    tab.find(".speed").textContent = `${seconds.toFixed(1)} s of sound in ${((performance.now() - clock) / 1000).toFixed(1)} s`;
  },

  async images(tab) {
    const { width, height } = tab.find("canvas");
    const pixels = tab.find("canvas").getContext("2d").getImageData(0, 0, width, height);
    const labels = tab.fields.labels.value.split(",").map((label) => label.trim());
    const [{ scores }] = await (tab.manifest.texts ? tab.call("classifyAs", [[pixels], labels]) : tab.call("classify", [[pixels]]));
    ranked(tab.output, scores.slice(0, 5));
  },

  async translate(tab) {
    const { source, beams } = tab.fields;
    const width = Number(beams.value);
    tab.output.textContent = "";
    for (const sentence of sentences(source.value)) {
      if (width > 1) tab.output.append((await tab.call("generate", [sentence], { beams: width, signal: true })).text);
      else await tab.call("stream", [sentence], { signal: true }, (piece) => tab.output.append(piece));
      tab.output.append(" ");
    }
  },
};

const tabs = Object.fromEntries(Object.entries(submits).map(([id, submit]) => [id, new Tab(document.getElementById(id), submit)]));

/** Show the tab that the address names. */
function choose() {
  const chosen = tabs[location.hash.slice(1)] ?? tabs.chat;
  for (const { section } of Object.values(tabs)) {
    section.hidden = section !== chosen.section;
    document.querySelector(`[href="#${section.id}"]`).ariaSelected = String(!section.hidden);
  }
  chosen.show();
}

// Enter sends, Shift+Enter starts a new line; an input method's Enter chooses a word.
const { prompt, verify, go } = tabs.chat.fields;
prompt.onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!go.disabled) go.click();
};
verify.onclick = () =>
  tabs.chat.during("Verifying", async () => {
    const { verdict, meanKl, positions } = await tabs.chat.call("verify", [], { onProgress: true });
    tabs.chat.find(".about").textContent = `Certificate: ${verdict}, mean KL ${meanKl.toPrecision(2)} at ${positions} tokens`;
  });

const { record, sound: chosen, go: transcribe } = tabs.speech.fields;
let recorder;
chosen.onchange = () => ([sound] = chosen.files);
record.onclick = async () => {
  if (recorder?.state === "recording") return recorder.stop();
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const parts = [];
  recorder = new MediaRecorder(stream);
  recorder.ondataavailable = ({ data }) => parts.push(data);
  recorder.onstop = () => {
    for (const track of stream.getTracks()) track.stop();
    sound = new Blob(parts);
    record.textContent = "Record";
    transcribe.click();
  };
  recorder.start();
  record.textContent = "End recording";
};

const { image, clear, go: classify } = tabs.images.fields;
const canvas = tabs.images.find("canvas");
const context = canvas.getContext("2d", { willReadFrequently: true });
clear.onclick = () => {
  Object.assign(canvas, { width: 280, height: 280 });
  context.fillRect(0, 0, 280, 280);
  Object.assign(context, { strokeStyle: "white", lineWidth: 36, lineCap: "round", lineJoin: "round" });
};
clear.onclick();
canvas.onpointerdown = (event) => {
  canvas.setPointerCapture(event.pointerId);
  context.beginPath();
  canvas.onpointermove(event);
};
canvas.onpointermove = ({ buttons, offsetX, offsetY }) => {
  if (!buttons) return;
  context.lineTo((offsetX / canvas.clientWidth) * canvas.width, (offsetY / canvas.clientHeight) * canvas.height);
  context.stroke();
};
canvas.onpointerup = () => classify.disabled || classify.click();
image.onchange = async () => {
  const bitmap = await createImageBitmap(image.files[0]);
  Object.assign(canvas, { width: bitmap.width, height: bitmap.height });
  context.drawImage(bitmap, 0, 0);
  canvas.onpointerup();
};

onhashchange = choose;
choose();
