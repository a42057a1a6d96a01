/* Preloaded into compilers: what they work in lies on huge pages.

   A compiler of C++ walks about in a gigabyte of small things, and its own code is tens of
   megabytes. On pages of 4 KiB the processor keeps looking up where those are. Where the kernel
   gives huge pages to those who ask (transparent_hugepage: madvise), compilers do not ask.

   Three things are put on huge pages: memory that is mapped without a name, a precompiled header
   (which gcc maps), and the program's own code. What a compiler makes is the same. Whatever the
   kernel refuses is left as it was. */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096UL
#define HUGE_PAGE (2UL << 20)
/* So far ahead addresses are taken, not memory. */
#define RESERVE (1UL << 30)
#define LARGEST (RESERVE / 4)
/* Of a file that is mapped, and of a program's code. */
#define WORTH_IT (8UL << 20)

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

static uintptr_t next, end;
static char taken, refused;

static size_t up(size_t size, size_t unit) { return (size + unit - 1) & ~(unit - 1); }

static void *map(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
  return (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}

/* Addresses for `size` bytes that begin where a huge page does; there is no memory behind them. */
static char *room(size_t size)
{
  char *at = map(NULL, size + HUGE_PAGE, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? NULL : (char *)up((uintptr_t)at, HUGE_PAGE);
}

static int usable(char *at, size_t size)
{
  return mprotect(at, size, PROT_READ | PROT_WRITE) == 0 &&
         madvise(at, size, MADV_HUGEPAGE) == 0;
}

static void *from_reserve(size_t size)
{
  void *found = NULL;
  size = up(size, PAGE);
  /* Another thread is at it: the kernel serves this one. */
  if (__atomic_test_and_set(&taken, __ATOMIC_ACQUIRE))
    return NULL;
  if (end - next < size && !refused) {
    char *fresh = room(RESERVE);
    next = end = (uintptr_t)fresh;
    if (fresh && usable(fresh, RESERVE)) {
      end += RESERVE;
    } else {
      refused = 1;
      if (fresh)
        munmap(fresh, RESERVE);
    }
  }
  if (end - next >= size) {
    found = (void *)next;
    next += size;
  }
  __atomic_clear(&taken, __ATOMIC_RELEASE);
  return found;
}

/* A file's contents in memory of our own, at the address asked for or nowhere. */
static void *copy_of(void *address, size_t size, int file, off_t offset)
{
  char *at = map(address, size, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  size_t done = 0;
  if (at == MAP_FAILED)
    return NULL;
  if (at == address && madvise(at, size, MADV_HUGEPAGE) == 0)
    while (done < size) {
      ssize_t got = pread(file, at + done, size - done, offset + (off_t)done);
      if (got < 0 && errno == EINTR)
        continue;
      if (got <= 0)
        break;
      done += (size_t)got;
    }
  /* Behind a file's end there is nothing to read: that is left to the kernel, too. */
  if (done == size)
    return at;
  munmap(at, size);
  return NULL;
}

void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
  void *found = NULL;
  int before = errno;
  if (protection == (PROT_READ | PROT_WRITE)) {
    if (!address && flags == (MAP_PRIVATE | MAP_ANONYMOUS) && size && size <= LARGEST)
      found = from_reserve(size);
    else if (address && flags == MAP_PRIVATE && file >= 0 && size >= WORTH_IT)
      found = copy_of(address, size, file, offset);
  }
  errno = before;
  return found ? found : map(address, size, protection, flags, file, offset);
}

void *mmap64(void *, size_t, int, int, int, off_t) __attribute__((alias("mmap")));

/* Put the program's code, where it fills huge pages, on such pages: at the same addresses. */
static int move_code(struct dl_phdr_info *program, size_t size, void *unused)
{
  (void)size;
  (void)unused;
  for (int i = 0; i < program->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &program->dlpi_phdr[i];
    uintptr_t first = program->dlpi_addr + part->p_vaddr;
    uintptr_t from = up(first, HUGE_PAGE), to = (first + part->p_filesz) & ~(HUGE_PAGE - 1);
    if (part->p_type != PT_LOAD || (part->p_flags & (PF_X | PF_W)) != PF_X ||
        to < from + WORTH_IT)
      continue;
    char *copy = room(to - from);
    if (!copy || !usable(copy, to - from))
      break;
    memcpy(copy, (void *)from, to - from);
    __builtin___clear_cache(copy, copy + (to - from));
    if (mprotect(copy, to - from, PROT_READ | PROT_EXEC) == 0)
      mremap(copy, to - from, to - from, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)from);
    else
      munmap(copy, to - from);
    break;
  }
  /* The program itself comes first; libraries are not looked at. */
  return 1;
}

__attribute__((constructor)) static void start(void) { dl_iterate_phdr(move_code, NULL); }
