package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/layout"
)

// Prune removes what versions of coord without containers have left on etcd, and nothing that says something.
func TestPrune_RemovesEmptyDirectoriesOnly(t *testing.T) {
	v := onEtcd(t)
	old, err := coord.Open(t.Context(), etcd.New(v.addrs, &etcd.Options{Without: backend.Containers}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for i := range 70 {
		path := fmt.Sprintf("/shop/customers/%02d", i)
		h, err := coord.NewMutex(old, path, nil).Lock(ctx)
		must(err)
		must(h.Release())
		want = append(want, path)
	}
	want = append(want, "/shop/customers", "/shop")
	_, err = coord.NewMutex(old, "/mixed/held", nil).Lock(ctx)
	must(err)
	h, err := coord.NewMutex(old, "/mixed/free", nil).Lock(ctx)
	must(err)
	must(h.Release())
	want = append(want, "/mixed/free")
	must(coord.NewBarrier(old, "/barriers/set", nil).Set(ctx))
	_, err = coord.NewValue[string](old, "/values/v", nil).Set(ctx, "x")
	must(err)
	_, err = coord.NewValue[[]byte](old, "/values/none", &coord.ValueOptions[[]byte]{Codec: coord.Bytes()}).Set(ctx, nil)
	must(err)
	_, err = coord.NewQueue[[]byte](old, "/queue", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()}).Put(ctx, nil)
	must(err)
	s, err := old.Session(ctx)
	must(err)
	for path, data := range map[string]string{"/flag": "", "/foreign": "data", "/unknown": "coord recipe: later kind"} {
		_, err := s.Commit(ctx, backend.Create(path, []byte(data), backend.Persistent))
		must(err)
	}
	_, err = s.Commit(ctx, backend.Create("/counted", layout.KindMutex.Mark(), backend.Persistent))
	must(err)
	want = append(want, "/counted")
	slices.Sort(want)
	run := func(args ...string) (list []string) {
		t.Helper()
		status, out, text := inProcess(t, "", append([]string{"-backend", "etcd", "-servers", v.addrs[0], "-json", "prune"}, args...)...)
		var p pruned
		if err := json.Unmarshal([]byte(out), &p); status != 0 || err != nil {
			t.Fatalf("%v: status %d: %s%s", args, status, out, text)
		}
		slices.Sort(p.Directories)
		return p.Directories
	}
	for range 2 {
		if got := run("-dry-run"); !slices.Equal(got, want) {
			t.Fatalf("it would remove %q, want %q", got, want)
		}
	}
	if status, _, text := inProcess(t, "", "-backend", "etcd", "-servers", v.addrs[0], "prune"); status != exitUsage || !strings.Contains(text, "empty director") {
		t.Errorf("without a terminal: %d, %s", status, text)
	}
	if got := run("-yes", "/mixed"); !slices.Equal(got, []string{"/mixed/free"}) {
		t.Errorf("below one path it removed %q", got)
	}
	want = slices.DeleteFunc(want, func(path string) bool { return path == "/mixed/free" })
	if got := run("-yes"); !slices.Equal(got, want) {
		t.Errorf("it removed %q, want %q", got, want)
	}
	if got := run("-yes"); len(got) > 0 {
		t.Errorf("the second time it removed %q", got)
	}
	for _, path := range []string{"/mixed/held", "/barriers/set", "/values/v", "/values/none", "/queue", "/flag", "/foreign", "/unknown"} {
		if _, err := s.Exists(ctx, path, nil); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if item, err := coord.NewQueue[[]byte](old, "/queue", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()}).Pop(ctx); err != nil || len(item) != 0 {
		t.Errorf("the item without data: %q, %v", item, err)
	}
	h, err = coord.NewMutex(old, "/shop/customers/01", nil).Lock(ctx)
	must(err)
	must(h.Release())
}
