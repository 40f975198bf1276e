/* Text in, text out: a prompt is encoded, and new tokens become text piece by piece. */
#include "tokenizer.h"

#define MAX_STOP_TEXTS 64
#define MAX_STOP_TEXT_BYTES 1024

const ortolan_tokenizer *ortolan_model_tokenizer(ortolan_model *model, ortolan_error *error) {
  const ortolan_bundle *bundle = &model->bundle;
  bool unread = model->tokenizer == NULL && bundle->tokenizer != NULL;
  size_t size;
  char *json = unread ? ortolan_bundle_read(bundle, bundle->tokenizer, &size) : NULL;
  if (json != NULL) model->tokenizer = ortolan_tokenizer_read(json, size, bundle->vocab_size);
  free(json);
  if (bundle->tokenizer == NULL)
    ortolan_fail(ORTOLAN_TOKENIZER,
                 "This bundle has no tokenizer. Pass token ids, or export with --tokenizer.");
  ortolan_done(model->tokenizer != NULL, error);
  return model->tokenizer;
}

/* What receives the tokens of one completion. */
typedef struct {
  const ortolan_bundle *bundle;
  ortolan_options tokens; /* the caller's, whose callback is called as well */
  ortolan_text_options text;
  ortolan_stream *stream;
  ortolan_text held; /* text that may still become a stop text */
  size_t skipped;    /* tokens whose text is left out */
  bool stopped, cancelled, failed;
} receiver;

/* --- stop texts --- */

/* Bytes of the text before the stop text that ends first; the longest, if several end together. */
static bool find_stop(const receiver *r, size_t *shown) {
  size_t best = SIZE_MAX, start, end;
  for (size_t i = 0; i < r->text.stop_text_count; i++) {
    const char *stop = r->text.stop_texts[i];
    const ortolan_pattern pattern = ortolan_literal(stop, strlen(stop));
    bool found = ortolan_pattern_next(&pattern, r->held.bytes, r->held.size, 0, &start, &end) == 1;
    if (found && (end < best || (end == best && start < *shown))) best = end, *shown = start;
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
  if (r->held.failed) return ortolan_text_error(&r->held);
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
  r->failed =
      !ortolan_stream_push(r->stream, token, &piece, &size, NULL) || !receive(r, piece, size);
  return goes_on && !r->failed && !r->stopped && !r->cancelled;
}

static bool finish_text(receiver *r) {
  const char *piece;
  size_t size;
  if (r->failed || !ortolan_stream_flush(r->stream, &piece, &size, NULL) ||
      !receive(r, piece, size))
    return false;
  emit(r, r->held.size);
  return true;
}

static bool check_options(const ortolan_text_options *options) {
  if (!ortolan_check_size("ortolan_text_options", options->struct_size, sizeof *options))
    return false;
  if (options->stop_text_count > MAX_STOP_TEXTS)
    return ortolan_fail(ORTOLAN_INPUT, "stop_texts must be at most %d texts (got %zu).",
                        MAX_STOP_TEXTS, options->stop_text_count);
  for (size_t i = 0; i < options->stop_text_count; i++) {
    size_t size = strlen(options->stop_texts[i]);
    if (size < 1 || size > MAX_STOP_TEXT_BYTES)
      return ortolan_fail(ORTOLAN_INPUT, "A stop text must have 1 to %d bytes (got %zu).",
                          MAX_STOP_TEXT_BYTES, size);
  }
  return true;
}

bool ortolan_complete(ortolan_model *model, const ortolan_ids *prompt, ortolan_opening *opening,
                      const ortolan_chat_form *form, const ortolan_text_options *options,
                      ortolan_finish *finish) {
  const ortolan_options greedy = {.sampling = ORTOLAN_GREEDY};
  const ortolan_text_options defaults = ORTOLAN_TEXT_OPTIONS;
  const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, NULL);
  if (tokenizer == NULL || (options != NULL && !check_options(options))) return false;
  receiver r = {.bundle = &model->bundle,
                .text = options == NULL ? defaults : *options,
                .skipped = opening != NULL && opening->is_hidden ? opening->count : 0};
  r.tokens = r.text.generation == NULL ? greedy : *r.text.generation;
  size_t count;
  ortolan_ids stops = {.count = 0};
  ortolan_finish reason = ORTOLAN_LENGTH;
  for (size_t i = 0; i < r.tokens.stop_count; i++) ortolan_ids_add(&stops, r.tokens.stop_tokens[i]);
  for (size_t i = 0; form != NULL && i < form->end_count; i++)
    ortolan_ids_add(&stops, form->ends[i]);
  bool ok = !stops.failed || ortolan_no_memory();
  r.tokens.stop_tokens = stops.items, r.tokens.stop_count = stops.count;
  ortolan_options passed = r.tokens;
  passed.on_token = receive_token, passed.context = &r;
  ok = ok && (r.stream = ortolan_stream_open(tokenizer, true, NULL)) != NULL &&
       ortolan_continue(model, prompt->items, prompt->count, opening, &passed, NULL, SIZE_MAX,
                        &count, &reason) &&
       finish_text(&r);
  if (finish != NULL) *finish = r.stopped ? ORTOLAN_STOP : reason;
  ortolan_stream_close(r.stream);
  free(r.held.bytes);
  free(stops.items);
  return ok;
}

bool ortolan_generate_text(ortolan_model *model, const char *prompt, size_t size,
                           const ortolan_text_options *options, ortolan_finish *finish,
                           ortolan_error *error) {
  const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, NULL);
  const ortolan_input input = {.text = prompt, .size = size};
  ortolan_ids ids = {.count = 0};
  bool ok = tokenizer != NULL && ortolan_check_kind(model, ORTOLAN_DECODER) &&
            ortolan_tokenizer_encode(tokenizer, input, true, 0, &ids, NULL) &&
            ortolan_complete(model, &ids, NULL, NULL, options, finish);
  free(ids.items);
  return ortolan_done(ok, error);
}

/* The id of a text that is one token, or -1 after an error. */
static int32_t one_token(const ortolan_tokenizer *tokenizer, const char *text) {
  const ortolan_input input = {.text = text, .size = strlen(text)};
  ortolan_ids ids = {.count = 0};
  int32_t token = -1;
  if (ortolan_tokenizer_encode(tokenizer, input, false, 0, &ids, NULL)) {
    if (ids.count == 1) token = ids.items[0];
    else
      ortolan_fail(ORTOLAN_INPUT,
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
  const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, NULL);
  const ortolan_ids start = {.items = &model->bundle.start, .count = 1};
  int32_t token = -1;
  ortolan_opening opening = {.allowed = {&token}, .counts = {1}, .count = 1};
  return ortolan_done(
      tokenizer != NULL && ortolan_check_kind(model, ORTOLAN_SEQ2SEQ) &&
          (model->bundle.sound.rate == 0 ||
           ortolan_fail(ORTOLAN_KIND, "This bundle reads sounds. Use ortolan_transcribe.")) &&
          (first == NULL || (token = one_token(tokenizer, first)) >= 0) &&
          ortolan_read_source(model, source, size) &&
          ortolan_complete(model, &start, first == NULL ? NULL : &opening, NULL, options, finish),
      error);
}
