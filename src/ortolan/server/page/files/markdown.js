/** Blocks of Markdown: CommonMark with tables, without HTML, reference links and tight lists. */

import { inline } from "./inline.js";

const MAX_DEPTH = 32; // of open containers
const CONTAINERS = new Set(["root", "quote", "list", "item"]);
const MARKER = /^[ \t]*(?:[-*+]|(\d{1,9})[.)])(?=[ \t]|$)/;

const isBlank = ({ text }) => !/\S/.test(text);
const tail = ({ text, at }, count) => ({ text: text.slice(count), at: at + count });

/** The number of columns of white space before the text. */
function indentOf(text) {
  let columns = 0;
  for (const character of text) {
    if (character === " ") columns += 1;
    else if (character === "\t") columns += 4 - (columns % 4);
    else break;
  }
  return columns;
}

/** A line without white space of up to so many columns. */
function outdent(line, limit) {
  let count = 0;
  while (/[ \t]/.test(line.text[count] ?? "") && indentOf(line.text.slice(0, count + 1)) <= limit) count++;
  return tail(line, count);
}

/** Cells of a row of a table, as segments: the backslash of `\|` belongs to no cell. */
function cells(line) {
  const found = [[]];
  const text = line.text.trimEnd();
  let start = text.match(/^\s*\|?/)[0].length;
  const end = text.length - (/(?<!\\)\|$/.test(text) && text.length > start ? 1 : 0);
  const cut = (to) => found.at(-1).push({ text: text.slice(start, to), at: line.at + start });
  for (let index = start; index < end; index++) {
    if (text[index] === "\\" && text[index + 1] === "|") {
      cut(index);
      start = ++index;
    } else if (text[index] === "|") {
      cut(index);
      found.push([]);
      start = index + 1;
    }
  }
  cut(end);
  return found;
}

/** What keeps a container open: the rest of the line, or null. */
const GOES_ON = {
  list: (_, line) => line,
  quote: (_, line) => afterQuote(line),
  item({ indent, children }, line) {
    if (isBlank(line)) return children.length > 0 ? tail(line, line.text.length) : null;
    return indentOf(line.text) >= indent ? outdent(line, indent) : null;
  },
};

function afterQuote(line) {
  const mark = line.text.match(/^ {0,3}> ?/);
  return mark && tail(line, mark[0].length);
}

const rule = ({ text }) => (/^ *([-*_])[ \t]*(\1[ \t]*){2,}\s*$/.test(text) ? { type: "rule", lines: [] } : null);

