/** What is known of a model: its quality and the figures of its certificate. */

const at = (id) => document.getElementById(id);
const decimal = (value) => value.toPrecision(3);
const percent = (value) => `${(100 * value).toFixed(1)} %`;

/** Rows of the table, left out where a model has no such figure. */
const FIGURES = [
  ["Mean KL", ({ quality }) => quality?.mean_kl, decimal],
  ["99th percentile KL", ({ quality }) => quality?.p99_kl, decimal],
  ["Top-1 agreement", ({ quality }) => quality?.top1_agreement, percent],
  ["Perplexity", ({ quality }) => quality?.perplexity, decimal],
  ["Trained perplexity", ({ quality }) => quality?.trained_perplexity, decimal],
  ["Measured on", ({ quality }) => quality?.text, String],
  ["Precision", ({ precision }) => precision, String],
  ["Context", ({ context_length: length }) => length, (length) => `${length.toLocaleString("en")} tokens`],
];

/** Show a model's certificate; without a model that can chat, say so. */
export function showModel(model) {
  at("welcome").textContent = model ? model.id : "No model to chat with";
  at("about").textContent = model
    ? `${model.precision} · ${model.context_length.toLocaleString("en")} tokens of context`
    : "None of the served bundles is a decoder. Serve a language model with a chat template.";
  const word = model?.unverified ? "unverified" : (model?.quality?.word ?? "unknown");
  at("quality").hidden = !model;
  at("quality").textContent = word === "unverified" ? "not verified" : `${word} quality`;
  at("quality").dataset.word = word;
  at("verdict").textContent = model ? verdict(model) : "";
  at("figures").replaceChildren(...(model ? FIGURES.flatMap((figure) => entry(figure, model)) : []));
}

function verdict({ quality, unverified }) {
  if (unverified) return `Not verified: ${unverified}.`;
  return `Verified at export. Quality: ${quality?.word ?? "not measured"}.`;
}

function entry([name, read, format], model) {
  const value = read(model);
  if (value === null || value === undefined) return [];
  const [term, text] = ["dt", "dd"].map((tag) => document.createElement(tag));
  term.textContent = name;
  text.textContent = format(value);
  return [term, text];
}
