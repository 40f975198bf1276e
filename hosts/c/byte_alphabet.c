/* Printable bytes are letters of their own number; the others follow from U+0100 on, in order. */
#include "tokenizer.h"

static bool is_printable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

/* The letter of a byte. Bytes that are not printable: 00-20, 7F-A0, AD. */
static uint32_t letter_of(uint32_t byte) {
  if (is_printable(byte)) return byte;
  return 0x100 + (byte <= 0x20 ? byte : byte <= 0xA0 ? byte - 0x7F + 0x21 : 0x43);
}

void ortolan_spell_bytes(ortolan_text *to, const char *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) ortolan_text_point(to, letter_of((unsigned char)bytes[i]));
}

/* The byte of a letter, or -1. */
static int byte_of(uint32_t letter) {
  uint32_t byte = letter < 0x100    ? letter
                  : letter <= 0x120 ? letter - 0x100
                  : letter < 0x143  ? letter - 0x121 + 0x7F
                                    : 0xAD;
  return letter_of(byte) == letter ? (int)byte : -1;
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
