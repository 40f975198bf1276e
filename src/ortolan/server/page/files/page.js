/** The chat page: a conversation with one of the served models. */

import { Answer } from "./answer.js";
import { ApiError, listModels, streamChat, useKey } from "./api.js";
import { showModel } from "./certificate.js";
import { load, save } from "./history.js";
import { showHints } from "./tokens.js";

const ALTERNATIVES = 5;
const MAX_RETRIES = 5;
const SETTINGS = ["system", "temperature", "limit", "prompt"]; // with the question that is not sent yet

/** Headlines of errors by their code, else by their status. */
const HEADLINES = {
  "context-length": "The conversation does not fit the context",
  "chat-template": "This model cannot chat",
  cut: "The answer is not complete",
  0: "The server does not answer",
  401: "The server needs a key",
  429: "The server is busy",
  503: "The model is not available",
};

const at = (id) => document.getElementById(id);
const log = at("log");

let models = [];
let turns = []; // { question, element, answer: message or null, view: Answer, failure: headline of an error }
let wanted = ""; // name of the model to choose
let running = null; // AbortController of the answer that is being generated

const chosen = () => models.find(({ id }) => id === at("model").value);

async function connect() {
  at("status").textContent = "";
  removeErrors();
  try {
    models = await withKey(listModels);
  } catch (error) {
    at("welcome").textContent = "Not connected";
    showError(log, error, connect);
    return;
  }
  const options = models.map(({ id, kind }) => new Option(kind === "decoder" ? id : `${id} (${kind})`, id));
  models.forEach(({ kind }, index) => (options[index].disabled = kind !== "decoder"));
  at("model").replaceChildren(...options);
  const decoders = models.filter(({ kind }) => kind === "decoder");
  const first = decoders.find(({ id }) => id === wanted) ?? decoders[0];
  at("model").selectedIndex = models.indexOf(first);
  at("model").disabled = !first;
  showModel(chosen());
  update();
}

/** Run a request; as long as the server asks for a key, ask for one and repeat it. */
async function withKey(work) {
  for (let isFirst = true; ; isFirst = false) {
    try {
      return await work();
    } catch (error) {
      if (error.status !== 401) throw error;
      const key = await askKey(isFirst);
      if (!key) throw error;
      useKey(key);
    }
  }
}

