/** Text inside a block of Markdown: emphasis, code, links. */

const MAX_DEPTH = 32; // of elements in elements
const SAFE = /^(?:https?:\/\/|mailto:)[^\s\p{Cc}]+$/iu;
const NAMES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

const SPECIAL = new RegExp(
  [
    /(?<escape>\\[\n!-/:-@[-`{-~])/,
    /(?<ticks>`+)/,
    /(?<open>!?\[)/,
    /(?<close>\])/,
    /(?<marks>\*+|_+|~+)/,
    /(?<entity>&(?:#\d{1,7}|#x[\da-f]{1,6}|amp|lt|gt|quot|apos|nbsp);)/,
    /<(?<address>(?:https?:\/\/|mailto:)[^\s<>]*|[\w.+-]+@[\w-]+(?:\.[\w-]+)+)>/,
    /(?<![\w/])(?<bare>https?:\/\/[^\s<>()[\]*`|"]*[^\s<>()[\]*`|"?!.,:;_~'])/,
  ].map(({ source }) => source).join("|"),
  "gi",
);
const TARGET =
  /\(\s*(?:<(?<angle>[^<>\n]*)>|(?<plain>(?:[^\s()\\<]|\\\S|\((?:[^\s()\\]|\\\S)*\))*))(?:\s+(?:"(?:[^"\\]|\\[^])*"|'(?:[^'\\]|\\[^])*'))?\s*\)/y;

const decoded = (entity) => {
  const [, hex, digits] = entity.match(/^&#(x?)([\da-f]+);$/i) ?? [];
  if (!digits) return NAMES[entity.slice(1, -1).toLowerCase()];
  const code = parseInt(digits, hex ? 16 : 10);
  return code === 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? "\ufffd" : String.fromCodePoint(code);
};
const plainAddress = (text) =>
  text.replace(/\\([!-/:-@[-`{-~])|(&(?:#\d{1,7}|#x[\da-f]{1,6}|amp|lt|gt|quot|apos|nbsp);)/gi, (_, mark, entity) => mark ?? decoded(entity));

/** The elements of a text in segments, { text, at }: { tag, attributes, children } and { text, at }. */
export function inline(segments) {
  const text = segments.map((segment) => segment.text).join("");
  const reader = { text, segments, items: [], brackets: [], end: 0, cursor: { index: 0, offset: 0 } };
  SPECIAL.lastIndex = 0;
  for (let match; (match = SPECIAL.exec(text)); SPECIAL.lastIndex = reader.end) {
    const start = match.index;
    plain(reader, start);
    reader.end = SPECIAL.lastIndex;
    const [[kind, value]] = Object.entries(match.groups).filter(([, group]) => group !== undefined);
    READ[kind](reader, value, start);
  }
  plain(reader, text.length);
  return nodes(reader, emphasize(reader.items));
}

function plain(reader, end) {
  if (end > reader.end) reader.items.push({ start: reader.end, end });
}

const READ = {
  escape: ({ items }, _, start) => items.push({ start: start + 1, end: start + 2 }),
  entity: ({ items }, value, start) => items.push({ start, end: start + value.length, text: decoded(value) }),
  ticks(reader, { length }, start) {
    const closing = new RegExp(`(?<!\`)\`{${length}}(?!\`)`, "g");
    closing.lastIndex = start + length;
    const close = closing.exec(reader.text)?.index;
    if (close === undefined) return reader.items.push({ start, end: start + length });
    const content = reader.text.slice(start + length, close);
    const pad = /^[ \n][^]*[ \n]$/.test(content) && content.trim() ? 1 : 0;
    reader.end = close + length;
    const code = { start: start + length + pad, end: close - pad, isCode: true };
    reader.items.push({ tag: "code", attributes: {}, inner: [code], depth: 1 });
  },
  open({ items, brackets }, value, start) {
    const bracket = { start, end: start + value.length };
    items.push(bracket);
    brackets.push({ bracket, isImage: value.length > 1 });
  },
  close(reader, _, start) {
    const { items, brackets, text } = reader;
    const opener = brackets.pop();
    TARGET.lastIndex = start + 1;
    const target = opener && !opener.isOff && TARGET.exec(text);
    const address = target ? plainAddress(target.groups.angle ?? target.groups.plain) : "";
    if (!SAFE.test(address)) return items.push({ start, end: start + 1 });
    reader.end = start + target[0].length + 1;
    const index = items.lastIndexOf(opener.bracket);
    const inner = withoutLinks(emphasize(items.splice(index).slice(1)));
    items.push({ ...link(address, inner), isWeak: opener.isImage });
    if (!opener.isImage) brackets.forEach((other) => (other.isOff ||= !other.isImage)); // no link in a link
  },
  marks({ text, items }, marks, start) {
    const end = start + marks.length;
    const before = [...text.slice(Math.max(start - 2, 0), start)].at(-1) ?? " ";
    const after = [...text.slice(end, end + 2)][0] ?? " ";
    const [spaceBefore, spaceAfter] = [before, after].map((character) => /\s/.test(character));
    const [pointBefore, pointAfter] = [before, after].map((character) => /[\p{P}\p{S}]/u.test(character));
    const left = !spaceAfter && (!pointAfter || spaceBefore || pointBefore);
    const right = !spaceBefore && (!pointBefore || spaceAfter || pointAfter);
    const isWord = marks[0] === "_";
    const opens = left && (!isWord || !right || pointBefore);
    const closes = right && (!isWord || !left || pointAfter);
    items.push({ start, end, mark: marks[0], length: marks.length, opens, closes });
  },
  address({ items }, value, start) {
    const inner = [{ start: start + 1, end: start + 1 + value.length }];
    items.push(link(/^(https?|mailto):/i.test(value) ? value : `mailto:${value}`, inner));
  },
  bare: ({ items }, value, start) => items.push({ ...link(value, [{ start, end: start + value.length }]), isWeak: true }),
};

const depthOf = (inner) => 1 + inner.reduce((depth, item) => Math.max(depth, item.depth ?? 0), 0);

function link(address, inner) {
  const attributes = { href: address, rel: "noopener noreferrer", target: "_blank" };
  return { tag: "a", attributes, inner, depth: depthOf(inner) };
}

const withoutLinks = (items) =>
  items.flatMap((item) => (item.isWeak ? item.inner : [item.inner ? { ...item, inner: withoutLinks(item.inner) } : item]));

/** Wrap what is between matching marks, by CommonMark's rules. */
function emphasize(items) {
  const done = [];
  const floors = {}; // below them, no opener matches
  for (const item of items) {
    done.push(item);
    while (item.closes && item.end > item.start) {
      const key = `${item.mark}${item.opens}${item.length % 3}`;
      let index = done.length - 2;
      while (index >= (floors[key] ?? 0) && !matches(done[index], item)) index--;
      if (index < (floors[key] ?? 0)) {
        floors[key] = done.length - 1;
        break;
      }
      if (!wrap(done, index, item)) break;
      for (const name of Object.keys(floors)) floors[name] = Math.min(floors[name], index + 1);
    }
  }
  return done;
}

function matches(opener, closer) {
  if (!opener.opens || opener.mark !== closer.mark || opener.end === opener.start) return false;
  if (closer.mark === "~") return opener.length === 2 && closer.length === 2;
  const isUneven = (opener.closes || closer.opens) && (opener.length + closer.length) % 3 === 0;
  return !isUneven || (opener.length % 3 === 0 && closer.length % 3 === 0);
}

function wrap(done, index, closer) {
  const opener = done[index];
  const inner = done.slice(index + 1, -1);
  const depth = depthOf(inner);
  if (depth > MAX_DEPTH) return false;
  const width = opener.end - opener.start >= 2 && closer.end - closer.start >= 2 ? 2 : 1;
  opener.end -= width;
  closer.start += width;
  const tag = closer.mark === "~" ? "s" : ["em", "strong"][width - 1];
  done.splice(index + 1, Infinity, { tag, attributes: {}, inner, depth }, closer);
  return true;
}

const nodes = (reader, items) =>
  items.flatMap((item) => {
    if (!item.tag) return item.end > item.start ? leaves(reader, item) : [];
    const children = nodes(reader, item.inner);
    return [{ tag: item.tag, attributes: item.attributes, children: () => children }];
  });

/** The text of an item, with its positions in the source. Items come in order. */
function leaves(reader, { start, end, text, isCode }) {
  const { segments, cursor } = reader;
  while (start >= cursor.offset + segments[cursor.index].text.length) cursor.offset += segments[cursor.index++].text.length;
  const found = [];
  for (let { index, offset } = cursor; offset < end; offset += segments[index++].text.length) {
    const from = Math.max(start - offset, 0);
    const part = segments[index].text.slice(from, end - offset);
    if (part) found.push({ text: isCode ? part.replaceAll("\n", " ") : part, at: segments[index].at + from });
  }
  return text === undefined ? found : [{ text, at: found[0].at }];
}
