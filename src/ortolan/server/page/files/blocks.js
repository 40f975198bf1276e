/** Text of an answer as blocks: prose as it is, and fenced code in a box. All of it is plain text. */

import { tokenElement } from "./tokens.js";

const OPENING = /^ {0,3}```([^`\n]*)\n$/;
const CLOSING = /^ {0,3}```[ \t]*\n?$/;
const PERHAPS_FENCE = /^ {0,3}(`{0,2}|```[^`\n]*)$/;

/**
 * A writer of parts, { text, tokens }, into an element.
 *
 * The beginning of a line is held back while it could become a fence, with the blank lines before it.
 */
export function blockWriter(root) {
  let block = null;
  let isCode = false;
  let line = ""; // from its beginning, or null once it is no fence
  let held = [];

  function open(language) {
    block = document.createElement(isCode ? "pre" : "div");
    if (isCode && language) block.dataset.language = language;
    root.append(block);
  }

  function show({ text, tokens }) {
    if (block === null && !text.trim()) return; // blank lines after a box
    if (block === null) open();
    const last = block.lastChild;
    if (tokens.length === 0) block.append(text);
    else if (last?.tokens === tokens) last.append(text);
    else block.append(tokenElement(text, tokens));
  }

  function flush() {
    held.forEach(show);
    held = [];
  }

  function take(piece) {
    if (line === null) {
      show(piece);
    } else {
      line += piece.text;
      held.push(piece);
      const fence = line.match(isCode ? CLOSING : OPENING);
      if (fence && line.endsWith("\n")) {
        held = [];
        isCode = !isCode;
        block = null;
        if (isCode) open(fence[1].trim());
      } else if (!PERHAPS_FENCE.test(line) && (isCode || line.trim())) {
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
      if (isCode && CLOSING.test(line ?? "")) held = [];
      flush();
    },
  };
}
