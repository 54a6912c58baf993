//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The time from a crash to the next grant, ten crashes each. Without guard it is that of a session timeout of 10 s.
//
//	COORD_LONG=1 go test -v -timeout 30m -run TestGuard_TimesOfTheGrants .
func TestGuard_TimesOfTheGrants(t *testing.T) {
	if !long() {
		t.Skip("with COORD_LONG=1")
	}
	const times = 10
	for _, f := range []func(*testing.T) *servers{onZooKeeper, onEtcd, onPostgres} {
		v := f(t)
		x := newCrash(t, v)
		x.timeout = 10 * time.Second
		_, beside := x.sidecar()
		for _, form := range []string{"with guard", "with guard --listen", "without"} {
			for _, how := range []string{"kill", "panic", "exit 1", "memory", "eat", "close"} {
				if form == "without" && how != "kill" && how != "panic" {
					continue // as these
				}
				name := fmt.Sprintf("%s, %s, %s", v.backend, form, map[string]string{
					"kill": "kill -9", "panic": "panic", "exit 1": "os.Exit(1)", "memory": "Go gets no memory", "eat": "killed by the kernel for its memory", "close": "orderly Close",
				}[how])
				var group *memoryGroup
				if how == "eat" {
					var err error
					if group, err = newMemoryGroup(t); err != nil {
						t.Logf("figure: %s: not measured: %v", name, err)
						continue
					}
				}
				var took []time.Duration
				one := func(x *crash) time.Duration {
					command, env := x.holder(), []string(nil)
					switch form {
					case "with guard":
						command = x.guarded()
					case "with guard --listen":
						env = []string{beside}
					}
					r := x.launch(nil, env, command...)
					r.awaitHeld()
					granted := x.wait()
					if group != nil {
						group.add(r.pid)
					}
					begin := r.crash(how)
					at := <-granted
					return at.Sub(begin)
				}
				if form == "without" {
					var all sync.WaitGroup
					var mu sync.Mutex
					for range times {
						y := newCrash(t, v)
						y.timeout = x.timeout
						all.Go(func() {
							d := one(y)
							mu.Lock()
							defer mu.Unlock()
							took = append(took, d)
						})
						time.Sleep(300 * time.Millisecond) // so that their latest pings have different ages
					}
					all.Wait()
				} else {
					for range times {
						took = append(took, one(x))
					}
				}
				slices.Sort(took)
				median, most := (took[(times-1)/2]+took[times/2])/2, took[times-1]
				t.Logf("figure: %s: median %.1f ms, maximum %.1f ms", name, ms(median), ms(most))
				if form != "without" && most > x.timeout/2 {
					t.Errorf("%s: %v", name, took)
				}
			}
		}
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// crash makes the holder die, and returns when it began to: for want of memory, when it had died.
func (r *running) crash(how string) time.Time {
	r.t.Helper()
	if how == "kill" {
		return r.kill()
	}
	begin := time.Now()
	if _, err := io.WriteString(r.in, how+"\n"); err != nil {
		r.t.Fatal(err)
	}
	if how != "eat" && how != "memory" {
		return begin
	}
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return time.Now()
		}
		time.Sleep(200 * time.Microsecond) // nothing signals it to this process
	}
}

// memoryGroup is a cgroup whose processes get 80 MB.
type memoryGroup struct {
	t   *testing.T
	dir string
}

func newMemoryGroup(t *testing.T) (*memoryGroup, error) {
	for _, root := range []struct{ dir, file string }{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}} {
		dir := filepath.Join(root.dir, "coordctl-test-"+strconv.Itoa(os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			continue
		}
		t.Cleanup(func() { _ = syscall.Rmdir(dir) })
		if os.WriteFile(filepath.Join(dir, root.file), []byte("80000000"), 0o644) == nil {
			return &memoryGroup{t, dir}, nil
		}
	}
	return nil, errors.New("no memory cgroup can be made here")
}

func (g *memoryGroup) add(pid int) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		g.t.Fatal(err)
	}
}
