/* SHA-256 (FIPS 180-4). */
#ifndef ORTOLAN_SHA256_H
#define ORTOLAN_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint32_t state[8];
  uint64_t bytes;
  unsigned char block[64];
} ortolan_sha256;

void ortolan_sha256_begin(ortolan_sha256 *hash);
void ortolan_sha256_add(ortolan_sha256 *hash, const void *data, size_t size);

/* Write 64 lower-case hexadecimal digits and a NUL. */
void ortolan_sha256_end(ortolan_sha256 *hash, char hex[65]);

#endif
