/* Strikes a program from within, at its Nth call on a file whose name holds a word.
 *
 * FAULT_PROGRAM  a word of the command line; other programs are left alone
 * FAULT_PATH     a word of the file's name
 * FAULT_AT       which call
 * FAULT_DO       kill | errno N (from then on) | once N | slow MS (from then on) | clock SECONDS
 * FAULT_MARK     a file that is made when it strikes
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int on;
static const char *word, *mark, *what;
static long at, number, calls, jumped;

__attribute__((constructor)) static void begin(void) {
  char line[8192];
  const char *program = getenv("FAULT_PROGRAM");
  word = getenv("FAULT_PATH");
  mark = getenv("FAULT_MARK");
  what = getenv("FAULT_DO");
  if (!program || !word || !mark || !what || !getenv("FAULT_AT")) return;
  at = atol(getenv("FAULT_AT"));
  const char *space = strchr(what, ' ');
  number = space ? atol(space) : 0;
  int file = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY);
  long size = syscall(SYS_read, file, line, sizeof line - 1);
  syscall(SYS_close, file);
  for (long i = 0; i < size; i++) if (!line[i]) line[i] = ' ';
  line[size > 0 ? size : 0] = 0;
  on = strstr(line, program) != NULL;
}

/* 0: go on; else the error to answer with. */
static int strike(const char *path) {
  if (!on || !path || !strstr(path, word)) return 0;
  long turn = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  if (turn < at) return 0;
  if (turn == at) {
    int file = syscall(SYS_openat, AT_FDCWD, mark, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (file >= 0) syscall(SYS_close, file);
    if (!strncmp(what, "kill", 4)) syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    if (!strncmp(what, "clock", 5)) jumped = number;
    if (!strncmp(what, "once", 4)) return number;
  }
  if (!strncmp(what, "slow", 4)) usleep(number * 1000);
  return strncmp(what, "errno", 5) ? 0 : (int)number;
}

static int strike_open(int fd) {
  char link[64], path[4096];
  if (!on) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  long size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  if (size <= 0) return 0;
  path[size] = 0;
  return strike(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ANSWER(found) do { int e_ = (found); if (e_) { errno = e_; return -1; } } while (0)

#define OPEN(name)                                                 \
  int name(const char *path, int flags, ...) {                     \
    va_list list; va_start(list, flags);                           \
    mode_t mode = va_arg(list, mode_t); va_end(list);              \
    ANSWER(strike(path));                                          \
    return REAL(name)(path, flags, mode);                          \
  }
#define OPENAT(name)                                               \
  int name(int folder, const char *path, int flags, ...) {         \
    va_list list; va_start(list, flags);                           \
    mode_t mode = va_arg(list, mode_t); va_end(list);              \
    ANSWER(strike(path));                                          \
    return REAL(name)(folder, path, flags, mode);                  \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *from, size_t size) {
  ANSWER(strike_open(fd));
  return REAL(write)(fd, from, size);
}
ssize_t pwrite64(int fd, const void *from, size_t size, off64_t offset) {
  ANSWER(strike_open(fd));
  return REAL(pwrite64)(fd, from, size, offset);
}
ssize_t copy_file_range(int in, off64_t *a, int out, off64_t *b, size_t size, unsigned flags) {
  ANSWER(strike_open(out));
  return REAL(copy_file_range)(in, a, out, b, size, flags);
}
int ftruncate64(int fd, off64_t size) {
  ANSWER(strike_open(fd));
  return REAL(ftruncate64)(fd, size);
}
int fsync(int fd) {
  ANSWER(strike_open(fd));
  return REAL(fsync)(fd);
}
int fdatasync(int fd) {
  ANSWER(strike_open(fd));
  return REAL(fdatasync)(fd);
}
int rename(const char *from, const char *to) {
  ANSWER(strike(to));
  return REAL(rename)(from, to);
}
int link(const char *from, const char *to) {
  ANSWER(strike(to));
  return REAL(link)(from, to);
}
int mkdir(const char *path, mode_t mode) {
  ANSWER(strike(path));
  return REAL(mkdir)(path, mode);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  int said = REAL(clock_gettime)(clock, now);
  if (clock == CLOCK_REALTIME && !said) now->tv_sec += jumped;
  return said;
}
time_t time(time_t *now) {
  struct timespec read;
  clock_gettime(CLOCK_REALTIME, &read);
  if (now) *now = read.tv_sec;
  return read.tv_sec;
}
