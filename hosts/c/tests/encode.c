/* Embed or classify texts, for tests: encode BUNDLE embed|classify DIMENSIONS PROMPT TEXT...
 *
 * PROMPT "-" is the model's default. A text with a newline is a pair. Prints a row of numbers for
 * each text; for labels, their names first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ortolan.h"

int main(int argc, char **argv) {
  static ortolan_input inputs[256];
  ortolan_encoder_options options = ORTOLAN_ENCODER_OPTIONS;
  ortolan_error error = {.code = ORTOLAN_OK};
  if (argc < 5 || argc > 256) return 2;
  size_t count = (size_t)argc - 5;
  options.dimensions = strtoul(argv[3], NULL, 10);
  options.prompt = strcmp(argv[4], "-") == 0 ? NULL : argv[4];
  options.truncate = getenv("TRUNCATE") != NULL;
  for (size_t i = 0; i < count; i++) {
    char *text = argv[5 + i], *line = strchr(text, '\n');
    inputs[i].text = text;
    inputs[i].size = line == NULL ? strlen(text) : (size_t)(line - text);
    if (line != NULL) inputs[i].second = line + 1, inputs[i].second_size = strlen(line + 1);
  }
  ortolan_model *model = ortolan_open(argv[1], NULL, &error);
  size_t size = model == NULL ? 0 : ortolan_output_size(model);
  float *results = calloc(count * size + 1, sizeof *results);
  bool embeds = strcmp(argv[2], "embed") == 0;
  bool ok = model != NULL && results != NULL &&
            (embeds ? ortolan_embed(model, inputs, count, &options, results, &error)
                    : ortolan_classify(model, inputs, count, &options, results, &error));
  if (!ok) fprintf(stderr, "%s: %s\n", ortolan_code_name(error.code), error.message);
  if (ok && embeds && options.dimensions > 0) size = options.dimensions;
  for (size_t i = 0; ok && !embeds && i < size; i++) printf("%s\n", ortolan_label(model, i));
  for (size_t i = 0; ok && i < count * size; i++)
    printf("%.9g%c", (double)results[i], (i + 1) % size == 0 ? '\n' : ' ');
  free(results);
  ortolan_close(model);
  return !ok;
}
