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
#include "sha256.h"

#define PART_BYTES 65536

/* Open a plain file of a folder. Returns a descriptor, or -1. */
static int open_plain(const char *folder, const char *name, int64_t *size, ortolan_error *error) {
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
    ortolan_fail(error, ORTOLAN_BUNDLE_FILE, "%s cannot be opened: %s. Copy the bundle again.",
                 name, errno == ELOOP ? "it is a symbolic link" : strerror(errno));
    return -1;
  }
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ortolan_fail(error, ORTOLAN_BUNDLE_FILE, "%s is not a plain file. Copy the bundle again.",
                 name);
    close(descriptor);
    return -1;
  }
  *size = status.st_size;
  return descriptor;
}

bool ortolan_file_scan(const char *folder, const char *name, int64_t size, int64_t most,
                       ortolan_on_bytes on_bytes, void *context, ortolan_error *error) {
  int64_t actual, left;
  int descriptor = open_plain(folder, name, &actual, error);
  if (descriptor < 0) return false;
  bool ok = true;
  if (size >= 0 && actual != size)
    ok = ortolan_fail(error, ORTOLAN_BUNDLE_FILE,
                      "%s must have %lld bytes (got %lld). Copy the bundle again.", name,
                      (long long)size, (long long)actual);
  else if (actual > most)
    ok = ortolan_fail(error, ORTOLAN_BUNDLE_FILE, "%s must have at most %lld bytes (got %lld).",
                      name, (long long)most, (long long)actual);
  char *part = ok && on_bytes != NULL ? malloc(PART_BYTES) : NULL;
  if (ok && on_bytes != NULL && part == NULL) ok = ortolan_no_memory(error);
  for (left = actual; ok && on_bytes != NULL && left > 0;) {
    ssize_t count = read(descriptor, part, left < PART_BYTES ? (size_t)left : PART_BYTES);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      ok = ortolan_fail(error, ORTOLAN_BUNDLE_FILE, "%s cannot be read: %s. Check the disk.", name,
                        count < 0 ? strerror(errno) : "it became shorter");
      break;
    }
    on_bytes(context, part, (size_t)count);
    left -= count;
  }
  free(part);
  close(descriptor);
  return ok;
}

typedef struct {
  char *bytes;
  size_t size;
  bool failed;
} collected;

static void collect(void *context, const char *bytes, size_t size) {
  collected *all = context;
  char *larger = all->failed ? NULL : realloc(all->bytes, all->size + size + 1);
  all->failed = larger == NULL;
  if (all->failed) return;
  all->bytes = larger;
  memcpy(all->bytes + all->size, bytes, size);
  all->size += size;
  all->bytes[all->size] = 0;
}

char *ortolan_file_read(const char *folder, const char *name, int64_t size, int64_t most,
                        size_t *count, ortolan_error *error) {
  collected all = {.bytes = NULL};
  collect(&all, "", 0);
  bool ok = ortolan_file_scan(folder, name, size, most, collect, &all, error);
  if (ok && all.failed) ok = ortolan_no_memory(error);
  if (!ok) {
    free(all.bytes);
    return NULL;
  }
  *count = all.size;
  return all.bytes;
}

static void add_to_hash(void *context, const char *bytes, size_t size) {
  ortolan_sha256_add(context, bytes, size);
}

bool ortolan_file_check(const char *folder, const ortolan_file *file, bool skip_hash,
                        ortolan_error *error) {
  ortolan_sha256 hash;
  char hex[65];
  ortolan_sha256_begin(&hash);
  if (!ortolan_file_scan(folder, file->name, file->size, INT64_MAX,
                         skip_hash ? NULL : add_to_hash, &hash, error))
    return false;
  if (skip_hash) return true;
  ortolan_sha256_end(&hash, hex);
  if (strcmp(hex, file->sha256) == 0) return true;
  return ortolan_fail(error, ORTOLAN_BUNDLE_FILE,
                      "%s was altered: its SHA-256 must be %.16s... (got %.16s...). "
                      "Copy the bundle again.",
                      file->name, file->sha256, hex);
}
