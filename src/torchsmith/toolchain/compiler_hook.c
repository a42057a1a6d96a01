/* Preloaded into every program of a build: a compiler asks the memory governor before it works.

   Build tools start compilers in many ways: by name, by path, through a shell or a script of their
   own. However it was started, a compiler loads its libraries first, and this one among them. It
   then starts itself again through the launcher (launch.py), which waits for memory. The launcher
   takes TORCHSMITH_GOVERNOR out of the environment, so the second time nothing happens here.

   TORCHSMITH_LAUNCH      the launcher's words, one a line
   TORCHSMITH_CACHE       the program of a compiler cache to stand before the compiler, if any
   TORCHSMITH_HOOK_PATH   a folder that each Python is to search first
   TORCHSMITH_NINJA_ONLY  a value of MAKEFLAGS that make itself is not to see */
#include <alloca.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#ifndef __GLIBC__
#error "other C libraries do not tell a constructor the program's arguments"
#endif

extern char **environ;

static const char *const compilers[] = {
  "cc", "c++", "gcc", "g++", "clang", "clang++", "nvcc", "gfortran", "icx", "icpx",
  "amdclang", "amdclang++", "ccache", "sccache", "distcc", NULL};
static const char *const caches[] = {"ccache", "sccache", "distcc", NULL};
/* What makes a file, and what only answers a question. */
static const char *const makes[] = {
  "-c", "-S", "-o", "-dc", "-dw", "-dlink", "--compile", "--device-c", "--device-w",
  "--device-link", "--output-file", NULL};
static const char *const asks[] = {
  "-E", "-M", "-MM", "-###", "--preprocess", "--dryrun", "-dryrun", "-cc1", NULL};

static int among(const char *word, size_t length, const char *const *words)
{
  for (; *words; words++)
    if (strlen(*words) == length && strncmp(word, *words, length) == 0)
      return 1;
  return 0;
}

static const char *last_part(const char *path)
{
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* x86_64-linux-gnu-g++-12 is g++; gcc-ar is no compiler. */
static int is_compiler(const char *name)
{
  size_t length = strlen(name);
  while (length && strchr("-.0123456789", name[length - 1]))
    length--;
  for (size_t start = length; start; start--)
    if (name[start - 1] == '-')
      return among(name + start, length - start, compilers);
  return among(name, length, compilers);
}

static int compiles(char **words)
{
  int found = 0;
  for (; *words; words++) {
    size_t length = strlen(*words);
    if (among(*words, length, asks))
      return 0;
    found |= **words == '@' || among(*words, length, makes);
  }
  return found;
}

/* A build may have a cache of its own, which often goes by a compiler's name. */
static int is_cache(void)
{
  char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length < 0)
    return 0;
  path[length] = 0;
  const char *name = last_part(path);
  return among(name, strlen(name), caches);
}

static void launch(int argc, char **argv)
{
  const char *told = getenv("TORCHSMITH_LAUNCH");
  const char *program = (const char *)getauxval(AT_EXECFN);
  size_t size = told ? strlen(told) : 0, words = 1, at = 0;
  if (!size || !program)
    return;
  for (const char *each = told; *each; each++)
    words += *each == '\n';
  char *copy = memcpy(alloca(size + 1), told, size + 1);
  char **command = alloca((words + (size_t)argc + 2) * sizeof *command);
  char *cache = getenv("TORCHSMITH_CACHE");
  for (char *rest = copy; rest;) {
    char *end = strchr(rest, '\n');
    command[at++] = rest;
    if (end)
      *end++ = 0;
    rest = end;
  }
  if (!strchr(program, '/')) {
    char *here = alloca(strlen(program) + 3);
    program = strcat(strcpy(here, "./"), program);
  }
  if (cache && *cache && !is_cache())
    command[at++] = cache;
  command[at++] = (char *)program;
  memcpy(command + at, argv + 1, (size_t)argc * sizeof *command);
  /* Where this fails, the compiler goes on by itself. */
  execve(command[0], command, environ);
}

static void search_first(const char *folder)
{
  const char *before = getenv("PYTHONPATH");
  size_t length = strlen(folder);
  if (before && strncmp(before, folder, length) == 0 && strchr(":", before[length]))
    return;
  char *path = alloca(length + (before ? strlen(before) : 0) + 2);
  strcpy(path, folder);
  if (before && *before)
    strcat(strcat(path, ":"), before);
  setenv("PYTHONPATH", path, 1);
}

__attribute__((constructor)) static void start(int argc, char **argv)
{
  const char *folder, *hidden, *flags;
  if (argc < 1 || !argv[0] || !getenv("TORCHSMITH_GOVERNOR"))
    return;
  const char *name = last_part(argv[0]);
  if (is_compiler(name)) {
    if (compiles(argv + 1))
      launch(argc, argv);
  } else if (strncmp(name, "python", 6) == 0) {
    if ((folder = getenv("TORCHSMITH_HOOK_PATH")))
      search_first(folder);
  } else if (strcmp(name, "make") == 0 || strcmp(name, "gmake") == 0) {
    if ((hidden = getenv("TORCHSMITH_NINJA_ONLY")) && (flags = getenv("MAKEFLAGS")) &&
        strcmp(hidden, flags) == 0)
      unsetenv("MAKEFLAGS");
  }
}
