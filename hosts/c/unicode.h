/* Characters: UTF-8, their properties and their normal forms. */
#ifndef ORTOLAN_UNICODE_H
#define ORTOLAN_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Flags, in the order of unicode_table.py. */
enum {
  ORTOLAN_IS_LETTER = 1,      /* \p{L} */
  ORTOLAN_IS_NUMBER = 2,      /* \p{N} */
  ORTOLAN_IS_SPACE = 4,       /* \s */
  ORTOLAN_IS_WORD = 8,        /* \w */
  ORTOLAN_IS_NONSPACING = 16, /* an accent for BERT */
  ORTOLAN_IS_MARK = 32,       /* an accent for StripAccents */
  ORTOLAN_IS_PUNCTUATION = 64,
  ORTOLAN_IS_OTHER = 128, /* not kept by BERT */
  ORTOLAN_IS_NUMERIC = 256,
  ORTOLAN_IS_EXTENDS = 512, /* joins the character before it */
  ORTOLAN_IS_CONTROL = 1024,
  ORTOLAN_IS_PREPENDED = 2048, /* joins the character behind it */
};

uint32_t ortolan_flags(uint32_t point);
/* The lower case of a character: 1 or 2 characters. */
size_t ortolan_lower(uint32_t point, uint32_t lower[2]);
/* Cut white space off the ends of a text. */
void ortolan_strip(const char **text, size_t *size, bool start, bool end);
/* The normal form of characters, in an array to free, or NULL without memory. */
uint32_t *ortolan_normal_form(const char *text, size_t size, bool compatible, bool composed,
                              size_t *count);

/* The value of a hexadecimal digit, or -1. */
int ortolan_hex_digit(char digit);
/* Read the character at `text`, which is valid UTF-8. Returns its bytes. */
size_t ortolan_utf8_read(const char *text, uint32_t *point);
size_t ortolan_utf8_write(uint32_t point, char to[4]);
/* Bytes of the last character before `end`. */
size_t ortolan_utf8_last(const char *text, size_t end);
/* Bytes of the valid UTF-8 at the start of a text. `missing` is set if what follows is the start of
 * a character that ends with the text; else `wrong` is the number of bytes of the broken one. */
size_t ortolan_utf8_valid(const char *text, size_t size, bool *missing, size_t *wrong);

#endif
