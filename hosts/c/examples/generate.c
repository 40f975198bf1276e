/* Continue token ids: generate BUNDLE NEW_TOKENS [--temperature T] [--seed S] ID... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ortolan.h"

static bool print_token(int32_t token, void *separator) {
  printf("%s%ld", *(const char **)separator, (long)token);
  *(const char **)separator = " ";
  return fflush(stdout) == 0;
}

static int fail(const ortolan_error *error) {
  fprintf(stderr, "%s: %s\n", ortolan_code_name(error->code), error->message);
  return 1;
}

int main(int argc, char **argv) {
  const char *separator = "";
  ortolan_options options = {.sampling = ORTOLAN_GREEDY, .on_token = print_token,
                             .context = &separator};
  ortolan_error error;
  int32_t prompt[4096], tokens[4096];
  size_t prompt_count = 0, count;
  if (argc < 3) {
    fprintf(stderr, "usage: %s BUNDLE NEW_TOKENS [--temperature T] [--seed S] ID...\n", argv[0]);
    return 2;
  }
  options.max_new_tokens = strtoul(argv[2], NULL, 10);
  for (int i = 3; i < argc; i++) {
    bool has_value = i + 1 < argc;
    if (has_value && strcmp(argv[i], "--temperature") == 0)
      options.sampling.temperature = strtod(argv[++i], NULL);
    else if (has_value && strcmp(argv[i], "--seed") == 0)
      options.sampling.seed = strtoull(argv[++i], NULL, 10);
    else if (prompt_count < 4096)
      prompt[prompt_count++] = (int32_t)strtol(argv[i], NULL, 10);
  }
  ortolan_model *model = ortolan_open(argv[1], NULL, &error);
  if (model == NULL) return fail(&error);
  bool ok = ortolan_generate(model, prompt, prompt_count, &options, tokens, 4096, &count, NULL,
                             &error);
  printf("\n");
  ortolan_close(model);
  return ok ? 0 : fail(&error);
}
