/* Text in, text out: a prompt is encoded, and new tokens become text piece by piece. */
#include "tokenizer.h"

#define MAX_STOP_TEXTS 64
#define MAX_STOP_TEXT_BYTES 1024

const ortolan_tokenizer *ortolan_model_tokenizer(ortolan_model *model, ortolan_error *error) {
  size_t size;
  if (error != NULL) *error = (ortolan_error){.code = ORTOLAN_OK};
  if (model->tokenizer != NULL) return model->tokenizer;
  if (model->bundle.tokenizer == NULL) {
    ortolan_fail(error, ORTOLAN_TOKENIZER,
                 "This bundle has no tokenizer. Pass token ids, or export with --tokenizer.");
    return NULL;
  }
  char *json = ortolan_bundle_read(&model->bundle, model->bundle.tokenizer, &size, error);
  if (json == NULL) return NULL;
  model->tokenizer = ortolan_tokenizer_read(json, size, model->bundle.vocab_size, error);
  free(json);
  return model->tokenizer;
}

/* What receives the tokens of one completion. */
typedef struct {
  const ortolan_bundle *bundle;
  ortolan_options tokens; /* the caller's, whose callback is called as well */
  ortolan_text_options text;
  ortolan_stream *stream;
  ortolan_text held; /* text that may still become a stop text */
  size_t skipped; /* tokens whose text is left out */
  bool stopped, cancelled, failed;
  ortolan_error *error;
} receiver;

/* --- stop texts --- */

static const char *find(const ortolan_text *text, const char *stop, size_t size) {
  const ortolan_pattern pattern = {.kind = ORTOLAN_PATTERN_LITERAL, .literal = (char *)stop,
                                   .size = size};
  size_t start, end;
  bool found = ortolan_pattern_next(&pattern, text->bytes, text->size, 0, &start, &end) == 1;
  return found ? text->bytes + start : NULL;
}

/* Bytes of the text before the stop text that ends first; the longest, if several end together. */
static bool find_stop(const receiver *r, size_t *shown) {
  size_t best = SIZE_MAX;
  for (size_t i = 0; i < r->text.stop_text_count; i++) {
    size_t size = strlen(r->text.stop_texts[i]);
    const char *place = find(&r->held, r->text.stop_texts[i], size);
    if (place == NULL) continue;
    size_t start = (size_t)(place - r->held.bytes);
    if (start + size > best || (start + size == best && start >= *shown)) continue;
    best = start + size, *shown = start;
  }
  return best < SIZE_MAX;
}

/* Bytes at the end that may still become a stop text. */
static size_t possible_stop(const receiver *r) {
  size_t most = 0;
  for (size_t i = 0; i < r->text.stop_text_count; i++) {
    size_t size = strlen(r->text.stop_texts[i]);
    for (size_t part = size - 1; part > most; part--)
      if (part <= r->held.size &&
          memcmp(r->held.bytes + r->held.size - part, r->text.stop_texts[i], part) == 0)
        most = part;
  }
  return most;
}

/* Pass on the start of the text that was held back. */
static void emit(receiver *r, size_t size) {
  if (size > 0 && !r->cancelled && r->text.on_text != NULL) {
    char after = r->held.bytes[size];
    r->held.bytes[size] = 0;
    r->cancelled = !r->text.on_text(r->held.bytes, size, r->text.context);
    r->held.bytes[size] = after;
  }
  r->held.size -= size;
  if (size > 0) memmove(r->held.bytes, r->held.bytes + size, r->held.size + 1);
}

static bool receive(receiver *r, const char *piece, size_t size) {
  size_t shown = 0;
  if (r->stopped || size == 0) return true;
  ortolan_text_add(&r->held, piece, size);
  if (r->held.failed) return ortolan_text_error(&r->held, r->error);
  r->stopped = find_stop(r, &shown);
  emit(r, r->stopped ? shown : r->held.size - possible_stop(r));
  if (r->stopped) r->held.size = 0;
  return true;
}

/* --- tokens --- */

static bool receive_token(int32_t token, void *context) {
  receiver *r = context;
  const char *piece;
  size_t size;
  bool goes_on = r->tokens.on_token == NULL || r->tokens.on_token(token, r->tokens.context);
  if (r->skipped > 0) return r->skipped--, goes_on;
  if (token >= r->bundle->speech.first_timestamp) return goes_on;
  if (ortolan_ends(r->bundle, &r->tokens, token)) return goes_on;
  r->failed = !ortolan_stream_push(r->stream, token, &piece, &size, r->error) ||
              !receive(r, piece, size);
  return goes_on && !r->failed && !r->stopped && !r->cancelled;
}

static bool finish_text(receiver *r) {
  const char *piece;
  size_t size;
  if (r->failed || !ortolan_stream_flush(r->stream, &piece, &size, r->error) ||
      !receive(r, piece, size))
    return false;
  emit(r, r->held.size);
  return true;
}

static bool check_options(const ortolan_text_options *options, ortolan_error *error) {
  if (!ortolan_check_size("ortolan_text_options", options->struct_size, sizeof *options, error))
    return false;
  if (options->stop_text_count > MAX_STOP_TEXTS)
    return ortolan_fail(error, ORTOLAN_INPUT, "stop_texts must be at most %d texts (got %zu).",
                        MAX_STOP_TEXTS, options->stop_text_count);
  for (size_t i = 0; i < options->stop_text_count; i++) {
    size_t size = strlen(options->stop_texts[i]);
    if (size < 1 || size > MAX_STOP_TEXT_BYTES)
      return ortolan_fail(error, ORTOLAN_INPUT, "A stop text must have 1 to %d bytes (got %zu).",
                          MAX_STOP_TEXT_BYTES, size);
  }
  return true;
}

