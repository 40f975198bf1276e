/* Generate with every option, for tests:
 *
 *     run BUNDLE NEW CAPACITY MINIMUM TEMPERATURE TOP_K TOP_P MIN_P REPETITION PRESENCE FREQUENCY
 *         SEED STOP_COUNT STOP... PROMPT...
 */
#include <stdio.h>
#include <stdlib.h>

#include "ortolan.h"

int main(int argc, char **argv) {
  static int32_t ids[65536], tokens[65536];
  ortolan_error error;
  ortolan_finish finish = ORTOLAN_LENGTH;
  if (argc < 14) return 2;
  size_t given = (size_t)argc - 14, count = 0;
  for (size_t i = 0; i < given; i++) ids[i] = (int32_t)strtol(argv[14 + i], NULL, 10);
  const ortolan_options options = {
      .max_new_tokens = strtoul(argv[2], NULL, 10),
      .min_new_tokens = strtoul(argv[4], NULL, 10),
      .sampling = {.temperature = strtod(argv[5], NULL),
                   .top_k = strtol(argv[6], NULL, 10),
                   .top_p = strtod(argv[7], NULL),
                   .min_p = strtod(argv[8], NULL),
                   .repetition_penalty = strtod(argv[9], NULL),
                   .presence_penalty = strtod(argv[10], NULL),
                   .frequency_penalty = strtod(argv[11], NULL),
                   .seed = strtoull(argv[12], NULL, 10)},
      .stop_tokens = ids,
      .stop_count = strtoul(argv[13], NULL, 10)};
  ortolan_model *model = ortolan_open(argv[1], NULL, &error);
  if (model == NULL) {
    fprintf(stderr, "%s: %s\n", ortolan_code_name(error.code), error.message);
    return 1;
  }
  /* twice: the second must not depend on the first */
  for (int time = 0; time < 2; time++) {
    if (ortolan_generate(model, ids + options.stop_count, given - options.stop_count, &options,
                         tokens, strtoul(argv[3], NULL, 10), &count, &finish, &error)) {
      for (size_t i = 0; i < count; i++) printf("%ld ", (long)tokens[i]);
      printf("%s\n", finish == ORTOLAN_STOP ? "stop" : "length");
    } else {
      fprintf(stderr, "%s: %s\n", ortolan_code_name(error.code), error.message);
    }
  }
  ortolan_close(model);
  return error.code != ORTOLAN_OK;
}
