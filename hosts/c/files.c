/* Opens plain files and nothing else: a bundle from an untrusted source may contain links to the
 * user's files, or a pipe that blocks. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64 /* weights beyond 2 GB on 32-bit systems */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#define PART_BYTES 65536

/* Open a plain file of a folder. Returns a descriptor, or -1. */
static int open_plain(const char *folder, const char *name, int64_t *size) {
  struct stat status;
  int descriptor = -1, parent = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent >= 0) {
    /* a pipe opens without waiting, and a link does not open at all */
    descriptor = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int reason = errno;
    close(parent);
    errno = reason;
  }
  if (descriptor < 0) {
    ortolan_fail(ORTOLAN_BUNDLE_FILE, "%s cannot be opened: %s. Copy the bundle again.", name,
                 errno == ELOOP ? "it is a symbolic link" : strerror(errno));
    return -1;
  }
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ortolan_fail(ORTOLAN_BUNDLE_FILE, "%s is not a plain file. Copy the bundle again.", name);
    close(descriptor);
    return -1;
  }
  *size = status.st_size;
  return descriptor;
}

bool ortolan_file_read(const char *folder, const ortolan_file *file, int64_t most, char **whole,
                       size_t *size) {
  int64_t actual, done = 0;
  ortolan_sha256 hash;
  char hex[65];
  int descriptor = open_plain(folder, file->name, &actual);
  if (descriptor < 0) return false;
  bool ok = true, reads = whole != NULL || file->sha256 != NULL;
  if (file->size >= 0 && actual != file->size)
    ok = ortolan_fail(ORTOLAN_BUNDLE_FILE,
                      "%s must have %lld bytes (got %lld). Copy the bundle again.", file->name,
                      (long long)file->size, (long long)actual);
  else if (actual > most)
    ok = ortolan_fail(ORTOLAN_BUNDLE_FILE, "%s must have at most %lld bytes (got %lld).",
                      file->name, (long long)most, (long long)actual);
  char *bytes = ok && reads ? malloc(whole == NULL ? PART_BYTES : (size_t)actual + 1) : NULL;
  if (ok && reads && bytes == NULL) ok = ortolan_no_memory();
  ortolan_sha256_begin(&hash);
  while (ok && reads && done < actual) {
    char *part = whole == NULL ? bytes : bytes + done;
    int64_t left = actual - done;
    ssize_t count = read(descriptor, part, left < PART_BYTES ? (size_t)left : PART_BYTES);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      ok = ortolan_fail(ORTOLAN_BUNDLE_FILE, "%s cannot be read: %s. Check the disk.", file->name,
                        count < 0 ? strerror(errno) : "it became shorter");
    } else {
      /* the bytes in memory, not the file: it may change */
      ortolan_sha256_add(&hash, part, (size_t)count);
      done += count;
    }
  }
  close(descriptor);
  ortolan_sha256_end(&hash, hex);
  if (ok && file->sha256 != NULL && strcmp(hex, file->sha256) != 0)
    ok = ortolan_fail(ORTOLAN_BUNDLE_FILE,
                      "%s was altered: its SHA-256 must be %.16s... (got %.16s...). "
                      "Copy the bundle again.",
                      file->name, file->sha256, hex);
  if (!ok || whole == NULL) {
    free(bytes);
    return ok;
  }
  bytes[actual] = 0;
  *whole = bytes, *size = (size_t)actual;
  return true;
}
