/* Loads and closes two shared libraries that are named, each with a pool that is made meanwhile. The first
 * frees its pool before it is closed. The second stays loaded (-z nodelete) and frees its pool when the
 * program ends. A forked child of the program, which has no workers, does so too. The program does not come
 * with libnodewise itself. */

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(int condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "not so: %s\n", what);
        _exit(1);
    }
}

static void *function(void *library, const char *name)
{
    void *found = dlsym(library, name);
    must(found != NULL, name);
    return found;
}

static void *load_and_use(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    must(library != NULL, "it can be loaded");
    long (*sum_below)(long);
    *(void **)&sum_below = function(library, "sum_below");
    must(sum_below(1000) == 499500, "its pool works");
    return library;
}

static int threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    while (readdir(tasks) != NULL)
        count++;
    closedir(tasks);
    return count - 2; /* . and .. */
}

/* Two libraries that know nothing of each other, each with a pool of its own beside. */
static void share(void *one, void *other)
{
    const void *(*pool_of_one)(void), *(*pool_of_other)(void);
    unsigned long (*workers)(void);
    *(void **)&pool_of_one = function(one, "shared_pool");
    *(void **)&pool_of_other = function(other, "shared_pool");
    *(void **)&workers = function(other, "shared_workers");
    int before = threads();
    const void *pool = pool_of_one();
    must(pool == pool_of_other(), "both have one pool");
    must(threads() <= before + (int)workers(), "no more threads than that has workers");
}

int main(int argc, char **argv)
{
    must(argc == 3, "two libraries are named");
    /* Ends it where it hangs. */
    alarm(300);
    for (int round = 0; round < 10; round++) {
        void *library = load_and_use(argv[1]);
        void (*end_pool)(void);
        *(void **)&end_pool = function(library, "end_pool");
        end_pool();
        must(dlclose(library) == 0, "it can be closed");
        must(dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == NULL, "it has gone");
    }
    must(dlclose(load_and_use(argv[2])) == 0, "it can be closed and stays");
    void *one = load_and_use(argv[1]), *other = load_and_use(argv[2]);
    share(one, other);
    void (*end_pool)(void);
    *(void **)&end_pool = function(one, "end_pool");
    end_pool();
    must(dlclose(one) == 0 && dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == NULL, "it has gone, and the pool stays");
    dlclose(other);
    pid_t child = fork();
    if (child == 0) {
        alarm(300);
        return 0;
    }
    int status = -1;
    must(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child comes to its end");
    return 0;
}
