/* Encode and decode texts, for tests: tokenize TEXTS FOLDER...
 *
 * TEXTS holds pairs of texts, each as its size in 4 bytes and its bytes. Writes for each: ids
 * without special tokens, at most 9 ids, all ids; the decoded text, and without special tokens; the
 * streamed text; ids and types of the pair; or an error. Numbers are separated by spaces, and texts
 * have their size before them. Exits with 1 if the last tokenizer cannot be opened. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ortolan.h"

#define ROOM 400000

static int32_t ids[ROOM], types[ROOM];
static char decoded[4 * ROOM];
static ortolan_error error;

static void put(const char *text, size_t size) {
  printf("%zu:", size);
  fwrite(text, 1, size, stdout);
  putchar('\n');
}

static bool put_ids(bool ok, const int32_t *numbers, size_t count) {
  if (!ok) {
    printf("%s: %s\n", ortolan_code_name(error.code), error.message);
    return false;
  }
  for (size_t i = 0; i < count; i++) printf("%ld ", (long)numbers[i]);
  putchar('\n');
  return true;
}

static char *read_text(FILE *file, size_t *size) {
  unsigned char head[4];
  if (fread(head, 1, 4, file) != 4) return NULL;
  *size = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
  char *text = malloc(*size + (*size == 0)); /* of its own size, for sanitizers */
  return text != NULL && fread(text, 1, *size, file) == *size ? text : NULL;
}

static void put_stream(const ortolan_tokenizer *tokenizer, size_t count) {
  ortolan_stream *stream = ortolan_stream_open(tokenizer, true, &error);
  size_t used = 0, size;
  const char *piece;
  for (size_t i = 0; i <= count; i++) {
    bool ok = i < count ? ortolan_stream_push(stream, ids[i], &piece, &size, &error)
                        : ortolan_stream_flush(stream, &piece, &size, &error);
    if (!ok) exit(3);
    if (size > 0 && ((unsigned char)piece[0] & 0xC0) == 0x80) exit(4); /* inside a character */
    memcpy(decoded + used, piece, size);
    used += size;
  }
  put(decoded, used);
  ortolan_stream_close(stream);
}

static void each_text(const ortolan_tokenizer *tokenizer, FILE *file) {
  size_t size, other_size, count;
  char *text, *other;
  while ((text = read_text(file, &size)) != NULL && (other = read_text(file, &other_size)) != NULL) {
    bool ok = true;
    for (int way = 0; ok && way < 3; way++) {
      ok = ortolan_encode(tokenizer, text, size, way > 0, way == 1 ? 9 : 0, ids, ROOM, &count,
                          &error);
      ok = put_ids(ok, ids, count);
    }
    for (int skip = 0; ok && skip < 2; skip++) {
      size_t length;
      if (!ortolan_decode(tokenizer, ids, count, skip, decoded, sizeof decoded, &length,
                          &error))
        exit(3);
      put(decoded, length);
    }
    if (ok) put_stream(tokenizer, count);
    if (ok) {
      ok = ortolan_encode_pair(tokenizer, text, size, other, other_size, 12, ids, types, ROOM,
                               &count, &error);
      ok = put_ids(ok, ids, count);
    }
    if (ok) put_ids(true, types, count);
    puts(".");
    free(text);
    free(other);
  }
}

int main(int argc, char **argv) {
  FILE *file = argc < 3 ? NULL : fopen(argv[1], "rb");
  bool ok = false;
  if (file == NULL) return 2;
  for (int i = 2; i < argc; i++) {
    ortolan_tokenizer *tokenizer = ortolan_tokenizer_open(argv[i], &error);
    ok = tokenizer != NULL;
    rewind(file);
    if (ok) each_text(tokenizer, file);
    else printf("%s: %s\n", ortolan_code_name(error.code), error.message);
    ortolan_tokenizer_close(tokenizer);
  }
  fclose(file);
  return !ok;
}
