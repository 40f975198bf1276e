/* Printable bytes are letters of their own number; the others follow from U+0100 on, in order. */
#include "tokenizer.h"

static bool is_printable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

/* Place of a byte among those that are not printable: 00-20, 7F-A0, AD. */
static uint32_t place_of(uint32_t byte) {
  return byte <= 0x20 ? byte : byte <= 0xA0 ? byte - 0x7F + 0x21 : 0x43;
}

void ortolan_spell_bytes(ortolan_text *to, const char *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) {
    uint32_t byte = (unsigned char)bytes[i];
    ortolan_text_point(to, is_printable(byte) ? byte : 0x100 + place_of(byte));
  }
}

/* The byte of a letter, or -1. */
static int byte_of(uint32_t letter) {
  if (letter < 0x100) return is_printable(letter) ? (int)letter : -1;
  uint32_t place = letter - 0x100;
  if (place > 0x43) return -1;
  return (int)(place <= 0x20 ? place : place < 0x43 ? place - 0x21 + 0x7F : 0xAD);
}

void ortolan_spelled_bytes(ortolan_text *to, const char *text, size_t size) {
  size_t before = to->size;
  uint32_t letter;
  for (size_t at = 0; at < size;) {
    at += ortolan_utf8_read(text + at, &letter);
    int byte = byte_of(letter);
    if (byte < 0) {
      to->size = before;
      ortolan_text_add(to, text, size);
      return;
    }
    char one = (char)byte;
    ortolan_text_add(to, &one, 1);
  }
}
