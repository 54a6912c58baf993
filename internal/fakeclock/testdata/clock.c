// Adds the seconds in a file to the wall clock of a process.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static int64_t none;
static volatile int64_t *ahead = &none;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
	real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	int fd = open(getenv("FAKE_CLOCK"), O_RDONLY);
	void *at = fd < 0 ? MAP_FAILED : mmap(0, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
	if (at != MAP_FAILED)
		ahead = at;
}

int clock_gettime(clockid_t id, struct timespec *t) {
	if (!real)
		begin();
	int r = real(id, t);
	if (id == CLOCK_REALTIME)
		t->tv_sec += *ahead;
	return r;
}

int gettimeofday(struct timeval *t, void *zone) {
	struct timespec s;
	int r = clock_gettime(CLOCK_REALTIME, &s);
	t->tv_sec = s.tv_sec;
	t->tv_usec = s.tv_nsec / 1000;
	return r;
}
