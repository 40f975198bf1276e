/** Prints each text of a JSON list on the standard input as HTML, whole and in pieces: markdown.mjs FILES. */

import { text as read } from "node:stream/consumers";
import { pathToFileURL } from "node:url";

const { Blocks, element } = await import(pathToFileURL(`${process.argv[2]}/markdown.js`));

const escaped = (text) => String(text).replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);

function html({ tag, attributes, children, text }) {
  if (!tag) return escaped(text);
  const names = Object.entries(attributes).map(([name, value]) => ` ${name}="${escaped(value)}"`);
  return `<${tag}${names.join("")}>${children().map(html).join("")}</${tag}>`;
}

/** Texts that are not in the source where they say. A character reference is another text there. */
function misplaced({ children, text, at }, source) {
  if (children) return children().flatMap((child) => misplaced(child, source));
  const [shown, written] = [text, source.slice(at, at + text.length)].map((part) => part.replace(/\s/g, " ").trimEnd());
  return shown === written || source[at] === "&" ? [] : [text];
}

/** Read a text; with a size, as if it arrived in pieces of so many characters. */
function blocks(source, size) {
  const reader = new Blocks();
  const lines = source.split("\n");
  const rest = lines.pop();
  let at = 0;
  for (const text of lines) {
    for (let end = size; end < text.length; end += size) reader.with({ text: text.slice(0, end), at }).map(element).map(html);
    reader.take({ text, at });
    at += text.length + 1;
  }
  return reader.with({ text: rest, at }).map(element);
}

const results = JSON.parse(await read(process.stdin)).map((source) => {
  const [whole, pieces] = [Infinity, 1].map((size) => blocks(source, size));
  const [all, again] = [whole, pieces].map((nodes) => nodes.map(html).join(""));
  return { html: all, is_same: all === again, misplaced: whole.flatMap((node) => misplaced(node, source)) };
});
console.log(JSON.stringify(results));
