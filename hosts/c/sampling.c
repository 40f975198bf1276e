/* The choice of the next token, in the order of Ortolan's Python runtime:
 *
 *     repetition penalty, presence and frequency penalty   change the logits
 *     temperature 0 ends here: the highest logit wins, the lowest id on ties
 *     top_k, temperature, top_p, min_p                     remove candidates
 *     one draw
 *
 * Draws are NumPy's: PCG64, seeded through SeedSequence. Weights are doubles, so a token differs
 * from Python's only if a draw falls within rounding of the border between two tokens.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* --- random numbers --- */

/* One step of SeedSequence's hash. */
static uint32_t hashed(uint32_t value, uint32_t *constant, uint32_t factor) {
  value ^= *constant;
  *constant *= factor;
  value *= *constant;
  return value ^ value >> 16;
}

/* Turn a seed into the 256 bits that numpy.random.SeedSequence(seed) generates. */
static void seed_words(uint64_t seed, uint64_t words[4]) {
  const uint32_t entropy[4] = {(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0};
  uint32_t pool[4], constant = 0x43b0d7e5, half[8];
  for (int i = 0; i < 4; i++) pool[i] = hashed(entropy[i], &constant, 0x931e8875);
  for (int from = 0; from < 4; from++) {
    for (int to = 0; to < 4; to++) {
      if (from == to) continue;
      uint32_t mixed =
          0xca01f9dd * pool[to] - 0x4973f715 * hashed(pool[from], &constant, 0x931e8875);
      pool[to] = mixed ^ mixed >> 16;
    }
  }
  constant = 0x8b51f9dd;
  for (int i = 0; i < 8; i++) half[i] = hashed(pool[i % 4], &constant, 0x58f38ded);
  for (int i = 0; i < 4; i++) words[i] = half[2 * i] | (uint64_t)half[2 * i + 1] << 32;
}

/* to += other, in 128 bits */
static void add_wide(uint64_t to[2], const uint64_t other[2]) {
  to[1] += other[1];
  to[0] += other[0] + (to[1] < other[1]);
}

/* state = state * multiplier + increment, in 128 bits */
static void step_state(uint64_t state[2], const uint64_t increment[2]) {
  const uint64_t high = 2549297995355413924u, low = 4865540595714422341u;
  uint64_t a = state[1] >> 32, b = state[1] & 0xffffffff, c = low >> 32, d = low & 0xffffffff;
  uint64_t cross = (b * d >> 32) + (a * d & 0xffffffff) + b * c; /* stays below 2^64 */
  uint64_t carry = a * c + (a * d >> 32) + (cross >> 32);
  state[0] = carry + state[0] * low + state[1] * high;
  state[1] = cross << 32 | (b * d & 0xffffffff);
  add_wide(state, increment);
}

static void seed_sampler(ortolan_sampler *sampler) {
  uint64_t words[4];
  seed_words(sampler->options.seed, words);
  sampler->increment[0] = words[2] << 1 | words[3] >> 63;
  sampler->increment[1] = words[3] << 1 | 1;
  step_state(sampler->state, sampler->increment); /* from 0 */
  add_wide(sampler->state, words);
  step_state(sampler->state, sampler->increment);
}

/* A draw from [0, 1). */
static double uniform(ortolan_sampler *sampler) {
  step_state(sampler->state, sampler->increment);
  uint64_t bits = sampler->state[0] ^ sampler->state[1];
  int turn = (int)(sampler->state[0] >> 58);
  bits = bits >> turn | bits << ((64 - turn) % 64);
  return (double)(bits >> 11) * 0x1p-53;
}

/* --- options --- */

static bool check_range(const char *name, double value, bool allowed, const char *range) {
  if (allowed && isfinite(value)) return true;
  return ortolan_fail(ORTOLAN_SAMPLING, "%s must be %s (got %g).", name, range, value);
}

static bool check_options(const ortolan_sampling *s) {
  if (s->seed > INT64_MAX) return ortolan_fail(ORTOLAN_SAMPLING, "seed must be at most 2^63 - 1.");
  return check_range("temperature", s->temperature, s->temperature >= 0, "at least 0") &&
         check_range("top_k", (double)s->top_k, s->top_k >= 0, "at least 0") &&
         check_range("top_p", s->top_p, s->top_p > 0 && s->top_p <= 1, "above 0 and at most 1") &&
         check_range("min_p", s->min_p, s->min_p >= 0 && s->min_p <= 1, "from 0 to 1") &&
         check_range("repetition_penalty", s->repetition_penalty, s->repetition_penalty > 0,
                     "above 0") &&
         check_range("presence_penalty", s->presence_penalty, fabs(s->presence_penalty) <= 2,
                     "from -2 to 2") &&
         check_range("frequency_penalty", s->frequency_penalty, fabs(s->frequency_penalty) <= 2,
                     "from -2 to 2");
}

bool ortolan_sampler_open(ortolan_sampler *sampler, const ortolan_sampling *options,
                          size_t vocab_size, const int32_t *prompt, size_t count) {
  *sampler = (ortolan_sampler){.options = *options, .vocab_size = vocab_size};
  if (!check_options(options)) return false;
  bool repeats = options->repetition_penalty != 1;
  bool counts = options->presence_penalty != 0 || options->frequency_penalty != 0;
  bool draws = options->temperature > 0;
  /* doubles first, for their alignment */
  double *next = sampler->memory = calloc(vocab_size, 2 * sizeof(double) + 5 * sizeof(float));
  if (next == NULL) return ortolan_no_memory();
  if (draws) sampler->weights = next, sampler->sorted = next + vocab_size, next += 2 * vocab_size;
  float *floats = (float *)next;
  if (repeats) sampler->seen = floats;
  if (counts) sampler->generated = floats + vocab_size;
  if (repeats || counts) sampler->scores = floats + 2 * vocab_size;
  if (draws) sampler->scratch = floats + 3 * vocab_size;
  if (draws) sampler->ids = (int32_t *)(floats + 4 * vocab_size);
  seed_sampler(sampler);
  for (size_t i = 0; repeats && i < count; i++) sampler->seen[prompt[i]]++;
  return true;
}

void ortolan_sampler_close(ortolan_sampler *sampler) {
  free(sampler->memory);
}

/* --- one token --- */

/* Apply the penalties. Returns the row itself without any, else a copy. */
static const float *adjusted(ortolan_sampler *sampler, const float *logits) {
  if (sampler->scores == NULL) return logits;
  const float repetition = (float)sampler->options.repetition_penalty;
  const float frequency = (float)sampler->options.frequency_penalty;
  const double presence = sampler->options.presence_penalty;
  for (size_t i = 0; i < sampler->vocab_size; i++) {
    float score = logits[i];
    if (sampler->seen != NULL && sampler->seen[i] > 0)
      score = score < 0 ? score * repetition : score / repetition;
    if (sampler->generated != NULL && sampler->generated[i] > 0) {
      float less = frequency * sampler->generated[i];
      score = (float)((double)(score - less) - presence);
    }
    sampler->scores[i] = score;
  }
  return sampler->scores;
}

/* Index of the highest score, the first on ties; of a NaN, if there is one. */
static size_t highest(const float *scores, size_t count) {
  size_t best = 0;
  for (size_t i = 0; i < count; i++) {
    if (isnan(scores[i])) return i;
    if (scores[i] > scores[best]) best = i;
  }
  return best;
}

/* The k-th highest of some numbers, which are reordered. */
static float kth_highest(float *values, size_t count, size_t k) {
  size_t low = 0, high = count - 1, target = k - 1;
  while (low < high) {
    float pivot = values[low + (high - low) / 2];
    size_t i = low, j = high;
    for (;;) {
      while (values[i] > pivot) i++;
      while (values[j] < pivot) j--;
      if (i >= j) break;
      float other = values[i];
      values[i++] = values[j];
      values[j--] = other;
    }
    if (target <= j) high = j;
    else low = j + 1;
  }
  return values[target];
}

static int descending(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a < b) - (a > b);
}

