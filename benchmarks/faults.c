// Fails one call of the system below a folder, for benchmarks/faults.py.
//
//   cc -shared -fPIC -O2 -o faults.so faults.c -ldl
//   LD_PRELOAD=faults.so FAULT_ROOT=/some/place FAULT_AT=17 FAULT_HOW=eio FAULT_LOG=/tmp/n command
//
// Every call that names a path below FAULT_ROOT, or a file opened there, has a number, over all
// threads of the process. Call FAULT_AT fails: eio and enomem by that error, short by reading or
// writing half (what neither reads nor writes fails by EIO). FAULT_LOG gets the name of each
// call and its path.
// Three conditions hold over the whole process, without FAULT_AT: "nolocks" (every flock fails by
// ENOLCK), "readonly" (whatever would change a file fails by EROFS), and "clock", where the time of
// day jumps by up to two days back and forth at every look, wherever that is from.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls;
static __thread char about[PATH_MAX * 2];  // what the call is about, below FAULT_ROOT

static int below(const char *path) {
  const char *root = getenv("FAULT_ROOT");
  if (!root || !path) return 0;
  char whole[PATH_MAX * 2];
  if (path[0] != '/') {
    char here[PATH_MAX];
    if (syscall(SYS_getcwd, here, sizeof here) < 0) return 0;
    snprintf(whole, sizeof whole, "%s/%s", here, path);
    path = whole;
  }
  size_t n = strlen(root);
  if (strncmp(path, root, n) || (path[n] != '/' && path[n])) return 0;
  snprintf(about, sizeof about, "%s", path + n);
  return 1;
}

static int held(int fd) {
  if (!getenv("FAULT_ROOT")) return 0;
  char name[64], path[PATH_MAX];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, name, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return path[0] == '/' && below(path);  // a pipe has no path
}

static int at(int folder, const char *path) {
  return path && path[0] != '/' && folder != AT_FDCWD ? held(folder) : below(path);
}

