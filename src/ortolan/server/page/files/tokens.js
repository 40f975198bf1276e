/** Tokens of an answer: which text belongs to which token, and the hint that shows its probability. */

import { utf8 } from "./api.js";

const BANDS = [0.5, 0.2, 0.05];
const NAMES = { "\n": "⏎", "\t": "⇥", " ": "␣" };

/**
 * Split a text at its tokens: [{ text, tokens }]. Tokens outside of the text are control tokens.
 *
 * A character of several tokens is one part. If the tokens do not contain the text, the part has none.
 */
export function alignTokens(text, tokens) {
  const bytes = tokens.map((token) => String.fromCharCode(...token.bytes));
  const wanted = utf8(text);
  const start = bytes.join("").lastIndexOf(wanted); // control tokens come first
  if (start < 0) return [{ text, tokens: [] }];
  const parts = [];
  let position = -start;
  let first = 0;
  let members = [];
  tokens.forEach((token, index) => {
    const end = Math.min(position + bytes[index].length, wanted.length);
    if (end > Math.max(position, first)) members.push(token);
    position += bytes[index].length;
    if (members.length === 0 || end <= first || isInsideCharacter(wanted, end)) return;
    parts.push({ text: fromUtf8(wanted.slice(first, end)), tokens: members });
    [first, members] = [end, []];
  });
  return parts;
}

/** The element of a part, which `showHints` makes explain itself. */
export function tokenElement(text, tokens) {
  const element = document.createElement("span");
  element.className = "token";
  element.textContent = text;
  element.tokens = tokens;
  const worst = Math.min(...tokens.map(probability));
  element.dataset.band = BANDS.filter((limit) => worst < limit).length;
  return element;
}

/** Show the hint for the token under the pointer or with the focus. Arrow keys move between tokens. */
export function showHints(log, hint) {
  const target = (event) => event.target.closest?.(".token");
  const show = (event) => (target(event) ? open(hint, target(event)) : close(hint));
  for (const kind of ["pointerover", "focusin", "click"]) log.addEventListener(kind, show);
  log.addEventListener("pointerleave", () => close(hint));
  log.addEventListener("focusout", () => close(hint));
  log.addEventListener("scroll", () => close(hint));
  document.addEventListener("keydown", ({ key }) => key === "Escape" && close(hint));
  log.addEventListener("keydown", (event) => {
    const token = target(event);
    const all = token && [...token.closest("article").querySelectorAll(".token")];
    const index = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!all || index === undefined) return;
    event.preventDefault();
    const next = all[Math.min(Math.max(all.indexOf(token) + index, 0), all.length - 1)];
    token.removeAttribute("tabindex"); // one stop of the Tab key for each answer
    next.tabIndex = 0;
    next.focus();
  });
}

const probability = (token) => Math.exp(token.logprob);
const isInsideCharacter = (bytes, index) => (bytes.charCodeAt(index) & 0xc0) === 0x80;
const fromUtf8 = (bytes) => new TextDecoder().decode(Uint8Array.from(bytes, (c) => c.charCodeAt(0)));
const visible = (text) => text.replace(/[\n\t ]/g, (character) => NAMES[character]) || "(nothing)";

function percent(value) {
  return value < 0.001 ? "< 0.1 %" : `${(100 * value).toFixed(1)} %`;
}

/** Rows of the hint: the alternatives of a token, or the tokens of one character. */
function rows(tokens) {
  if (tokens.length > 1) return tokens.map((token) => ({ token, label: hex(token), isChosen: true }));
  const [chosen] = tokens;
  const isChosen = ({ bytes }) => String(bytes) === String(chosen.bytes);
  const all = chosen.top_logprobs.some(isChosen) ? chosen.top_logprobs : [...chosen.top_logprobs, chosen];
  return all.map((token) => ({ token, label: visible(token.token), isChosen: isChosen(token) }));
}

const hex = ({ bytes }) => bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");

function open(hint, element) {
  hint.replaceChildren(...rows(element.tokens).map(row));
  hint.hidden = false;
  const box = [...element.getClientRects()].at(-1); // of its last line
  const left = Math.min(box.left, innerWidth - hint.offsetWidth - 8);
  const hasRoom = box.bottom + hint.offsetHeight + 8 < innerHeight;
  hint.style.left = `${Math.max(8, left)}px`;
  hint.style.top = `${hasRoom ? box.bottom + 6 : box.top - hint.offsetHeight - 6}px`;
  element.setAttribute("aria-describedby", hint.id);
}

function close(hint) {
  hint.hidden = true;
}

function row({ token, label, isChosen }) {
  const element = document.createElement("div");
  const [name, bar, value] = ["code", "i", "b"].map((tag) => document.createElement(tag));
  element.classList.toggle("chosen", isChosen);
  name.textContent = label;
  bar.style.setProperty("--share", probability(token));
  value.textContent = percent(probability(token));
  element.append(name, bar, value);
  return element;
}