/* Keep the fewest weights whose sum reaches top_p of the total; the first ones win ties. */
static size_t keep_top_p(ortolan_sampler *sampler, size_t count) {
  const double top_p = sampler->options.top_p;
  double *weights = sampler->weights, *sorted = sampler->sorted, total = 0, sum = 0;
  for (size_t i = 0; i < count; i++) total += weights[i];
  /* smaller weights are never kept, so they need no sorting; half leaves room for rounding */
  double least = (1 - top_p) / 2 * total / (double)count;
  size_t some = 0, reached = 0, above = 0, kept = 0;
  for (size_t i = 0; i < count; i++)
    if (weights[i] > least) sorted[some++] = weights[i];
  qsort(sorted, some, sizeof *sorted, descending);
  while (reached < some) {
    sum += sorted[reached++];
    if (sum >= top_p * total) break;
  }
  double last = sorted[reached - 1];
  for (size_t i = 0; i < count; i++) above += weights[i] > last;
  size_t equal = reached - above;
  for (size_t i = 0; i < count; i++) {
    if (weights[i] < last || (weights[i] == last && equal == 0)) continue;
    equal -= weights[i] == last;
    weights[kept] = weights[i];
    sampler->ids[kept++] = sampler->ids[i];
  }
  return kept;
}