// 0: go on; 1: fail, errno is set; 2: do half.
static int fault(const char *name) {
  long number = ++calls;
  const char *log = getenv("FAULT_LOG");
  if (log) {
    int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT, 0600);
    char line[PATH_MAX * 2 + 64];
    int n = snprintf(line, sizeof line, "%s\t%s\n", name, about);
    syscall(SYS_write, fd, line, n);
    syscall(SYS_close, fd);
  }
  const char *when = getenv("FAULT_AT"), *how = getenv("FAULT_HOW");
  if (how && !strcmp(how, "nolocks") && !strcmp(name, "flock")) return errno = ENOLCK, 1;
  if (how && !strcmp(how, "readonly") && strstr("Write truncate rename link unlink mkdir rmdir utime make", name))
    return errno = EROFS, 1;
  if (!when || atol(when) != number) return 0;
  if (how && !strcmp(how, "short") && strpbrk(name, "RW")) return 2;
  errno = how && !strcmp(how, "enomem") ? ENOMEM : EIO;
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPEN(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) ? "make" : "open")
#define WITH_MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *path, int flags, ...) { WITH_MODE if (below(path) && fault(OPEN(flags))) return -1; return REAL(open)(path, flags, mode); }
int open64(const char *path, int flags, ...) { WITH_MODE if (below(path) && fault(OPEN(flags))) return -1; return REAL(open64)(path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { WITH_MODE if (at(folder, path) && fault(OPEN(flags))) return -1; return REAL(openat)(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { WITH_MODE if (at(folder, path) && fault(OPEN(flags))) return -1; return REAL(openat64)(folder, path, flags, mode); }
FILE *fopen(const char *path, const char *mode) { if (below(path) && fault(strpbrk(mode, "wa+") ? "make" : "open")) return NULL; return REAL(fopen)(path, mode); }
FILE *fopen64(const char *path, const char *mode) { if (below(path) && fault(strpbrk(mode, "wa+") ? "make" : "open")) return NULL; return REAL(fopen64)(path, mode); }
ssize_t read(int fd, void *to, size_t n) { int f = held(fd) ? fault("Read") : 0; return f == 1 ? -1 : REAL(read)(fd, to, f && n > 1 ? n / 2 : n); }
ssize_t pread(int fd, void *to, size_t n, off_t o) { int f = held(fd) ? fault("Read") : 0; return f == 1 ? -1 : REAL(pread)(fd, to, f && n > 1 ? n / 2 : n, o); }
ssize_t pread64(int fd, void *to, size_t n, off64_t o) { int f = held(fd) ? fault("Read") : 0; return f == 1 ? -1 : REAL(pread64)(fd, to, f && n > 1 ? n / 2 : n, o); }
ssize_t write(int fd, const void *from, size_t n) { int f = held(fd) ? fault("Write") : 0; return f == 1 ? -1 : REAL(write)(fd, from, f && n > 1 ? n / 2 : n); }
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t o) { int f = held(fd) ? fault("Write") : 0; return f == 1 ? -1 : REAL(pwrite64)(fd, from, f && n > 1 ? n / 2 : n, o); }
int fsync(int fd) { return held(fd) && fault("fsync") ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return held(fd) && fault("fsync") ? -1 : REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t n) { return held(fd) && fault("truncate") ? -1 : REAL(ftruncate)(fd, n); }
int ftruncate64(int fd, off64_t n) { return held(fd) && fault("truncate") ? -1 : REAL(ftruncate64)(fd, n); }
int flock(int fd, int how) { return held(fd) && fault("flock") ? -1 : REAL(flock)(fd, how); }
int rename(const char *old, const char *new) { return below(old) && fault("rename") ? -1 : REAL(rename)(old, new); }
int renameat(int a, const char *old, int b, const char *new) { return at(a, old) && fault("rename") ? -1 : REAL(renameat)(a, old, b, new); }
int link(const char *old, const char *new) { return below(old) && fault("link") ? -1 : REAL(link)(old, new); }
int unlink(const char *path) { return below(path) && fault("unlink") ? -1 : REAL(unlink)(path); }
int unlinkat(int folder, const char *path, int flags) { return at(folder, path) && fault("unlink") ? -1 : REAL(unlinkat)(folder, path, flags); }
int remove(const char *path) { return below(path) && fault("unlink") ? -1 : REAL(remove)(path); }
int mkdir(const char *path, mode_t mode) { return below(path) && fault("mkdir") ? -1 : REAL(mkdir)(path, mode); }
int mkdirat(int folder, const char *path, mode_t mode) { return at(folder, path) && fault("mkdir") ? -1 : REAL(mkdirat)(folder, path, mode); }
int rmdir(const char *path) { return below(path) && fault("rmdir") ? -1 : REAL(rmdir)(path); }
int utimensat(int folder, const char *path, const struct timespec t[2], int flags) { return at(folder, path) && fault("utime") ? -1 : REAL(utimensat)(folder, path, t, flags); }
DIR *opendir(const char *path) { return below(path) && fault("list") ? NULL : REAL(opendir)(path); }
DIR *fdopendir(int fd) { return held(fd) && fault("list") ? NULL : REAL(fdopendir)(fd); }
struct dirent *readdir(DIR *folder) { return held(dirfd(folder)) && fault("list") ? NULL : REAL(readdir)(folder); }
struct dirent64 *readdir64(DIR *folder) { return held(dirfd(folder)) && fault("list") ? NULL : REAL(readdir64)(folder); }
int stat(const char *path, struct stat *s) { return below(path) && fault("stat") ? -1 : REAL(stat)(path, s); }
int stat64(const char *path, struct stat64 *s) { return below(path) && fault("stat") ? -1 : REAL(stat64)(path, s); }
int lstat(const char *path, struct stat *s) { return below(path) && fault("stat") ? -1 : REAL(lstat)(path, s); }
int lstat64(const char *path, struct stat64 *s) { return below(path) && fault("stat") ? -1 : REAL(lstat64)(path, s); }
int fstat(int fd, struct stat *s) { return held(fd) && fault("stat") ? -1 : REAL(fstat)(fd, s); }
int fstat64(int fd, struct stat64 *s) { return held(fd) && fault("stat") ? -1 : REAL(fstat64)(fd, s); }
int fstatat(int folder, const char *path, struct stat *s, int flags) { return at(folder, path) && fault("stat") ? -1 : REAL(fstatat)(folder, path, s, flags); }
int fstatat64(int folder, const char *path, struct stat64 *s, int flags) { return at(folder, path) && fault("stat") ? -1 : REAL(fstatat64)(folder, path, s, flags); }
int clock_gettime(clockid_t which, struct timespec *now) {
  static atomic_long looks;
  const char *how = getenv("FAULT_HOW");
  int failed = REAL(clock_gettime)(which, now);
  if (which == CLOCK_REALTIME && how && !strcmp(how, "clock")) now->tv_sec += (++looks * 37 % 97 - 48) * 3600;
  return failed;
}
int access(const char *path, int how) { return below(path) && fault("access") ? -1 : REAL(access)(path, how); }
void *mmap(void *a, size_t n, int p, int flags, int fd, off_t o) { return !(flags & MAP_ANONYMOUS) && fd >= 0 && held(fd) && fault("map") ? MAP_FAILED : REAL(mmap)(a, n, p, flags, fd, o); }
void *mmap64(void *a, size_t n, int p, int flags, int fd, off64_t o) { return !(flags & MAP_ANONYMOUS) && fd >= 0 && held(fd) && fault("map") ? MAP_FAILED : REAL(mmap64)(a, n, p, flags, fd, o); }
