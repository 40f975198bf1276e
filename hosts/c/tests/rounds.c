/* Create, generate, abort and dispose again and again, for tests: rounds BUNDLE ROUNDS
 *
 * Prints ten lines: rounds so far, resident kilobytes, and bytes in use on the heap. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#define HEAP mallinfo2().uordblks
#else
#define HEAP (size_t)0
#endif

#include "ortolan.h"

static bool abort_soon(const char *text, size_t size, void *pieces) {
  (void)text, (void)size;
  return --*(int *)pieces > 0;
}

static long resident_kb(void) {
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
  if (file != NULL) fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(int argc, char **argv) {
  const ortolan_open_options opening = {.threads = 1};
  ortolan_options generation = {.max_new_tokens = 32, .sampling = ORTOLAN_GREEDY};
  ortolan_text_options options = ORTOLAN_TEXT_OPTIONS;
  ortolan_error error = {.code = ORTOLAN_OK};
  int pieces, rounds = argc == 3 ? atoi(argv[2]) : 0;
  options.generation = &generation, options.on_text = abort_soon, options.context = &pieces;
  for (int round = 1; round <= rounds; round++) {
    ortolan_model *model = ortolan_open(argv[1], &opening, &error);
    pieces = round % 8;
    generation.sampling.temperature = round % 2;
    if (model == NULL ||
        !ortolan_generate_text(model, "def read", 8, &options, NULL, &error))
      return fprintf(stderr, "%s\n", error.message), 1;
    ortolan_close(model);
    if (round % (rounds / 10) == 0)
      printf("%d %ld %zu\n", round, resident_kb(), HEAP), fflush(stdout);
  }
  return 0;
}
