/**
 * A gateway in front of a server, under /llm: it forwards everything, except questions that name one of
 * its scripts.
 */

import { readFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const ROOT = "/llm";
const HTML = '<img src=x onerror="hacked=1"><b>bold</b><script>hacked=1</script>';

const token = (text, logprob = -0.5, top = []) => ({ token: text, logprob, bytes: [...Buffer.from(text)], top_logprobs: top });

const chunk = (delta, tokens, finish = null) => ({
  choices: [{ index: 0, delta, finish_reason: finish, logprobs: tokens ? { content: tokens } : null }],
});

const words = (texts) => texts.map((text) => chunk({ content: text }, [token(text)]));

const [SAMPLE, ATTACKS] = ["sample.md", "attacks.txt"].map((name) => readFileSync(new URL(name, import.meta.url), "utf-8"));

/** A text in tokens of so many characters. */
const cut = (text, size) => words(Array.from({ length: Math.ceil([...text].length / size) }, (_, index) => [...text].slice(index * size, (index + 1) * size).join("")));

/** Bytes of the bird emoji in two tokens. */
const bird = [[240, 159], [144, 166]].map((bytes) => ({ ...token("?"), bytes }));

/** What each question is answered with: chunks, and numbers of milliseconds to wait. */
const STREAMS = {
  slow: Array.from({ length: 600 }, (_, index) => [100, ...words([`word${index} `])]).flat(),
  html: [
    chunk({ reasoning_content: HTML }),
    ...words([HTML, "\n```html\n", HTML, "\n```"]),
    chunk({ tool_calls: [{ index: 0, id: "1", function: { name: HTML, arguments: "" } }] }),
    chunk({ tool_calls: [{ index: 0, function: { arguments: `{"city": "${HTML}"}` } }] }),
  ],
  fences: words(["See", ":\n\n", "``", "`py", "thon\n", "if x", ":\n", "  `", "``y\n", "```", "\n\n", "Done `", "``.\n", "1\n", "\n", "2"]),
  thinking: [
    chunk({ reasoning_content: "Hm." }, [token("<think>"), token("Hm.")]),
    chunk({ content: "Yes " }, [token("</think>"), token("\n"), token("Yes ")]),
    chunk({ content: "🐦" }, bird),
    chunk({ content: "." }, [token(".", -3, [token(" ", -0.1), token("!", -4)])]),
  ],
  long: words(["a".repeat(600), "\n```\n", "b".repeat(600), "\n```\n"]),
  sample: words(SAMPLE.split(/(?<=\s)/)),
  "sample by 1": cut(SAMPLE, 1),
  "sample by 7": cut(SAMPLE, 7),
  "sample whole": [chunk({ content: SAMPLE })],
  attacks: cut(ATTACKS, 3),
  broken: [...words(["Half an"]), "close"],
  failing: [...words(["Half an"]), { error: { message: `It broke: ${HTML}`, code: "bug" } }],
};

/** Questions that are answered with an error: status, code, headers. */
const ERRORS = {
  full: [429, "queue-full", { "retry-after-ms": "700" }],
  context: [400, "context-length", {}],
  invalid: [400, "invalid-body", {}],
  crash: [500, "bug", {}],
};

/** Serve; `seen` collects what the gateway observed, by question. */
export async function gateway(target, seen) {
  const server = createServer(async (incoming, outgoing) => {
    if (!incoming.url.startsWith(`${ROOT}/`)) return outgoing.writeHead(404).end();
    const path = incoming.url.slice(ROOT.length);
    const body = Buffer.concat(await incoming.toArray());
    const question = path === "/v1/chat/completions" ? JSON.parse(body).messages.at(-1).content : "";
    seen[question] = { ...seen[question], calls: (seen[question]?.calls ?? 0) + 1, body: body.toString() };
    if (question === "gone") return incoming.socket.destroy();
    if (ERRORS[question] && !(question === "full" && seen.full.calls > 2)) return fail(outgoing, question);
    if (STREAMS[question]) return stream(outgoing, STREAMS[question], seen[question]);
    forward(incoming, outgoing, new URL(path, target), body);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}${ROOT}/`, close: () => server.closeAllConnections() || server.close() };
}

function fail(outgoing, question) {
  const [status, code, headers] = ERRORS[question];
  outgoing.writeHead(status, { "content-type": "application/json", ...headers });
  outgoing.end(JSON.stringify({ error: { message: `The message of ${question}.`, code } }));
}

async function stream(outgoing, steps, observed) {
  outgoing.on("close", () => (observed.written = outgoing.writableFinished ? "all" : "part"));
  outgoing.writeHead(200, { "content-type": "text/event-stream" });
  for (const step of steps) {
    if (outgoing.closed) return;
    if (typeof step === "number") await sleep(step);
    else if (step === "close") return outgoing.end();
    else outgoing.write(`: comment\n\ndata: ${JSON.stringify(step)}\n\n`);
  }
  outgoing.end("data: [DONE]\n\n");
}

function forward(incoming, outgoing, url, body) {
  const headers = { ...incoming.headers, "content-length": body.length };
  // without an agent, which would reuse a connection that the server is closing
  const onward = request(url, { method: incoming.method, headers, agent: false }, (answer) => {
    outgoing.writeHead(answer.statusCode, answer.headers);
    answer.pipe(outgoing);
  });
  onward.end(body);
}
