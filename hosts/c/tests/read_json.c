/* Read a document from standard input: prints "valid", or the problem. */
#include <stdio.h>

#include "json.h"

int main(void) {
  static char text[1 << 20];
  size_t size = fread(text, 1, sizeof text, stdin), offset;
  const char *problem;
  ortolan_json *document = ortolan_json_read(text, size, &problem, &offset);
  puts(document != NULL ? "valid" : problem);
  ortolan_json_free(document);
  return document == NULL;
}
