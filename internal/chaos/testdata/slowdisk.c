// With this library preloaded, flushes of a server are delayed while the file named by
// COORD_SLOW_DISK contains a number of milliseconds.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void dawdle(void)
{
	const char *name = getenv("COORD_SLOW_DISK");
	char text[16] = "";
	int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	long ms = n > 0 ? atol(text) : 0;
	struct timespec left = {ms / 1000, ms % 1000 * 1000000};
	while (ms > 0 && nanosleep(&left, &left) != 0)
		;
}

int fsync(int fd)
{
	int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
	dawdle();
	return next(fd);
}

int fdatasync(int fd)
{
	int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	dawdle();
	return next(fd);
}
