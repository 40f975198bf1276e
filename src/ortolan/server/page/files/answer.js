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
      return { name, root, text: "", parts: [], writer: blockWriter(root) };
    });
    this.calls = [];
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

  /** Return an answer from its record. One that a reload cut is marked as stopped. */
  static restored(template, { parts, calls, figures, note, isRunning }) {
    const answer = new Answer(template);
    for (const field of answer.fields) if (parts[field.name]?.length) answer.write(field, parts[field.name]);
    calls.forEach((call, index) => answer.addCall({ index, ...call }));
    answer.end(isRunning ? "Stopped." : note);
    answer.element.querySelector(".figures").textContent = figures;
    return answer;
  }

  /** What `restored` needs. */
  get record() {
    const [figures, note] = [".figures", ".note"].map((name) => this.element.querySelector(name).textContent);
    return {
      parts: Object.fromEntries(this.fields.map(({ name, parts }) => [name, parts])),
      calls: this.calls,
      figures,
      note,
      isRunning: this.element.getAttribute("aria-busy") === "true",
    };
  }

  /** Add a chunk of the stream. */
  add(chunk) {
    this.usage = chunk.usage ?? this.usage;
    const [choice] = chunk.choices;
    if (!choice) return;
    const { delta, logprobs, finish_reason: finish } = choice;
    const tokens = logprobs?.content ?? [];
    this.finish = finish ?? this.finish;
    this.last = performance.now();
    const texts = this.fields.filter(({ name }) => delta[name]);
    for (const field of texts) this.write(field, alignTokens(delta[field.name], tokens));
    for (const call of delta.tool_calls ?? []) this.addCall(call);
    if (texts.length === 0 && !delta.tool_calls) return;
    this.count += Math.max(tokens.length, 1);
    this.first ??= this.last;
    this.firstCount ??= this.count;
  }

  write(field, parts) {
    if (!field.text) this.toggleReasoning(field.root);
    field.text += parts.map(({ text }) => text).join("");
    field.parts.push(...parts);
    field.writer.write(parts);
  }

  /** Reasoning is open until the answer begins; after that, the reader decides. */
  toggleReasoning(root) {
    const fold = this.element.querySelector(".reasoning");
    fold.open = fold.contains(root);
    fold.hidden &&= !fold.open;
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
    this.element.querySelector(".copy").hidden = !navigator.clipboard; // only on secure origins
    const first = this.element.querySelector(".content .token") ?? this.element.querySelector(".token");
    if (first) first.tabIndex = 0;
    const paragraph = this.element.querySelector(".note");
    paragraph.textContent = note;
    paragraph.hidden = !note;
    this.element.setAttribute("aria-busy", "false");
    this.showFigures();
  }

  showFigures() {
    const { completion_tokens: count = this.count, prompt_tokens: prompt } = this.usage ?? {};
    const cached = this.usage?.prompt_tokens_details.cached_tokens;
    const rate = (1000 * (count - this.firstCount)) / (this.last - this.first);
    const figures = [
      `${count} ${count === 1 ? "token" : "tokens"}`,
      rate > 0 && Number.isFinite(rate) && `${rate.toFixed(1)} tokens/s`,
      this.first && `first after ${Math.round(this.first - this.started)} ms`,
      prompt && `prompt of ${prompt}${cached ? `, ${cached} cached` : ""}`,
    ];
    this.element.querySelector(".figures").textContent = figures.filter(Boolean).join(" · ");
  }
}