static size_t keep_min_p(ortolan_sampler *sampler, size_t count) {
  double *weights = sampler->weights, most = 0;
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) most = fmax(most, weights[i]);
  for (size_t i = 0; i < count; i++) {
    if (weights[i] < sampler->options.min_p * most) continue;
    weights[kept] = weights[i];
    sampler->ids[kept++] = sampler->ids[i];
  }
  return kept;
}

static int32_t draw(ortolan_sampler *sampler, const float *scores, float top) {
  const ortolan_sampling *options = &sampler->options;
  double *weights = sampler->weights, total = 0, sum = 0;
  float least = -INFINITY;
  size_t count = 0;
  if (options->top_k > 0 && (uint64_t)options->top_k < sampler->vocab_size) {
    memcpy(sampler->scratch, scores, sampler->vocab_size * sizeof *scores);
    least = kth_highest(sampler->scratch, sampler->vocab_size, (size_t)options->top_k);
  }
  for (size_t i = 0; i < sampler->vocab_size; i++) {
    if (scores[i] < least) continue;
    weights[count] = exp(((double)scores[i] - (double)top) / options->temperature);
    sampler->ids[count++] = (int32_t)i;
  }
  if (options->top_p < 1) count = keep_top_p(sampler, count);
  if (options->min_p > 0) count = keep_min_p(sampler, count);
  for (size_t i = 0; i < count; i++) total += weights[i];
  double at = uniform(sampler) * total;
  for (size_t i = 0; i < count; i++) {
    sum += weights[i];
    if (sum > at) return sampler->ids[i];
  }
  return sampler->ids[count - 1];
}

bool ortolan_sampler_next(ortolan_sampler *sampler, const float *logits, int32_t *token) {
  const float *scores = adjusted(sampler, logits);
  size_t best = highest(scores, sampler->vocab_size);
  if (!isfinite(scores[best])) {
    size_t worst = highest(logits, sampler->vocab_size);
    if (isfinite(logits[worst]))
      return ortolan_fail(ORTOLAN_SAMPLING,
                          "Penalties overflow float32 at step %zu. Use smaller values.",
                          sampler->step + 1);
    return ortolan_fail(ORTOLAN_NUMERIC,
                        "The model overflows at step %zu: the logit of id %zu is %g. Verify the "
                        "bundle on this device, or export in fp32.",
                        sampler->step + 1, worst, (double)logits[worst]);
  }
  *token = sampler->options.temperature == 0 ? (int32_t)best : draw(sampler, scores, scores[best]);
  ortolan_sampler_record(sampler, *token);
  return true;
}

void ortolan_sampler_record(ortolan_sampler *sampler, int32_t token) {
  sampler->step++;
  if (sampler->seen != NULL) sampler->seen[token]++;
  if (sampler->generated != NULL) sampler->generated[token]++;
}
