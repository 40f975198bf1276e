#include "ortolan.h"

#include <math.h>
#include <stdlib.h>

#include "internal.h"

ortolan_model *ortolan_open(const char *folder, const ortolan_open_options *options,
                            ortolan_error *error) {
  const ortolan_open_options defaults = {.threads = 0};
  if (options == NULL) options = &defaults;
  bool fits = folder != NULL && options->threads >= 0 && options->threads <= 1024;
  if (!fits) ortolan_fail(ORTOLAN_INPUT, "ortolan_open needs a folder and 0 to 1024 threads.");
  ortolan_model *model = fits ? calloc(1, sizeof *model) : NULL;
  if (fits && model == NULL) ortolan_no_memory();
  bool ok = model != NULL && ortolan_bundle_open(&model->bundle, folder, options->skip_hashes);
  if (ok) model->engine = ortolan_engine_open(&model->bundle, options->threads);
  if (ortolan_done(ok && model->engine != NULL, error)) return model;
  ortolan_close(model);
  return NULL;
}

void ortolan_close(ortolan_model *model) {
  if (model == NULL) return;
  ortolan_engine_close(model->engine);
  ortolan_tokenizer_close(model->tokenizer);
  ortolan_bundle_close(&model->bundle);
  free(model);
}

bool ortolan_check_kind(const ortolan_model *model, ortolan_kind kind) {
  static const char *const descriptions[] = {"a decoder. Use ortolan_generate_text or ortolan_chat",
                                             "an encoder. Use ortolan_embed or ortolan_classify",
                                             "an encoder-decoder. Use ortolan_translate"};
  return model->bundle.kind == kind ||
         ortolan_fail(ORTOLAN_KIND, "This bundle is %s.", descriptions[model->bundle.kind]);
}

int64_t ortolan_vocab_size(const ortolan_model *model) {
  return model->bundle.vocab_size;
}

int64_t ortolan_context_length(const ortolan_model *model) {
  return model->bundle.context_length;
}

/* --- generation --- */

/* A sequence while it is generated. */
typedef struct {
  ortolan_model *model;
  const ortolan_options *options;
  ortolan_sampler sampler;
  float *logits; /* and room for those of languages */
  int32_t *tokens;
  size_t count, limit;
  ortolan_opening *opening;
} sequence;

static bool check_ids(const ortolan_model *model, const char *what, const int32_t *ids,
                      size_t count) {
  for (size_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= model->bundle.vocab_size)
      return ortolan_fail(ORTOLAN_INPUT,
                          "%s: token ids must be 0 to %lld (got %ld). Encode the text with this "
                          "bundle's tokenizer.",
                          what, (long long)model->bundle.vocab_size - 1, (long)ids[i]);
  return true;
}

/* Check the lengths, and choose the limit of new tokens. */
static bool choose_limit(sequence *s, size_t prompt_count, size_t capacity) {
  size_t context = (size_t)s->model->bundle.context_length, most = s->options->max_new_tokens;
  size_t least = most == 0 ? 1 : most;
  if (prompt_count > context || least > context - prompt_count)
    return ortolan_fail(ORTOLAN_CONTEXT_LENGTH,
                        "A prompt of %zu and %zu new tokens exceed the context of %zu tokens. "
                        "Shorten the prompt, or lower max_new_tokens.",
                        prompt_count, least, context);
  if (capacity < least)
    return ortolan_fail(ORTOLAN_INPUT,
                        "tokens must have room for %zu new ids (got %zu). Pass a larger array.",
                        least, capacity);
  s->limit = most > 0 ? most : context - prompt_count;
  if (s->limit > capacity) s->limit = capacity;
  if (s->options->min_new_tokens > s->limit)
    return ortolan_fail(ORTOLAN_INPUT,
                        "min_new_tokens must be at most the limit of %zu new tokens (got %zu).",
                        s->limit, s->options->min_new_tokens);
  return true;
}

bool ortolan_ends(const ortolan_bundle *bundle, const ortolan_options *options, int32_t token) {
  for (size_t i = 0; i < bundle->eos_count; i++)
    if (bundle->eos[i] == token) return true;
  for (size_t i = 0; i < options->stop_count; i++)
    if (options->stop_tokens[i] == token) return true;
  return false;
}

static void exclude(sequence *s, const int32_t *ids, size_t count) {
  for (size_t i = 0; i < count; i++) s->logits[ids[i]] = -INFINITY;
}

