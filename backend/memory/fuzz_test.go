package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
)

// picture returns a text of the whole tree and checks the invariants of every tree.
func picture(t *testing.T, tr *tree) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "zxid %d\n", tr.zxid)
	for _, path := range slices.Sorted(maps.Keys(tr.nodes)) {
		n := tr.nodes[path]
		fmt.Fprintf(&b, "%q %q %+v %v\n", path, n.data, tr.statAt(n, tr.zxid), n.names())
		if path == "/" {
			continue
		}
		dir, name := split(path)
		parent := tr.nodes[dir]
		if parent == nil || parent.owner != 0 {
			t.Fatalf("%q has no parent that can have children", path)
		}
		if _, ok := parent.children[name]; !ok {
			t.Fatalf("%q is missing among its parent's children", path)
		}
		if n.czxid > n.mzxid || n.mzxid > tr.zxid || n.pzxid > tr.zxid || backend.CheckPath(path) != nil {
			t.Fatalf("%q: %+v at zxid %d", path, tr.statAt(n, tr.zxid), tr.zxid)
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(tr.owned)) {
		paths := tr.owned[owner]
		fmt.Fprintf(&b, "session %d has %q\n", owner, tr.ephemerals(owner))
		if owner == 0 {
			t.Fatalf("no session has %d ephemeral nodes", len(paths))
		}
		for path := range paths {
			if n := tr.nodes[path]; n == nil || n.owner != owner {
				t.Fatalf("session %d has no node %q", owner, path)
			}
		}
	}
	for path, n := range tr.nodes {
		if _, ok := tr.owned[n.owner][path]; ok != (n.owner != 0) {
			t.Fatalf("%q of session %d is among its ephemeral nodes: %t", path, n.owner, ok)
		}
		for name := range n.children {
			if tr.nodes[strings.TrimSuffix(path, "/")+"/"+name] == nil {
				t.Fatalf("%q has no child %q", path, name)
			}
		}
	}
	return b.String()
}

// A commit applies all of its operations or none, and the tree stays consistent.
func FuzzCommits(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x10\x01\x00\x20\x02\x00"), "/a/b")
	f.Add([]byte("\x02\x00\x00\x12\x00\x00\x02\x00\x00\x22\x00\xff"), "/e")
	f.Add([]byte{3, 0, 0, 3, 0, 0, 0x83, 0, 0, 1, 1, 1, 0x30, 0, 9}, "/..")
	f.Fuzz(func(t *testing.T, script []byte, odd string) {
		tr := newTree()
		paths := []string{"/a", "/a/x", "/a/x/y", "/b", "/b/s-", "/e", "/e/s-", odd}
		// A directory whose sequence counter is near its end.
		c := new(change)
		if err := tr.apply(c, []backend.Op{backend.Create("/e", nil, backend.Persistent)}, nil, 0); err != nil {
			t.Fatal(err)
		}
		c.reset()
		tr.nodes["/e"].created = 1<<31 - 3
		var ops []backend.Op
		for len(script) >= 3 {
			a, b, v := script[0], script[1], script[2]
			script = script[3:]
			op := backend.Op{Kind: backend.OpKind(1 + a&3), Path: paths[int(b)%len(paths)], Version: int32(v%5) - 1}
			if op.Kind == backend.OpCreate {
				op.Mode = backend.CreateMode(v % 5)
			}
			if a&7 == 7 {
				op.Kind, op.Version = backend.OpCarry, backend.AnyVersion
			}
			if op.Kind == backend.OpCreate || op.Kind == backend.OpSetData || op.Kind == backend.OpCarry {
				op.Data = []byte{a, b, v}
			}
			ops = append(ops, op)
			if a&0x80 == 0 && len(ops) < 20 && len(script) >= 3 {
				continue // of one commit
			}
			if err := backend.CheckOps(ops); err != nil {
				var e *backend.Error
				if !errors.As(err, &e) || e.Index < 0 || e.Index >= len(ops) {
					t.Errorf("%v", err)
				}
				ops = nil
				continue
			}
			before, zxid := picture(t, &tr), tr.zxid
			results := make([]backend.Result, len(ops))
			err := tr.apply(c, ops, results, int64(b)+1)
			after := picture(t, &tr)
			switch {
			case err != nil && after != before:
				t.Fatalf("%v was refused with %v and changed\n%s\nto\n%s", ops, err, before, after)
			case err == nil && tr.zxid != zxid+1:
				t.Fatalf("zxid %d after %d", tr.zxid, zxid)
			case err == nil:
				for i, r := range results {
					if ops[i].Kind == backend.OpCreate && !strings.HasPrefix(r.Path, ops[i].Path) {
						t.Fatalf("created %q for %q", r.Path, ops[i].Path)
					}
				}
			}
			c.reset()
			ops = nil
		}
	})
}
