/* Preloaded into a process, is a disk without room for its files below the folder FULL_DISK_FOLDER names, for as
   long as the file is there that FULL_DISK_FILE names: what is there may be written again, and nothing may grow.
   Includes nothing, so that a compiler without the C library's headers builds it. */

struct part {
    void *data;
    unsigned long bytes;
};

extern void *dlsym(void *, const char *);
extern char *getenv(const char *);
extern int access(const char *, int);
extern long readlink(const char *, char *, unsigned long);
extern char *strstr(const char *, const char *);
extern int snprintf(char *, unsigned long, const char *, ...);
extern long lseek(int, long, int);
extern int *__errno_location(void);

#define NEXT ((void *)-1L)
#define NO_ROOM 28
#define END 2

typedef long (*write_call)(int, const void *, unsigned long, long);
typedef long (*parts_call)(int, const struct part *, int, long);
typedef int (*allocate_call)(int, long, long);

/* Whether a write of so many bytes would make the file larger than it may become. */
static int refused(int file, long end) {
    const char *full = getenv("FULL_DISK_FILE"), *folder = getenv("FULL_DISK_FOLDER");
    char name[64], path[4096];
    if (!full || !folder || access(full, 0))
        return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    long length = readlink(name, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strstr(path, folder) && end > lseek(file, 0, END);
}

long pwrite(int file, const void *data, unsigned long bytes, long at) {
    if (refused(file, at + (long)bytes)) {
        *__errno_location() = NO_ROOM;
        return -1;
    }
    return ((write_call)dlsym(NEXT, "pwrite"))(file, data, bytes, at);
}

long pwrite64(int file, const void *data, unsigned long bytes, long at) {
    return pwrite(file, data, bytes, at);
}

long pwritev(int file, const struct part *parts, int count, long at) {
    long bytes = 0;
    for (int number = 0; number < count; number++)
        bytes += (long)parts[number].bytes;
    if (refused(file, at + bytes)) {
        *__errno_location() = NO_ROOM;
        return -1;
    }
    return ((parts_call)dlsym(NEXT, "pwritev"))(file, parts, count, at);
}

long pwritev64(int file, const struct part *parts, int count, long at) {
    return pwritev(file, parts, count, at);
}

int posix_fallocate(int file, long at, long bytes) {
    return refused(file, at + bytes) ? NO_ROOM : ((allocate_call)dlsym(NEXT, "posix_fallocate"))(file, at, bytes);
}

int posix_fallocate64(int file, long at, long bytes) {
    return posix_fallocate(file, at, bytes);
}
