/** The conversation in the storage of the tab, which a reload keeps. */

const KEY = "ortolan-chat";
const MAX_LENGTH = 2_000_000; // characters; browsers store about five million

/** Store a conversation, without the probabilities of its tokens if they do not fit. Return whether it is stored. */
export function save(chat) {
  for (const count of [0, chat.turns.length - 1, chat.turns.length]) {
    const turns = chat.turns.map((turn, index) => (index < count ? withoutTokens(turn) : turn));
    const text = JSON.stringify({ ...chat, turns });
    if (text.length <= MAX_LENGTH && store(text)) return true;
  }
  store("null"); // an older state would come back
  return false;
}

/** Return the stored conversation, or null. */
export function load() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY));
  } catch {
    return null;
  }
}

function store(text) {
  try {
    sessionStorage.setItem(KEY, text);
  } catch {
    return false; // it is full, or blocked
  }
  return true;
}

function withoutTokens(turn) {
  const plain = (parts) => [{ text: parts.map(({ text }) => text).join(""), tokens: [] }];
  return { ...turn, parts: Object.fromEntries(Object.entries(turn.parts ?? {}).map(([name, parts]) => [name, plain(parts)])) };
}
