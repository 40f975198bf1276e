/* Read mutated copies of a document: fuzz_json FILE ROUNDS. Built with sanitizers, it stops at the
 * first read or write outside of memory. Prints how many copies were still JSON. Without arguments,
 * reads a document from standard input, and prints "valid" or the error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static uint64_t state = 1;

static size_t below(size_t bound) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (size_t)(state >> 33) % bound;
}

/* Change a few bytes, move a part of the text, or cut it. Returns the new size. */
static size_t mutate(char *text, size_t size) {
  static const char pieces[] = "{}[]\",:\\u0-9.eEtrufalsn \t\n\xc3\xa9\xed\xa0\xff";
  for (size_t changes = 1 + below(8); changes > 0 && size > 1; changes--) {
    size_t from = below(size), to = below(size), count = 1 + below(16);
    switch (below(5)) {
      case 0: text[to] = (char)below(256); break;
      case 1: text[to] = pieces[below(sizeof pieces - 1)]; break;
      case 2: text[to] ^= (char)(1 << below(8)); break;
      case 3:
        if (count > size - from) count = size - from;
        if (count > size - to) count = size - to;
        memmove(text + to, text + from, count);
        break;
      default:
        if (below(20) == 0) size = to + 1;
    }
  }
  return size;
}

static int read_input(void) {
  static char text[1 << 20];
  size_t size = fread(text, 1, sizeof text, stdin);
  ortolan_json *document = ortolan_json_read(ORTOLAN_MANIFEST, "input", text, size);
  ortolan_error error;
  ortolan_done(document != NULL, &error);
  puts(document != NULL ? "valid" : error.message);
  ortolan_json_free(document);
  return document == NULL;
}

int main(int argc, char **argv) {
  if (argc == 1) return read_input();
  FILE *file = argc == 3 ? fopen(argv[1], "rb") : NULL;
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) return 2;
  size_t size = (size_t)ftell(file), valid = 0, rounds = strtoul(argv[2], NULL, 10);
  rewind(file);
  char *original = malloc(size + 1);
  if (original == NULL || fread(original, 1, size, file) != size) return 2;
  fclose(file);
  for (size_t round = 0; round < rounds; round++) {
    /* a part of its own size, so that a sanitizer sees a read beyond the end */
    size_t start = below(2) ? 0 : below(size), part = size - start;
    char *scratch = malloc(part);
    memcpy(scratch, original + start, part);
    size_t left = round == 0 ? part : mutate(scratch, part);
    char *text = malloc(left);
    memcpy(text, scratch, left);
    ortolan_json *document = ortolan_json_read(ORTOLAN_MANIFEST, "input", text, left);
    valid += document != NULL;
    if (document == NULL && ortolan_last_code() != ORTOLAN_MANIFEST) return 1;
    ortolan_json_free(document);
    free(text);
    free(scratch);
  }
  free(original);
  printf("%zu of %zu\n", valid, rounds);
  return 0;
}
