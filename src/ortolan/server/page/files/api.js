/** Calls of the server. Addresses are relative, so the page works under any root path. */

const KEY = "ortolan-key";

/** A failure to show: the server's message, and what the page needs to act on it. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, retryMs = 0 } = {}) {
    super(message);
    Object.assign(this, { status, code, retryMs });
  }
}

/** Send this key with every further request of the tab. */
export const useKey = (key) => sessionStorage.setItem(KEY, key);

/** Return the cards of all models. */
export async function listModels() {
  const response = await request("v1/models");
  return (await response.json()).data;
}

/** Yield the chunks of a chat completion. Aborting the signal ends the request. */
export async function* streamChat(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response.body)) {
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, { status: 500, code: chunk.error.code });
    yield chunk;
  }
}

async function request(path, { headers = {}, ...options } = {}) {
  const key = sessionStorage.getItem(KEY);
  const authorization = key ? { Authorization: `Bearer ${utf8(key)}` } : {};
  const response = await reached(fetch(path, { ...options, headers: { ...headers, ...authorization } }));
  if (response.ok) return response;
  const { error = {} } = await response.json().catch(() => ({}));
  throw new ApiError(error.message ?? `The server answered ${response.status}.`, {
    status: response.status,
    code: error.code,
    retryMs: Number(response.headers.get("retry-after-ms")),
  });
}

/** Yield the data of server-sent events up to `[DONE]`. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reached(reader.read());
    if (done) throw new ApiError("The connection ended. Try again.", { code: "cut" });
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.match(/^data: ?(.*)$/m)?.[1]; // comments keep the connection open
      if (data === "[DONE]") return;
      if (data !== undefined) yield data;
    }
  }
}

/** Browsers report every failure of the network as a TypeError. */
async function reached(promise) {
  try {
    return await promise;
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new ApiError("Check that the server is running, then try again.");
  }
}

/** A text as one character per byte of its UTF-8, the form that headers need. */
export function utf8(text) {
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
}