/* The caller's stop tokens, then those of the model's answers, in an array to free. */
static int32_t *all_stops(const ortolan_options *options, const ortolan_chat_form *form) {
  int32_t *all = malloc((options->stop_count + ORTOLAN_MAX_STOP_TOKENS) * sizeof *all);
  if (all == NULL) return NULL;
  if (options->stop_count > 0)
    memcpy(all, options->stop_tokens, options->stop_count * sizeof *all);
  if (form != NULL) memcpy(all + options->stop_count, form->ends, sizeof form->ends);
  return all;
}

bool ortolan_complete(ortolan_model *model, const ortolan_ids *prompt, ortolan_opening *opening,
                      const ortolan_chat_form *form, const ortolan_text_options *options,
                      ortolan_finish *finish, ortolan_error *error) {
  const ortolan_options greedy = {.sampling = ORTOLAN_GREEDY};
  const ortolan_text_options defaults = ORTOLAN_TEXT_OPTIONS;
  const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, error);
  if (tokenizer == NULL || (options != NULL && !check_options(options, error))) return false;
  receiver r = {.bundle = &model->bundle, .text = options == NULL ? defaults : *options,
                .skipped = opening != NULL && opening->is_hidden ? opening->count : 0,
                .error = error};
  r.tokens = r.text.generation == NULL ? greedy : *r.text.generation;
  size_t room = (size_t)model->bundle.context_length, count;
  if (r.tokens.max_new_tokens > 0 && r.tokens.max_new_tokens < room)
    room = r.tokens.max_new_tokens;
  int32_t *tokens = malloc(room * sizeof *tokens), *stops = all_stops(&r.tokens, form);
  ortolan_finish reason = ORTOLAN_LENGTH;
  bool ok = (tokens != NULL && stops != NULL) || ortolan_no_memory(error);
  r.tokens.stop_tokens = stops;
  if (form != NULL) r.tokens.stop_count += form->end_count;
  ortolan_options passed = r.tokens;
  passed.on_token = receive_token, passed.context = &r;
  ok = ok && (r.stream = ortolan_stream_open(tokenizer, true, error)) != NULL &&
       ortolan_continue(model, prompt->items, prompt->count, opening, &passed, tokens, room, &count,
                        &reason, error) &&
       finish_text(&r);
  if (finish != NULL) *finish = r.stopped ? ORTOLAN_STOP : reason;
  ortolan_stream_close(r.stream);
  free(r.held.bytes);
  free(stops);
  free(tokens);
  return ok;
}

bool ortolan_generate_text(ortolan_model *model, const char *prompt, size_t size,
                           const ortolan_text_options *options, ortolan_finish *finish,
                           ortolan_error *error) {
  const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, error);
  ortolan_ids ids = {.count = 0};
  bool ok = tokenizer != NULL && ortolan_check_kind(model, ORTOLAN_DECODER, error) &&
            ortolan_tokenizer_encode(tokenizer, prompt, size, NULL, 0, true, 0, &ids, NULL, error) &&
            ortolan_complete(model, &ids, NULL, NULL, options, finish, error);
  free(ids.items);
  return ok;
}

/* The id of a text that is one token, or -1 after an error. */
static int32_t one_token(const ortolan_tokenizer *tokenizer, const char *text,
                         ortolan_error *error) {
  ortolan_ids ids = {.count = 0};
  int32_t token = -1;
  if (ortolan_tokenizer_encode(tokenizer, text, strlen(text), NULL, 0, false, 0, &ids, NULL, error)) {
    if (ids.count == 1) token = ids.items[0];
    else
      ortolan_fail(error, ORTOLAN_INPUT,
                   "first must be one token, but `%.40s` has %zu. Pass a token of the tokenizer, "
                   "such as a language code.",
                   text, ids.count);
  }
  free(ids.items);
  return token;
}

bool ortolan_translate(ortolan_model *model, const char *source, size_t size, const char *first,
                       const ortolan_text_options *options, ortolan_finish *finish,
                       ortolan_error *error) {
  const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, error);
  ortolan_ids ids = {.count = 0};
  ortolan_ids start = {.items = &model->bundle.start, .count = 1};
  int32_t token = -1;
  ortolan_opening opening = {.allowed = {&token}, .counts = {1}, .count = 1};
  bool ok = tokenizer != NULL && ortolan_check_kind(model, ORTOLAN_SEQ2SEQ, error) &&
            (model->bundle.sound.rate == 0 ||
             ortolan_fail(error, ORTOLAN_KIND,
                          "This bundle reads sounds. Use ortolan_transcribe.")) &&
            (first == NULL || (token = one_token(tokenizer, first, error)) >= 0) &&
            ortolan_read_source(model, source, size, &ids, error) &&
            ortolan_engine_read(model->engine, ids.items, ids.count, error) &&
            ortolan_complete(model, &start, first == NULL ? NULL : &opening, NULL, options, finish,
                             error);
  free(ids.items);
  return ok;
}
