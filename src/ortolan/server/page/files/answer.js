/** One answer while it streams: its text, reasoning, tool calls and figures. */

import { blockWriter } from "./blocks.js";
import { alignTokens } from "./tokens.js";

const FIELDS = { reasoning_content: ".reasoning .blocks", content: ".content" };

/** An answer that fills a copy of the template. */
export class Answer {
  constructor(template) {
    this.element = template.content.firstElementChild.cloneNode(true);
    this.fields = Object.entries(FIELDS).map(([name, selector]) => {
      const root = this.element.querySelector(selector);
      return { name, root, text: "", writer: blockWriter(root) };
    });
    this.calls = [];
    this.tokens = [];
    this.count = 0;
    this.started = performance.now();
  }

  /** The message for the conversation; null before the first text. */
  get message() {
    const texts = this.fields.filter(({ text }) => text).map(({ name, text }) => [name, text]);
    if (texts.length === 0 && this.calls.length === 0) return null;
    const calls = this.calls.length > 0 ? { tool_calls: this.calls } : {};
    return { role: "assistant", content: "", ...Object.fromEntries(texts), ...calls };
  }

  /** Add a chunk of the stream. */
  add(chunk) {
    this.usage = chunk.usage ?? this.usage;
    const [choice] = chunk.choices;
    if (!choice) return;
    const { delta, logprobs, finish_reason: finish } = choice;
    const tokens = logprobs?.content ?? [];
    this.tokens.push(...tokens);
    this.finish = finish ?? this.finish;
    this.last = performance.now();
    const texts = this.fields.filter(({ name }) => delta[name]);
    for (const field of texts) this.write(field, delta[field.name], tokens);
    for (const call of delta.tool_calls ?? []) this.addCall(call);
    if (texts.length === 0 && !delta.tool_calls) return;
    this.count += Math.max(tokens.length, 1);
    this.first ??= this.last;
    this.firstCount ??= this.count;
  }

  write(field, text, tokens) {
    const fold = field.root.closest("details");
    if (fold && !field.text) fold.hidden = !(fold.open = true);
    if (!fold) this.element.querySelector("details").open = false;
    field.text += text;
    for (const part of alignTokens(text, tokens)) field.writer.write(part);
  }

  addCall({ index, id, function: { name = "", arguments: part } }) {
    const call = (this.calls[index] ??= { id, type: "function", function: { name, arguments: "" } });
    call.function.arguments += part;
    const root = this.element.querySelector(".calls");
    while (root.children.length <= index) root.append(document.createElement("pre"));
    root.children[index].textContent = `${call.function.name}(${call.function.arguments})`;
  }

  /** Complete the answer; a note says why it ended early. */
  end(note) {
    for (const { writer } of this.fields) writer.finish();
    if (!this.element.querySelector(".token")) this.alignAll();
    this.element.querySelector(".copy").hidden = !navigator.clipboard; // only on secure origins
    const first = this.element.querySelector(".content .token") ?? this.element.querySelector(".token");
    if (first) first.tabIndex = 0;
    const paragraph = this.element.querySelector(".note");
    paragraph.textContent = note;
    paragraph.hidden = !note;
    this.element.setAttribute("aria-busy", "false");
    this.showFigures();
  }

  /** Write the text again with tokens that came only at the end. */
  alignAll() {
    if (this.tokens.length === 0) return;
    for (const { root, text } of this.fields) {
      root.replaceChildren();
      const writer = blockWriter(root);
      for (const part of alignTokens(text, this.tokens)) writer.write(part);
      writer.finish();
    }
  }

  showFigures() {
    const count = this.usage?.completion_tokens ?? this.count;
    const seconds = (this.last - this.first) / 1000;
    const rate = (count - this.firstCount) / seconds;
    const figures = [
      `${count} ${count === 1 ? "token" : "tokens"}`,
      rate > 0 && Number.isFinite(rate) && `${rate.toFixed(1)} tokens/s`,
      this.first && `first after ${Math.round(this.first - this.started)} ms`,
      this.usage && `prompt of ${this.usage.prompt_tokens}`,
      this.usage?.prompt_tokens_details.cached_tokens && `${this.usage.prompt_tokens_details.cached_tokens} of it cached`,
    ];
    this.element.querySelector(".figures").textContent = figures.filter(Boolean).join(" · ");
  }
}
