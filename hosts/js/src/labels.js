/** Scores of labels, from the numbers that a graph returns. */

import { check, InputError } from "./errors.js";
import { shown } from "./arguments.js";

const FUNCTIONS = {
  none: (numbers) => Array.from(numbers),
  softmax(numbers) {
    // a single label competes with its absence, whose logit is 0
    const all = numbers.length > 1 ? Array.from(numbers) : [...numbers, 0];
    const top = all.reduce((a, b) => Math.max(a, b));
    const odds = all.map((number) => Math.exp(number - top));
    const total = odds.reduce((a, b) => a + b);
    return odds.slice(0, numbers.length).map((odd) => odd / total);
  },
  sigmoid: (numbers) =>
    Array.from(numbers, (number) => {
      const small = Math.exp(-Math.abs(number)); // cannot overflow
      return (number >= 0 ? 1 : small) / (1 + small);
    }),
};

/** Functions from the numbers of an output to scores of its labels. */
export const SCORES = { labels: "softmax", tags: "sigmoid", scores: "none", token_labels: "softmax" };

/** Turn the numbers of one input into scores. */
export const scoresOf = (numbers, name) => FUNCTIONS[name](numbers);

/** Scores with the names of their labels, highest first. */
export function classification(scores, labels, areProbabilities = true) {
  const ranked = scores.map((score, index) => ({ label: labels[index], score })).sort((a, b) => b.score - a.score);
  return { ...ranked[0], scores: ranked, areProbabilities };
}

/** Make labels unique by appending the index to repeated ones. */
export const distinct = (labels) =>
  labels.map((label, index) => (labels.indexOf(label) === labels.lastIndexOf(label) ? label : `${label} (${index})`));

/** Put each label into a template. */
export function sentences(labels, template) {
  check(typeof template === "string" && template.split("{}").length === 2, InputError, `template must contain {} exactly once, for the label (got ${shown(template)}).`);
  check(Array.isArray(labels) && labels.length, InputError, `labels must be a list with at least one label (got ${shown(labels)}).`);
  const other = labels.find((label) => typeof label !== "string" || !label.trim());
  check(other === undefined, InputError, `labels must be non-empty strings (got ${shown(other)}).`);
  check(new Set(labels).size === labels.length, InputError, `labels must be unique (got ${labels.join(", ")}).`);
  return labels.map((label) => template.replace("{}", () => label));
}
