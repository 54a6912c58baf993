package recipetest

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zktest"
)

// fakeClock makes the wall clock of a process show the seconds more that stand in a file.
const fakeClock = `
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
`

// fakeClocks are the clocks of servers.
type fakeClocks struct{ dir string }

// newFakeClocks skips the test where the clock of a process cannot be faked.
func newFakeClocks(t *testing.T) *fakeClocks {
	t.Helper()
	cc, err := exec.LookPath(cmp.Or(os.Getenv("CC"), "gcc"))
	if err != nil || runtime.GOOS != "linux" {
		t.Skip("needs Linux and a C compiler, to set the clock of a server")
	}
	f := &fakeClocks{t.TempDir()}
	source := filepath.Join(f.dir, "clock.c")
	if err := os.WriteFile(source, []byte(fakeClock), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O2", "-o", f.library(), source, "-ldl").CombinedOutput(); err != nil {
		t.Skipf("cannot compile the library that sets the clock of a server: %v\n%s", err, out)
	}
	return f
}

func (f *fakeClocks) library() string { return filepath.Join(f.dir, "clock.so") }

func (f *fakeClocks) file(id int) string { return filepath.Join(f.dir, fmt.Sprint("ahead", id)) }

// set sets the clock of the server with a number.
func (f *fakeClocks) set(t *testing.T, id int, ahead time.Duration) {
	t.Helper()
	b := binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second)))
	file, err := os.OpenFile(f.file(id), os.O_CREATE|os.O_WRONLY, 0o600) // the server has mapped it
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

// run starts servers with these clocks.
func (f *fakeClocks) run(t *testing.T, servers int) *zktest.Ensemble {
	t.Helper()
	for id := range servers {
		f.set(t, id+1, 0)
	}
	return zktest.Run(t, &zktest.Options{Servers: servers, Env: func(id int) []string {
		return []string{"LD_PRELOAD=" + f.library(), "FAKE_CLOCK=" + f.file(id)}
	}})
}

// stampOf returns when an item was claimed, by the clock of the leader that made the commit.
func stampOf(t *testing.T, s backend.Session, it *coord.Item[int]) time.Time {
	t.Helper()
	stat, err := s.Exists(context.Background(), it.Path(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMilli(stat.Ctime)
}

// The clock of a ZooKeeper server is set back, and a leader is replaced by one with a slower clock.
func TestDelayQueue_NothingIsEarlyWhenAServersClockIsSetBack(t *testing.T) {
	t.Parallel()
	const back, delay = 6 * time.Second, 2 * time.Second
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprint(servers), func(t *testing.T) {
			t.Parallel()
			clocks := newFakeClocks(t)
			e := clocks.run(t, servers)
			ctx, cancel := context.WithTimeout(context.Background(), coordtest.Limit)
			defer cancel()
			b := zookeeper.New(e.Addrs(), nil)
			s, err := b.Open(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			q := coord.NewDelayQueue[int](coordtest.Open(t, b, nil), "/q", nil)
			due := time.Now().Add(delay)
			if _, err := q.Put(ctx, due, 1); err != nil { // the client learns the time
				t.Fatal(err)
			}
			set := func() {
				for id := range servers {
					clocks.set(t, id+1, -back)
				}
			}
			if servers == 1 {
				set()
			} else {
				leader, err := e.Leader(ctx)
				if err != nil {
					t.Fatal(err)
				}
				set()
				leader.Kill()
			}
			time.Sleep(time.Until(due.Add(20 * time.Millisecond))) // the old clock shows that the item is due
			it, err := q.TryTake(ctx)
			if err != nil { // else the machine is slow: it was due by then, which is checked below
				coordtest.WantErr(t, err, coord.ErrEmpty)
				if it, err = q.Take(ctx); err != nil {
					t.Fatal(err)
				}
			}
			switch early := due.Sub(stampOf(t, s, it)); {
			case early > 0 || it.Attempt != 1:
				t.Errorf("taken %v before it was due, with attempt %d", early, it.Attempt)
			case time.Now().Before(due.Add(back)):
				t.Error("the clock of the server was not set back: the test shows nothing")
			}
			mustAck(t, it)
		})
	}
}