function askKey(isFirst) {
  const dialog = at("key-dialog");
  at("key-error").hidden = isFirst;
  at("key").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

async function send() {
  const question = at("prompt").value.trim();
  if (!question || running || !chosen()) return;
  if (turns.at(-1)?.answer === null) turns.pop().element.remove(); // it failed
  at("prompt").value = "";
  turns.push(newTurn(question));
  await answerLast();
}

function newTurn(question) {
  const element = at("turn-template").content.firstElementChild.cloneNode(true);
  element.querySelector(".question").textContent = question;
  log.append(element);
  return { question, element, answer: null };
}

/** Answer the last question, again if it has an answer. */
async function answerLast() {
  const turn = turns.at(-1);
  turn.answer = null;
  turn.element.querySelector(".answer")?.remove();
  removeErrors();
  running = new AbortController();
  const { signal } = running;
  update();
  const model = chosen();
  const body = request(model);
  const answer = new Answer(at("answer-template"));
  Object.assign(turn, { view: answer, failure: "" });
  keep();
  try {
    at("status").textContent = model.loaded ? "Waiting for the first token" : `Loading ${model.id}`;
    await withKey(() => patiently(() => stream(body, answer, turn, signal), signal));
    answer.end(endNote(answer));
    model.loaded = true;
  } catch (error) {
    const isStop = signal.aborted;
    answer.end(isStop ? "Stopped." : "");
    if (isStop && answer.message === null) turn.element.append(answer.element);
    if (!isStop) turn.failure = showError(turn.element, error, answerLast);
  }
  if (turns.at(-1) !== turn) return; // a new chat began meanwhile
  turn.answer = answer.message;
  running = null;
  at("status").textContent = keep() ? "" : "A reload will lose this conversation: the browser has no room for it.";
  update();
  follow();
}

async function stream(body, answer, turn, signal) {
  answer.started = performance.now();
  for await (const chunk of streamChat(body, signal)) {
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    answer.add(chunk);
    if (answer.message === null) continue;
    if (!answer.element.isConnected) {
      turn.element.append(answer.element);
      at("status").textContent = "";
    }
    answer.showFigures();
    if (isAtEnd) follow();
  }
}

/** Repeat a request while the queue of the server is full, when the server says so. */
async function patiently(work, signal) {
  for (let retries = 0; ; retries++) {
    try {
      return await work();
    } catch (error) {
      if (error.status !== 429 || retries === MAX_RETRIES) throw error;
      await pause(Math.max(error.retryMs, 500), signal);
    }
  }
}

function pause(milliseconds, signal) {
  const seconds = Math.ceil(milliseconds / 1000);
  at("status").textContent = `The server is busy. Next try in ${seconds} s`;
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

function request(model) {
  const system = at("system").value.trim();
  const messages = turns.flatMap(({ question, answer }) => [
    { role: "user", content: question },
    ...(answer ? [answer] : []),
  ]);
  const number = (name, id) => (at(id).value ? { [name]: at(id).valueAsNumber } : {});
  return {
    model: model.id,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    logprobs: true,
    top_logprobs: ALTERNATIVES,
    ...number("temperature", "temperature"),
    ...number("max_tokens", "limit"),
  };
}

function endNote({ finish, usage }) {
  if (finish !== "length") return "";
  const limit = at("limit").valueAsNumber;
  return usage?.completion_tokens === limit
    ? `Stopped at the maximum of ${limit} tokens.`
    : "Stopped because the context is full. Start a new chat to go on.";
}

function showError(root, error, again) {
  const element = at("error-template").content.firstElementChild.cloneNode(true);
  if (!(error instanceof ApiError)) console.error(error);
  const headline = HEADLINES[error.code] ?? HEADLINES[error.status] ?? "The request failed";
  element.querySelector("strong").textContent = headline;
  element.querySelector("p").textContent = error.message;
  element.querySelector("button").addEventListener("click", () => {
    at("prompt").focus();
    again();
  });
  root.append(element);
  follow();
  return headline;
}

function removeErrors() {
  for (const element of document.querySelectorAll(".error")) element.remove();
}

function newChat() {
  running?.abort();
  running = null;
  for (const { element } of turns) element.remove();
  turns = [];
  at("status").textContent = "";
  keep();
  update();
  at("prompt").focus();
}

/** Store the conversation and the settings for a reload; whether there is room. The key is not among them. */
function keep() {
  const settings = Object.fromEntries(SETTINGS.map((id) => [id, at(id).value]));
  const records = turns.map(({ question, view, failure }) => {
    const { note, ...record } = view.record;
    return { question, ...record, note: failure || note };
  });
  return save({ model: wanted, settings, isShaded: at("shade").checked, turns: records });
}

/** Stop first: browsers report requests that a reload ends as failures of the network. */
function leave() {
  running?.abort();
  keep();
}

/** Show what a reload has kept. */
function restore() {
  const chat = load();
  if (!chat) return;
  wanted = chat.model;
  for (const id of SETTINGS) at(id).value = chat.settings[id] ?? "";
  at("shade").checked = chat.isShaded;
  shade();
  for (const { question, ...record } of chat.turns) {
    const view = Answer.restored(at("answer-template"), record);
    const turn = { ...newTurn(question), view, answer: view.message, failure: "" };
    turn.element.append(view.element);
    turns.push(turn);
  }
  follow();
}

function shade() {
  log.classList.toggle("shaded", at("shade").checked);
}

function follow() {
  log.scrollTop = log.scrollHeight;
}

/** Bring the controls in line with what can be done now. */
function update() {
  at("empty").hidden = turns.length > 0;
  at("send").hidden = running !== null;
  at("stop").hidden = running === null;
  at("send").disabled = !chosen() || !at("prompt").value.trim();
  document.querySelectorAll(".again").forEach((button) => {
    button.hidden = running !== null || button.closest(".turn") !== turns.at(-1)?.element;
  });
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  at("prompt").focus();
  send();
});
at("prompt").addEventListener("input", update);
at("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
at("stop").addEventListener("click", () => {
  running?.abort();
  at("prompt").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !at("key-dialog").open) running?.abort();
});
log.addEventListener("click", ({ target }) => {
  if (target.matches(".again")) {
    at("prompt").focus();
    answerLast();
  }
  if (!target.matches(".copy")) return;
  const { answer } = turns.find(({ element }) => element.contains(target));
  navigator.clipboard.writeText(answer.content);
});
at("new").addEventListener("click", newChat);
at("model").addEventListener("change", () => {
  wanted = at("model").value;
  showModel(chosen());
});
at("toggle").addEventListener("click", () => {
  const isOpen = document.body.classList.toggle("with-settings");
  at("toggle").setAttribute("aria-expanded", isOpen);
});
at("shade").addEventListener("change", shade);
for (const kind of ["beforeunload", "pagehide"]) addEventListener(kind, leave);
at("key-cancel").addEventListener("click", () => at("key-dialog").close(""));
at("key-dialog").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  at("key-dialog").close(at("key").value.trim());
});

showHints(log, at("hint"));
try {
  restore();
} catch {
  newChat(); // another version of the page has stored it
}
update();
connect();
