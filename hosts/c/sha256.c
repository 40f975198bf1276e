#include <string.h>

#include "internal.h"

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int bits) {
  return x >> bits | x << (32 - bits);
}

static void add_block(uint32_t state[8], const unsigned char *block) {
  uint32_t w[64];
  for (int i = 0; i < 16; i++, block += 4)
    w[i] = (uint32_t)block[0] << 24 | (uint32_t)block[1] << 16 | (uint32_t)block[2] << 8 | block[3];
  for (int i = 16; i < 64; i++) {
    uint32_t x = w[i - 15], y = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) +
           (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
  }
  /* plain variables stay in registers: an array takes three times as long */
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (int i = 0; i < 64; i++) {
    uint32_t first = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) +
                     constants[i] + w[i];
    uint32_t second =
        (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first;
    d = c, c = b, b = a, a = first + second;
  }
  state[0] += a, state[1] += b, state[2] += c, state[3] += d;
  state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void ortolan_sha256_begin(ortolan_sha256 *hash) {
  *hash = (ortolan_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                     0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void ortolan_sha256_add(ortolan_sha256 *hash, const void *data, size_t size) {
  const unsigned char *bytes = data;
  size_t filled = hash->bytes % 64;
  hash->bytes += size;
  if (filled > 0) {
    size_t part = size < 64 - filled ? size : 64 - filled;
    memcpy(hash->block + filled, bytes, part);
    bytes += part, size -= part;
    if (filled + part < 64) return;
    add_block(hash->state, hash->block);
  }
  for (; size >= 64; bytes += 64, size -= 64) add_block(hash->state, bytes);
  if (size > 0) memcpy(hash->block, bytes, size);
}

void ortolan_sha256_end(ortolan_sha256 *hash, char hex[65]) {
  static const unsigned char padding[64] = {0x80};
  static const char digits[] = "0123456789abcdef";
  unsigned char length[8];
  for (int i = 0; i < 8; i++) length[i] = (unsigned char)(hash->bytes * 8 >> (56 - 8 * i));
  ortolan_sha256_add(hash, padding, 1 + (119 - hash->bytes % 64) % 64);
  ortolan_sha256_add(hash, length, 8);
  for (int i = 0; i < 64; i++) hex[i] = digits[hash->state[i / 8] >> (28 - 4 * (i % 8)) & 15];
  hex[64] = 0;
}
