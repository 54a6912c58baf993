package coord_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/zkservice"
)

const strangeID = "01234567-89ab-8def-8123-456789abcdef"

// nearly are the ten digits of a node's name, spoilt.
var nearly = []string{
	"", "1", "000000001", "00000000001", "99999999999", "000000000a", "+000000001", " 000000001", "000000001 ", "0x00000001",
	"-", "--00000001", "-000000000", "-02147483648", "2147483648", "9999999999", "-2147483649", "00000000-1", "1e00000001",
	"٠٠٠٠٠٠٠٠٠٠", "０００００００００１", "0000000001~", "0000000001.", strings.Repeat("9", 200),
}

// strangers are names that are in no directory by right. refused are those that no
// path of ours may have, though a server stores them.
func strangers(y fullUse) (names, refused []string) {
	names = []string{
		"README", "x", "_c_", "_c_s1", "_c_" + strangeID, "_c_" + strangeID + "-", "x-99999999999", "lock-", "~", "i-", "b--", "b-0",
		"b-0-01", "b-0--1", "b-x-0", "b-9223372036854775808-0", "b-0-9223372036854775808", "s-", "m-", "d-", "readiness", "live-",
		"ein Knoten", "узел", "節点", strings.Repeat("n", 200), "%s%d%v", `"{}'`, "$(x)",
	}
	for _, form := range y.forms {
		if strings.Contains(form, "%[1]s") {
			for _, digits := range nearly {
				if form == "b-0-%[1]s" && digits != "" && strings.Trim(digits[1:], "0123456789") == "" && digits[0] >= '1' && digits[0] <= '9' {
					continue // a number of a bucket
				}
				names = append(names, fmt.Sprintf(form+"%[3]s", digits, strangeID, ""))
			}
		}
		// The very form, first in line, in the name of a character that is refused.
		for _, r := range []string{"\u202e", "\u200b", "\u2028"} {
			spoilt := strangeID[:20] + r + strangeID[20+len(r):]
			name := fmt.Sprintf(form+"%[3]s", "0000000000", spoilt, "")
			if !strings.Contains(name, r) {
				name = r + name
			}
			refused = append(refused, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), refused
}

// plant makes persistent nodes of these names, as a client of another make does that
// knows no rules.
func (w *world) plant(dir string, names []string, data []byte) {
	w.t.Helper()
	svc, real := w.Service.(*zkservice.Service)
	if !real {
		s := w.session("planter")
		for _, name := range names {
			if _, err := s.Commit(context.Background(), backend.Create(w.path(dir+"/"+name), data, backend.Persistent)); err != nil {
				w.t.Fatal(err)
			}
		}
		return
	}
	conn := raw(w.t, svc)
	for _, name := range names {
		if _, err := conn.Create(w.path(dir+"/"+name), data, 0, zk.WorldACL(zk.PermAll)); err != nil {
			w.t.Fatalf("create %q: %v", name, err)
		}
	}
}

// weed takes them away again. All must still be there.
func (w *world) weed(dir string, names []string) {
	w.t.Helper()
	svc, real := w.Service.(*zkservice.Service)
	var s backend.Session
	var conn *zk.Conn
	if real {
		conn = raw(w.t, svc)
	} else {
		s = w.session("weeder")
	}
	for _, name := range names {
		var err error
		if real {
			err = conn.Delete(w.path(dir+"/"+name), -1)
		} else {
			_, err = s.Commit(context.Background(), backend.Delete(w.path(dir+"/"+name), backend.AnyVersion))
		}
		if err != nil {
			w.t.Errorf("the foreign node %q in %s was touched: %v", name, dir, err)
		}
	}
}

// raw is a connection without rules, that the test closes.
func raw(t *testing.T, svc *zkservice.Service) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect(svc.ZooKeeper("raw").Addrs(), 10*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// counting opens a client whose calls are counted.
func (w *world) counting(name string, n *atomic.Int64) *coord.Client {
	return w.open(name, &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
		n.Add(1)
		return nil
	}})
}

// Foreign children are ignored and left alone, whatever their names are like.
func TestStrangeNeighboursAreIgnored(t *testing.T) {
	t.Parallel()
	for _, y := range fullUses() {
		t.Run(y.recipe, func(t *testing.T) {
			onEach(t, func(w *world) {
				ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
				defer cancel()
				var calls atomic.Int64
				x := &useRun{w: w, a: w.counting("a", &calls), b: w.counting("b", &calls), path: "/r", payload: "v"}
				run := func(when string) int64 {
					w.t.Helper()
					calls.Store(0)
					if err := y.run(ctx, x); err != nil {
						w.t.Fatalf("%s: %v", when, err)
					}
					return calls.Load()
				}
				run("before")
				alone := run("alone")
				names, refused := strangers(y)
				if !w.fake {
					names = append(names, refused...)
				}
				for _, dir := range y.dirs {
					w.ensured("/r" + dir)
					w.plant("/r"+dir, names, []byte("{"))
				}
				among := run("among strangers")
				if among > 6*alone+300 {
					w.t.Errorf("%d requests among strangers, %d alone", among, alone)
				}
				again := run("among strangers again")
				w.t.Logf("figure: %s: %d requests alone, %d and %d among %d strangers in %d directories", y.recipe, alone, among, again, len(names), len(y.dirs))
				for _, dir := range slices.Backward(y.dirs) {
					w.weed("/r"+dir, names)
				}
				run("afterwards")
			})
		})
	}
}

// ensured makes a directory, and what is missing above it.
func (w *world) ensured(dir string) {
	w.t.Helper()
	s := w.session("maker")
	for i := 1; i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		if _, err := s.Exists(context.Background(), w.path(dir[:i]), nil); err == nil {
			continue
		}
		if _, err := s.Commit(context.Background(), backend.Create(w.path(dir[:i]), nil, backend.Persistent)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// used makes a directory that has had a child.
func (w *world) used(dir string) {
	w.t.Helper()
	w.ensured(dir + "/child")
	s := w.session("maker")
	if _, err := s.Commit(context.Background(), backend.Delete(w.path(dir+"/child"), backend.AnyVersion)); err != nil {
		w.t.Fatal(err)
	}
}
