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

// The time from a crash to the next grant, ten crashes each. Without guard it is that of a session timeout of 10 s, and the crashes are spread over
// a third of it after the grant: the latest ping has another age at each of them. bench has the same for Curator and kazoo.
//
//	COORD_LONG=1 go test -v -timeout 30m -run TestGuard_TimesOfTheGrants .
//	COORD_LONG=1 go test -v -timeout 30m -run TestGuard_TimesOfTheGrants/without .
func TestGuard_TimesOfTheGrants(t *testing.T) {
	if !long() {
		t.Skip("with COORD_LONG=1")
	}
	for _, f := range []func(*testing.T) *servers{onZooKeeper, onEtcd, onPostgres} {
		v := f(t)
		for _, form := range []string{withGuard, withSidecar, withoutGuard} {
			t.Run(form+", "+v.backend, func(t *testing.T) { timesOfTheGrants(t, v, form) })
		}
	}
}

const (
	withGuard    = "with guard"
	withSidecar  = "with guard --listen"
	withoutGuard = "without"
)

func timesOfTheGrants(t *testing.T, v *servers, form string) {
	const times, timeout = 10, 10 * time.Second
	x := newCrash(t, v)
	x.timeout = timeout
	var beside []string
	if form == withSidecar {
		_, env := x.sidecar()
		beside = []string{env}
	}
	for _, how := range []string{"kill", "panic", "exit 1", "memory", "eat", "close"} {
		if form == withoutGuard && how != "kill" && how != "panic" {
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
		one := func(x *crash, after time.Duration) time.Duration {
			command := x.holder()
			if form == withGuard {
				command = x.guarded()
			}
			r := x.launch(nil, beside, command...)
			r.awaitHeld()
			held := time.Now()
			granted := x.wait()
			if group != nil {
				group.add(r.pid)
			}
			time.Sleep(time.Until(held.Add(after)))
			begin := r.crash(how)
			at := <-granted
			return at.Sub(begin)
		}
		took := make([]time.Duration, times)
		if form == withoutGuard {
			var all sync.WaitGroup
			for i := range took {
				y := newCrash(t, v)
				y.timeout = timeout
				all.Go(func() { took[i] = one(y, time.Duration(i)*timeout/3/times) })
			}
			all.Wait()
		} else {
			for i := range took {
				took[i] = one(x, 0)
			}
		}
		slices.Sort(took)
		median, most := (took[(times-1)/2]+took[times/2])/2, took[times-1]
		t.Logf("figure: %s: median %.1f ms, maximum %.1f ms", name, ms(median), ms(most))
		if form != withoutGuard && most > timeout/2 {
			t.Errorf("%s: %v", name, took)
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
