/**
 * Parts of texts: entities that tokens with labels make up, and answers to questions. They are chosen
 * as by transformers' pipelines, with UTF-16 offsets.
 */

import { scoresOf } from "./labels.js";
import { highest } from "./sampling.js";

const OUTSIDE = "O";

const mean = (values) => values.reduce((a, b) => a + b) / values.length;

/** Scores of a word from those of its tokens. */
const OF_WORDS = {
  first: ([scores]) => scores,
  average: (all) => all[0].map((_, label) => mean(all.map((scores) => scores[label]))),
  max: (all) => all.reduce((best, scores) => (Math.max(...scores) > Math.max(...best) ? scores : best)),
};

export const AGGREGATIONS = ["none", "simple", ...Object.keys(OF_WORDS)];

/** Labels of the tokens of a text, and the entities that they make up. */
export function entitiesOf({ text, tokens }, rows, labels, aggregation, continuesWord) {
  const labeled = (parts, scores) => {
    const best = highest(scores);
    return part(text, labels[best], scores[best], parts);
  };
  const parts = tokens.map((token, index) => ({ ...token, scores: scoresOf(rows[index], "softmax") })).filter(({ word }) => word !== undefined);
  const single = parts.map((one) => labeled([one], one.scores));
  let entities = single;
  if (Object.hasOwn(OF_WORDS, aggregation)) {
    const words = [];
    for (const one of parts) words.length && continuesWord(one) ? words.at(-1).push(one) : words.push([one]);
    entities = words.map((word) => labeled(word, OF_WORDS[aggregation](word.map(({ scores }) => scores))));
  }
  if (aggregation !== "none") entities = grouped(text, entities);
  return { tokens: single, entities: entities.filter(({ label }) => label !== OUTSIDE) };
}

const part = (text, label, score, parts) => {
  const [start, end] = [parts[0].start, parts.at(-1).end];
  return { text: text.slice(start, end), label, score, start, end };
};

/** Join neighbours of one label, unless the second begins an entity. */
function grouped(text, parts) {
  const tag = ({ label }) => label.replace(/^[BI]-/, "");
  const groups = [];
  for (const one of parts) {
    const last = groups.at(-1)?.at(-1);
    last && !one.label.startsWith("B-") && tag(last) === tag(one) ? groups.at(-1).push(one) : groups.push([one]);
  }
  return groups.map((group) => part(text, group[0].label.replace(/^.*?-/, ""), mean(group.map(({ score }) => score)), group));
}

/** The most probable answer in windows of a context, from logits of starts and ends of each token. */
export function bestAnswer(context, windows, rows, most, allowNone) {
  let best = { text: "", score: -1, start: 0, end: 0 };
  const nulls = [];
  windows.forEach(({ tokens }, index) => {
    const [starts, ends] = [0, 1].map((side) => probabilities(rows[index].map((logits) => logits[side]), tokens));
    nulls.push(starts[0] * ends[0]);
    const isInside = tokens.map(({ span }) => span !== undefined);
    let [first, last, score] = [0, 0, 0];
    starts.forEach((start, from) => {
      for (let to = from; to < Math.min(from + most, ends.length) && isInside[from]; to++) {
        if (isInside[to] && start * ends[to] > score) [first, last, score] = [from, to, start * ends[to]];
      }
    });
    if (score <= best.score || !isInside[first] || !isInside[last]) return;
    const [start, end] = [tokens[first].span[0], tokens[last].span[1]];
    best = { text: context.slice(start, end), score, start, end };
  });
  const none = Math.min(...nulls);
  return allowNone && none > best.score ? { text: "", score: none, start: 0, end: 0 } : best;
}

/** Probabilities of the context's tokens and of the first one, which stands for no answer. */
function probabilities(logits, tokens) {
  const isAllowed = (_, index) => index === 0 || tokens[index].span !== undefined;
  const scores = scoresOf(logits.filter(isAllowed), "softmax");
  let next = 0;
  return logits.map((logit, index) => (isAllowed(logit, index) ? scores[next++] : 0));
}
