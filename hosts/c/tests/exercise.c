/* Use bundles in every way, with inputs from a seed, for tests: exercise SEED BUNDLE...
 *
 * Prints the outcome of each call. Exits with 0 unless a failure has no code or no message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ortolan.h"

static uint64_t state;
static ortolan_error error;
static int untyped;

static size_t below(size_t bound) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (size_t)(state >> 33) % bound;
}

static bool told(const char *call, bool ok) {
  printf("%s %s\n", call, ok ? "ok" : ortolan_code_name(error.code));
  untyped |= !ok && (error.code == ORTOLAN_OK || error.message[0] == 0);
  return ok;
}

/* A text of its own size, so that a sanitizer sees a read beyond its end. */
static char *text(size_t *size) {
  static const char *const pieces[] = {"a",  " ", "def ", "\n",  "\xe2\x96\x81", "<s>", "[MASK]", "\xff",
                                       "\xc3", "é", "日本", "🙂", "e\xcc\x81", "\x01", "<|im_end|>", "x.y"};
  char *all = malloc(1);
  *size = 0;
  for (size_t count = below(12); count > 0; count--) {
    const char *piece = pieces[below(16)];
    if (below(200) != 0 && (piece[0] == '\xff' || piece[0] == '\xc3')) piece = "b";
    all = realloc(all, *size + strlen(piece));
    memcpy(all + *size, piece, strlen(piece));
    *size += strlen(piece);
  }
  return all;
}

static bool receive(const char *piece, size_t size, void *context) {
  (void)context;
  return memchr(piece, 0, size + 1) == piece + size && below(10) != 0;
}

static void use_ids(ortolan_model *model) {
  int32_t ids[40], tokens[24];
  size_t count = below(40), written = 0;
  ortolan_options options = {.max_new_tokens = 1 + below(24), .sampling = ORTOLAN_GREEDY};
  for (size_t i = 0; i < count; i++) ids[i] = (int32_t)below((size_t)ortolan_vocab_size(model) + 1);
  options.sampling.temperature = (double)below(3);
  options.sampling.top_p = (double)below(12) / 10;
  options.sampling.top_k = (int64_t)below(5);
  options.sampling.seed = below(1000);
  options.stop_tokens = ids, options.stop_count = below(count + 1);
  told("generate", ortolan_generate(model, ids, count, &options, tokens, 24, &written, NULL, &error));
  ortolan_report report;
  if (below(4) == 0) told("verify", ortolan_verify(model, &report, &error));
}

static void use_tokenizer(const ortolan_tokenizer *tokenizer) {
  int32_t ids[400], types[400];
  char decoded[4096];
  size_t size, other_size, count, length;
  char *first = text(&size), *second = text(&other_size);
  bool ok = told("encode", ortolan_encode(tokenizer, first, size, true, below(30), ids, 400, &count,
                                          &error));
  ortolan_stream *stream = ok ? ortolan_stream_open(tokenizer, below(2), &error) : NULL;
  const char *piece;
  for (size_t i = 0; stream != NULL && i < count && i < 400; i++)
    told("push", ortolan_stream_push(stream, ids[i], &piece, &length, &error));
  if (stream != NULL) told("flush", ortolan_stream_flush(stream, &piece, &length, &error));
  ortolan_stream_close(stream);
  told("pair", ortolan_encode_pair(tokenizer, first, size, second, other_size, below(30), ids, types,
                                   400, &count, &error));
  for (size_t i = 0; i < 9; i++) ids[i] = (int32_t)below(1 << 10) - 8;
  told("decode", ortolan_decode(tokenizer, ids, 9, below(2), decoded, below(4096), &length, &error));
  free(first);
  free(second);
}

static void use_texts(ortolan_model *model) {
  static float samples[40000];
  const char *stops[] = {"a", "é", "zz"};
  ortolan_text_options options = ORTOLAN_TEXT_OPTIONS;
  ortolan_options generation = {.max_new_tokens = 1 + below(24), .sampling = ORTOLAN_GREEDY};
  size_t sizes[4], count = below(40000);
  char *texts[4];
  ortolan_message messages[4];
  ortolan_input inputs[4];
  ortolan_encoder_options encoding = ORTOLAN_ENCODER_OPTIONS;
  for (int i = 0; i < 4; i++) {
    texts[i] = text(&sizes[i]);
    messages[i] = (ortolan_message){(ortolan_role)((i + below(5) / 4) % 3), texts[i], sizes[i]};
    inputs[i] = (ortolan_input){texts[i], sizes[i], i == 3 ? texts[0] : NULL, i == 3 ? sizes[0] : 0};
  }
  options.generation = &generation, options.on_text = receive;
  options.stop_texts = stops, options.stop_text_count = below(4);
  encoding.truncate = below(2), encoding.dimensions = below(4);
  for (size_t i = 0; i < count; i++) samples[i] = (float)below(2000) / 1000 - 1;
  size_t size = ortolan_output_size(model);
  float *rows = calloc(4 * size + 1, sizeof *rows);
  told("text", ortolan_generate_text(model, texts[0], sizes[0], &options, NULL, &error));
  told("chat", ortolan_chat(model, messages, below(5), &options, NULL, &error));
  told("translate", ortolan_translate(model, texts[0], sizes[0], below(3) ? NULL : "a", &options, NULL, &error));
  told("transcribe", ortolan_transcribe(model, samples, count, NULL, NULL, NULL, &error));
  told("embed", ortolan_embed(model, inputs, below(5), &encoding, rows, &error));
  told("classify", ortolan_classify(model, inputs, below(5), &encoding, rows, &error));
  for (int i = 0; i < 4; i++) free(texts[i]);
  free(rows);
}

static void use(const char *bundle) {
  const ortolan_open_options options = {.threads = 1};
  ortolan_model *model = ortolan_open(bundle, &options, &error);
  if (told("open", model != NULL)) {
    const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, &error);
    if (told("tokenizer", tokenizer != NULL)) use_tokenizer(tokenizer);
    use_ids(model);
    use_texts(model);
  }
  ortolan_close(model);
}

int main(int argc, char **argv) {
  for (int i = 2; i < argc; i++) {
    printf("# %s\n", argv[i]), fflush(stdout);
    state = strtoull(argv[1], NULL, 10) + (uint64_t)i;
    use(argv[i]);
  }
  return argc < 3 ? 2 : untyped ? 3 : 0;
}
