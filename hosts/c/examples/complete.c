/* Continue a text: complete BUNDLE NEW PROMPT [--temperature T] [--seed S] [--stop TEXT]... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ortolan.h"

static bool print_text(const char *text, size_t size, void *file) {
  return fwrite(text, 1, size, file) == size && fflush(file) == 0;
}

int main(int argc, char **argv) {
  static const char *const reasons[] = {"stop", "length", "cancelled"};
  const char *stops[64];
  ortolan_options generation = {.sampling = ORTOLAN_GREEDY};
  ortolan_text_options options = ORTOLAN_TEXT_OPTIONS;
  ortolan_finish finish;
  ortolan_error error;
  if (argc < 4) {
    fprintf(stderr, "usage: %s BUNDLE NEW PROMPT [--temperature T] [--seed S] [--stop TEXT]...\n",
            argv[0]);
    return 2;
  }
  options.generation = &generation;
  options.stop_texts = stops;
  options.on_text = print_text;
  options.context = stdout;
  generation.max_new_tokens = strtoul(argv[2], NULL, 10);
  for (int i = 4; i + 1 < argc; i += 2) {
    const char *value = argv[i + 1];
    if (strcmp(argv[i], "--temperature") == 0)
      generation.sampling.temperature = strtod(value, NULL);
    if (strcmp(argv[i], "--seed") == 0) generation.sampling.seed = strtoull(value, NULL, 10);
    if (strcmp(argv[i], "--stop") == 0 && options.stop_text_count < 64)
      stops[options.stop_text_count++] = value;
  }
  ortolan_model *model = ortolan_open(argv[1], NULL, &error);
  bool ok = model != NULL && ortolan_generate_text(model, argv[3], strlen(argv[3]), &options,
                                                   &finish, &error);
  ortolan_close(model);
  if (ok) fprintf(stderr, "%s\n", reasons[finish]);
  else fprintf(stderr, "%s: %s\n", ortolan_code_name(error.code), error.message);
  return !ok;
}
