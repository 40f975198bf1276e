/** Text of an answer in lines, with fenced code in boxes. All of it is plain text. */

import { tokenElement } from "./tokens.js";

const OPENING = /^ {0,3}```([^`\n]*)\n$/;
const CLOSING = /^ {0,3}```[ \t]*\n?$/;
const PERHAPS_FENCE = /^ {0,3}(`{0,2}|```[^`\n]*)$/;

/**
 * A writer of parts, { text, tokens }, into an element.
 *
 * The beginning of a line is held back while it could become a fence, with the blank lines before it.
 * Every line has its own element, so that a browser lays out one line for each token, not the answer.
 */
export function blockWriter(root) {
  let box = root; // the element of a code block, or the root
  let row = null; // the element of the current line
  let isFresh = true; // nothing but blank lines since the last box
  let line = ""; // text of the current line, or null once it is no fence
  let held = [];

  const append = (parent, tag) => parent.appendChild(document.createElement(tag));

  function show({ text, tokens }) {
    if (isFresh && box === root && !text.trim()) return;
    isFresh = false;
    row ??= append(box, "div");
    const last = row.lastChild;
    if (tokens.length === 0) row.append(text);
    else if (last?.tokens === tokens) last.append(text);
    else row.append(tokenElement(text, tokens));
    if (text.endsWith("\n")) row = null;
  }

  function flush() {
    held.forEach(show);
    held = [];
  }

  function toggle(language) {
    const isOpening = box === root;
    box = isOpening ? append(root, "pre") : root;
    if (isOpening) box.tabIndex = 0; // it may need to be scrolled
    if (language) box.dataset.language = language;
    [held, row, isFresh] = [[], null, true];
  }

  function take(piece) {
    if (line === null) {
      show(piece);
    } else {
      line += piece.text;
      held.push(piece);
      const fence = line.endsWith("\n") && line.match(box === root ? OPENING : CLOSING);
      if (fence) {
        toggle(fence[1]?.trim());
      } else if (!PERHAPS_FENCE.test(line) && (box !== root || line.trim())) {
        flush();
        line = null;
      }
    }
    if (piece.text.endsWith("\n")) line = "";
  }

  return {
    write({ text, tokens }) {
      for (const piece of text.match(/[^\n]*\n|[^\n]+/g) ?? []) take({ text: piece, tokens });
    },
    finish() {
      if (box !== root && CLOSING.test(line ?? "")) held = [];
      flush();
    },
  };
}
