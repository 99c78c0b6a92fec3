/* Preloaded into a process, makes every fsync and fdatasync take as long as on a slow disk: between
   SLOW_SYNC_MS_MIN and SLOW_SYNC_MS_MAX milliseconds, on top of what it takes anyway. Includes nothing, so that
   a compiler without the C library's headers builds it. */

struct span {
    long seconds, nanoseconds;
};

extern void *dlsym(void *, const char *);
extern char *getenv(const char *);
extern long atol(const char *);
extern int rand_r(unsigned int *);
extern int nanosleep(const struct span *, struct span *);

#define NEXT ((void *)-1L)

typedef int (*sync_call)(int);

static long setting(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static void wait_a_while(void) {
    static unsigned int chance = 1;
    long least = setting("SLOW_SYNC_MS_MIN"), most = setting("SLOW_SYNC_MS_MAX");
    long ms = most <= least ? least : least + rand_r(&chance) % (most - least);
    struct span span = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&span, 0);
}

int fsync(int file) {
    wait_a_while();
    return ((sync_call)dlsym(NEXT, "fsync"))(file);
}

int fdatasync(int file) {
    wait_a_while();
    return ((sync_call)dlsym(NEXT, "fdatasync"))(file);
}