/** What begins a block that has no blocks inside: a function of the line and the paragraph before it. */
const LEAVES = [
  function fence(line) {
    const [, indent, marks, info] = line.text.match(/^( *)(`{3,}(?=[^`]*$)|~{3,})(.*)$/) ?? [];
    if (!marks) return null;
    const closing = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}\\s*$`);
    const language = info.trim().split(/\s/)[0];
    return { type: "fence", lines: [], indent: indent.length, closing, ...(language && { language }) };
  },
  function heading(line) {
    const [all, marks] = line.text.match(/^ *(#{1,6})(?=\s|$)\s*/) ?? [];
    if (all === undefined) return null;
    const text = line.text.slice(all.length).replace(/(^|\s)#*\s*$/, "");
    return { type: "heading", level: marks.length, lines: [{ text, at: line.at + all.length }] };
  },
  function underline({ text }, paragraph) {
    const mark = paragraph && text.match(/^ *(=+|-+)\s*$/)?.[1][0];
    return mark ? { type: "heading", level: mark === "=" ? 1 : 2, lines: paragraph.lines, used: Infinity } : null;
  },
  rule,
  function table(line, paragraph) {
    if (!paragraph || !/^[\s|:-]*$/.test(line.text) || !line.text.includes("|")) return null;
    const marks = cells(line).map(([{ text }]) => text.trim());
    const header = paragraph.lines.at(-1);
    if (!header.text.includes("|")) return null;
    if (!marks.every((mark) => /^:?-+:?$/.test(mark)) || cells(header).length !== marks.length) return null;
    const align = marks.map((mark) => ({ ":-": "left", "-:": "right", "::": "center" })[mark[0] + mark.at(-1)]);
    return { type: "table", lines: [header], align, used: 1 };
  },
];

/** Reads whole lines, { text, at }; `at` is the position in the source. */
export class Blocks {
  constructor() {
    this.open = [{ type: "root", children: [] }]; // from the root to the block of the last line
  }

  /** The blocks, with one more line that may not be whole. Blocks that can still change are copies. */
  with(line) {
    const copy = new Blocks();
    copy.open = this.open.map((node) => ({ ...node, [node.children ? "children" : "lines"]: [...(node.children ?? node.lines)] }));
    copy.open.slice(1).forEach((node, index) => (copy.open[index].children[copy.open[index].children.length - 1] = node));
    if (line.text) copy.take(line);
    return copy.open[0].children;
  }

  take(line) {
    let depth = 1; // of the containers that go on
    for (; CONTAINERS.has(this.open[depth]?.type); depth++) {
      const rest = GOES_ON[this.open[depth].type](this.open[depth], line);
      if (rest === null) break;
      line = rest;
    }
    let leaf = CONTAINERS.has(this.open[depth]?.type) ? undefined : this.open[depth];
    if (leaf && this.continues(leaf, line)) return;
    while (!isBlank(line) && indentOf(line.text) < 4 && this.open.length < MAX_DEPTH) {
      const rest = this.beginContainer(depth, line, leaf);
      if (rest === null) break;
      line = rest;
      depth = this.open.length;
      leaf = undefined;
    }
    this.takeText(depth, line, leaf);
  }

  /** Add the line to code; whether it was code, or its end. */
  continues(leaf, line) {
    if (leaf.type === "fence" && leaf.closing.test(line.text)) this.open.pop();
    else if (leaf.type === "fence") leaf.lines.push(outdent(line, leaf.indent));
    else if (leaf.type === "code" && (isBlank(line) || indentOf(line.text) >= 4)) leaf.lines.push(outdent(line, 4));
    else return false;
    return true;
  }

  beginContainer(depth, line, leaf) {
    const rest = afterQuote(line);
    if (rest) {
      this.begin(depth, { type: "quote", children: [] });
      return rest;
    }
    const mark = line.text.match(MARKER);
    if (!mark || rule(line)) return null;
    const [{ length }, number] = mark;
    const after = tail(line, length);
    if (leaf?.type === "paragraph" && (isBlank(after) || (number && Number(number) !== 1))) return null;
    const kind = line.text[length - 1];
    const last = this.open[depth - 1];
    if (last.type !== "list" || last.kind !== kind) {
      this.begin(depth, { type: "list", kind, children: [], ...(number && { start: Number(number) }) });
      depth = this.open.length;
    }
    const room = indentOf(after.text);
    const gap = isBlank(after) || room > 4 ? 1 : room;
    this.open.length = depth;
    this.push({ type: "item", indent: indentOf(line.text) + line.text.trimStart().length - after.text.length + gap, children: [] });
    return outdent(after, gap);
  }

  takeText(depth, line, leaf) {
    const tip = this.open.at(-1);
    if (isBlank(line)) {
      this.open.length = depth;
    } else if (indentOf(line.text) >= 4 && tip.type !== "paragraph") {
      this.begin(depth, { type: "code", lines: [outdent(line, 4)] });
    } else if (!this.beginLeaf(depth, line, leaf)) {
      if (tip.type === "paragraph" || (tip.type === "table" && tip === leaf)) tip.lines.push(line);
      else this.begin(depth, { type: "paragraph", lines: [tail(line, line.text.search(/\S/))] });
    }
  }

  beginLeaf(depth, line, leaf) {
    if (indentOf(line.text) >= 4) return false;
    const paragraph = leaf?.type === "paragraph" ? leaf : undefined;
    let node;
    LEAVES.some((read) => (node = read(line, paragraph)));
    if (!node) return false;
    if (node.used) {
      paragraph.lines = paragraph.lines.slice(0, -node.used);
      if (node.used === Infinity) paragraph.lines = [];
      if (paragraph.lines.length === 0) this.open[depth - 1].children.pop();
    }
    this.begin(depth, node);
    if (node.type === "heading" || node.type === "rule") this.open.pop();
    return true;
  }

  /** Close what is open from this depth on, and begin a block there. */
  begin(depth, node) {
    this.open.length = this.open[depth - 1].type === "list" ? depth - 1 : depth; // a list contains items only
    this.push(node);
  }

  push(node) {
    this.open.at(-1).children.push(node);
    this.open.push(node);
  }
}

const TAGS = {
  quote: () => "blockquote",
  list: ({ start }) => (start === undefined ? "ul" : "ol"),
  item: () => "li",
  rule: () => "hr",
  paragraph: () => "p",
  heading: ({ level }) => `h${Math.min(level + 2, 6)}`, // below those of the page
  fence: () => "pre",
  code: () => "pre",
};

/** A block as an element: { tag, attributes, key, children }. Of two with the same key, one can stay. */
export function element(node) {
  if (node.type === "table") return table(node);
  return { tag: TAGS[node.type](node), attributes: attributes(node), key: node, children: () => content(node) };
}

function attributes({ type, start, language }) {
  if (type === "list" && start !== undefined) return { start };
  if (type !== "fence" && type !== "code") return {};
  return { tabindex: 0, ...(language && { "data-language": language }) }; // it may need to be scrolled
}

function content({ type, children, lines }) {
  if (children) return children.map(element);
  if (type === "fence") return lines.map(codeLine);
  if (type === "code") return lines.slice(0, lines.findLastIndex((line) => !isBlank(line)) + 1).map(codeLine);
  return inline(joined(lines));
}

/** Lines have elements, so that a browser lays out one of them for each token. */
function codeLine(line) {
  return { tag: "div", attributes: {}, key: line, children: () => [{ text: `${line.text}\n`, at: line.at }] };
}

const joined = (lines) => lines.map(({ text, at }, index) => ({ text: index < lines.length - 1 ? `${text}\n` : text.trimEnd(), at }));

function table({ lines, align }) {
  const row = (tag) => (line) => ({
    tag: "tr",
    attributes: {},
    key: line,
    children: () => [...cells(line), ...align.map(() => [])].slice(0, align.length).map((segments, index) => ({
      tag,
      attributes: align[index] ? { "data-align": align[index] } : {},
      children: () => inline(trimmed(segments)),
    })),
  });
  const part = (tag, rows) => ({ tag, attributes: {}, children: () => rows });
  const body = lines.length > 1 ? [part("tbody", lines.slice(1).map(row("td")))] : [];
  const parts = [part("thead", lines.slice(0, 1).map(row("th"))), ...body];
  return { tag: "div", attributes: { class: "table", tabindex: 0 }, children: () => [part("table", parts)] };
}

function trimmed(segments) {
  const [first, ...rest] = segments;
  if (!first) return [];
  const all = [tail(first, first.text.length - first.text.trimStart().length), ...rest];
  return [...all.slice(0, -1), { ...all.at(-1), text: all.at(-1).text.trimEnd() }];
}
