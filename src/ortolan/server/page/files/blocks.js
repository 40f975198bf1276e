/** Text of an answer as elements. Only what has changed is replaced, so that most of it stays laid out. */

import { Blocks, element } from "./markdown.js";
import { tokenElement } from "./tokens.js";

/** Beginnings of lines that do not yet tell what they become. */
const PERHAPS = /^[ \t>]*([-+*=_:|~`#][-+*=_:|~`# ]*|\d+[.)]?)?$/;

/**
 * A writer of parts, { text, tokens }, into an element.
 *
 * Whole lines are read once. The last line is read again with each part, and shown once it is clear what it is.
 */
export function blockWriter(root) {
  const blocks = new Blocks();
  const parts = [];
  let rest = ""; // of the text, after the last whole line
  let length = 0;

  const show = (text) => patch(root, blocks.with({ text, at: length - rest.length }).map(element), parts);

  return {
    write(added) {
      for (const { text, tokens } of added) {
        parts.push({ start: length, tokens });
        rest += text;
        length += text.length;
      }
      const lines = rest.split("\n");
      rest = lines.pop();
      let at = length - rest.length - lines.reduce((sum, line) => sum + line.length + 1, 0);
      for (const text of lines) {
        blocks.take({ text, at });
        at += text.length + 1;
      }
      show(PERHAPS.test(rest) ? "" : rest);
    },
    finish: () => show(rest),
  };
}

/** Make these the children of an element. */
function patch(parent, nodes, parts) {
  let current = parent.firstChild;
  for (const node of withTokens(nodes, parts)) {
    let child = current;
    if (!child || !isSame(child, node)) {
      child = create(node);
      if (current) current.replaceWith(child);
      else parent.append(child);
    }
    if (!node.key || child.key !== node.key) {
      if (node.tag) patch(child, node.children(), parts);
      else if (child.textContent !== node.text) child.textContent = node.text;
      child.key = node.key;
    }
    current = child.nextSibling;
  }
  while (current) [current] = [current.nextSibling, current.remove()];
}

function isSame(child, { tag, attributes, tokens }) {
  if (tag) return child.localName === tag && child.attributesKey === JSON.stringify(attributes);
  return tokens.length > 0 ? child.tokens === tokens : child.nodeType === Node.TEXT_NODE;
}

function create({ tag, attributes, text, tokens }) {
  if (!tag) return tokens.length > 0 ? tokenElement(text, tokens) : document.createTextNode(text);
  const child = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) child.setAttribute(name, value);
  child.attributesKey = JSON.stringify(attributes);
  return child;
}

/** Split texts where their tokens change. */
function withTokens(nodes, parts) {
  const found = [];
  for (const node of nodes) {
    if (node.tag) found.push(node);
    for (let used = 0, index = node.tag ? 0 : partAt(parts, node.at); used < (node.text?.length ?? 0); index++) {
      const end = (parts[index + 1]?.start ?? Infinity) - node.at;
      const text = node.text.slice(used, end);
      const tokens = parts[index].tokens;
      const last = found.at(-1);
      const isMore = last?.tokens && (last.tokens === tokens || last.tokens.length + tokens.length === 0);
      if (isMore) last.text += text;
      else found.push({ text, tokens });
      used = end;
    }
  }
  return found;
}

/** The index of the part at a position. */
function partAt(parts, position) {
  let [low, high] = [0, parts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (parts[middle].start <= position) low = middle;
    else high = middle - 1;
  }
  return low;
}