/* Choose among the tokens that may come at this place. */
static bool choose_among(sequence *s, int32_t *token) {
  const int32_t *allowed = s->opening->allowed[s->count];
  size_t vocab_size = (size_t)s->model->bundle.vocab_size, count = s->opening->counts[s->count];
  float *kept = s->logits + vocab_size;
  for (size_t i = 0; i < count; i++) kept[i] = s->logits[allowed[i]];
  for (size_t i = 0; i < vocab_size; i++) s->logits[i] = -INFINITY;
  for (size_t i = 0; i < count; i++) s->logits[allowed[i]] = kept[i];
  return ortolan_sampler_next(&s->sampler, s->logits, token);
}

/* Choose the next token from the logits, unless the model forces one. */
static bool choose(sequence *s, int32_t *token) {
  const ortolan_bundle *bundle = &s->model->bundle;
  int32_t forced = s->count + 1 == s->limit ? bundle->forced_last : -1;
  bool opens = s->count < s->opening->count;
  if (forced < 0 && opens && s->opening->counts[s->count] == 1)
    forced = s->opening->allowed[s->count][0];
  if (forced >= 0) {
    *token = forced;
    ortolan_sampler_record(&s->sampler, forced);
    return true;
  }
  if (opens) return choose_among(s, token);
  exclude(s, bundle->suppressed, bundle->suppressed_count);
  if (s->count == s->opening->count)
    exclude(s, bundle->suppressed_first, bundle->suppressed_first_count);
  if (s->count < s->options->min_new_tokens) {
    exclude(s, bundle->eos, bundle->eos_count);
    exclude(s, s->options->stop_tokens, s->options->stop_count);
  }
  return ortolan_sampler_next(&s->sampler, s->logits, token);
}

static bool continue_sequence(sequence *s, ortolan_finish *finish) {
  for (;;) {
    int32_t token;
    if (!choose(s, &token)) return false;
    if (s->count == 0) s->opening->first = token;
    if (s->tokens != NULL) s->tokens[s->count] = token;
    s->count++;
    bool goes_on = s->options->on_token == NULL || s->options->on_token(token, s->options->context);
    bool ends = ortolan_ends(&s->model->bundle, s->options, token);
    *finish = ends ? ORTOLAN_STOP : goes_on ? ORTOLAN_LENGTH : ORTOLAN_CANCELLED;
    if (*finish != ORTOLAN_LENGTH || s->count == s->limit) return true;
    if (!ortolan_engine_append(s->model->engine, &token, 1, 1, s->logits)) return false;
  }
}

bool ortolan_continue(ortolan_model *model, const int32_t *prompt, size_t prompt_count,
                      ortolan_opening *opening, const ortolan_options *options, int32_t *tokens,
                      size_t capacity, size_t *count, ortolan_finish *finish) {
  const ortolan_bundle *bundle = &model->bundle;
  ortolan_finish ignored;
  ortolan_opening usual = {
      .allowed = {&bundle->forced_first}, .counts = {1}, .count = bundle->forced_first >= 0};
  sequence s = {.model = model,
                .options = options,
                .tokens = tokens,
                .opening = opening == NULL ? &usual : opening};
  *count = 0;
  if (prompt_count == 0 && bundle->bos >= 0) prompt = &bundle->bos, prompt_count = 1;
  if (prompt_count == 0)
    return ortolan_fail(ORTOLAN_INPUT,
                        "The prompt is empty, and this model has no BOS token to start from. Pass "
                        "at least one token.");
  if (!check_ids(model, "prompt", prompt, prompt_count) ||
      !check_ids(model, "stop_tokens", options->stop_tokens, options->stop_count) ||
      !choose_limit(&s, prompt_count, capacity))
    return false;
  size_t vocab_size = (size_t)bundle->vocab_size;
  s.logits = malloc((vocab_size + ORTOLAN_MAX_LANGUAGES) * sizeof *s.logits);
  ortolan_engine_reset(model->engine);
  bool ok =
      (s.logits != NULL || ortolan_no_memory()) &&
      ortolan_sampler_open(&s.sampler, &options->sampling, vocab_size, prompt, prompt_count) &&
      ortolan_engine_prefill(model->engine, prompt, prompt_count, s.logits) &&
      continue_sequence(&s, finish == NULL ? &ignored : finish);
  *count = s.count;
  ortolan_sampler_close(&s.sampler);
  free(s.logits);
  return ok;
}

bool ortolan_generate(ortolan_model *model, const int32_t *prompt, size_t prompt_count,
                      const ortolan_options *options, int32_t *tokens, size_t capacity,
                      size_t *count, ortolan_finish *finish, ortolan_error *error) {
  const ortolan_options greedy = {.sampling = ORTOLAN_GREEDY};
  *count = 0;
  return ortolan_done(
      ortolan_check_kind(model, ORTOLAN_DECODER) &&
          ortolan_continue(model, prompt, prompt_count, NULL, options == NULL ? &greedy : options,
                           tokens, capacity, count, finish),
      error);
}
