/* Chat, translate or transcribe, for tests: converse BUNDLE TASK NEW [TEXT...]
 *
 * A text begins with the first letter of its role. TASK is `prompt`, `chat`, `translate` (of which
 * the texts are the source and the first token), `hear` or `render` (a file of float32 samples, and
 * a language; the second translates). Prints the text and the ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ortolan.h"

static bool print(const char *text, size_t size, void *file) {
  return fwrite(text, 1, size, file) == size;
}

static bool hear(ortolan_model *model, const char *file, ortolan_speech_options options,
                 ortolan_error *error) {
  static float samples[1 << 20];
  const char *language = NULL;
  FILE *sound = fopen(file, "rb");
  size_t count = sound == NULL ? 0 : fread(samples, sizeof *samples, 1 << 20, sound);
  if (sound != NULL) fclose(sound);
  bool ok = ortolan_transcribe(model, samples, count, &options, &language, NULL, error);
  printf("|%s", language == NULL ? "" : language);
  return ok;
}

static bool note(int32_t token, void *file) {
  return fprintf(file, "%ld ", (long)token) > 0;
}

int main(int argc, char **argv) {
  static char written[1 << 20];
  ortolan_message messages[64];
  ortolan_text_options options = ORTOLAN_TEXT_OPTIONS;
  ortolan_options generation = {.sampling = ORTOLAN_GREEDY, .on_token = note, .context = stderr};
  ortolan_error error = {.code = ORTOLAN_OK};
  size_t size = 0, count = argc < 4 ? 0 : (size_t)argc - 4;
  if (argc < 4 || count > 64) return 2;
  generation.max_new_tokens = strtoul(argv[3], NULL, 10);
  options.generation = &generation, options.on_text = print, options.context = stdout;
  for (size_t i = 0; i < count; i++) {
    const char *text = argv[4 + i];
    messages[i].role = *text == 's' ? ORTOLAN_SYSTEM : *text == 'u' ? ORTOLAN_USER : ORTOLAN_ASSISTANT;
    messages[i].text = text + 1, messages[i].size = strlen(text + 1);
  }
  ortolan_model *model = ortolan_open(argv[1], NULL, &error);
  bool ok = model != NULL;
  for (int time = 0; ok && time < 2; time++) { /* the second must not depend on the first */
    if (strcmp(argv[2], "chat") == 0)
      ok = ortolan_chat(model, messages, count, &options, NULL, &error);
    else if (strcmp(argv[2], "prompt") == 0)
      ok = ortolan_chat_prompt(model, messages, count, written, sizeof written, &size, &error) &&
           print(written, size, stdout);
    else if (strcmp(argv[2], "translate") != 0)
      ok = hear(model, argv[4],
                (ortolan_speech_options){.struct_size = sizeof(ortolan_speech_options),
                                         .language = count > 1 ? argv[5] : NULL,
                                         .translate = strcmp(argv[2], "render") == 0,
                                         .text = &options},
                &error);
    else
      ok = ortolan_translate(model, argv[4], strlen(argv[4]), count > 1 ? argv[5] : NULL, &options,
                             NULL, &error);
    fputc(0, stdout), fputc('\n', stderr);
  }
  if (!ok) fprintf(stderr, "%s: %s\n", ortolan_code_name(error.code), error.message);
  ortolan_close(model);
  return !ok;
}
