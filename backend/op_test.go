package backend_test

import (
	"errors"
	"testing"

	"github.com/go-coord/coord/backend"
)

func TestCheckOpsBlamesTheOperationThatCannotBe(t *testing.T) {
	good := backend.Check("/a", backend.AnyVersion)
	for _, tt := range []struct {
		name string
		ops  []backend.Op
		want *backend.Error // Err is what the error matches; nil for a good commit
	}{
		{"one of each", []backend.Op{
			backend.Create("/a", []byte("v"), backend.EphemeralSequential), backend.SetData("/", nil, 0),
			backend.Delete("/a", 1<<31-1), backend.Check("/", backend.AnyVersion), backend.Absent("/a"), backend.Carry("/", nil)}, nil},
		{"a container alone", []backend.Op{backend.Create("/a", nil, backend.Container)}, nil},
		{"none", nil, &backend.Error{Op: "commit", Index: -1, Err: backend.ErrInvalid}},
		{"a container among others", []backend.Op{good, backend.Create("/b", nil, backend.Container)},
			&backend.Error{Op: "create", Path: "/b", Index: 1, Err: backend.ErrUnsupported}},
		{"the root created", []backend.Op{backend.Create("/", nil, backend.Persistent)},
			&backend.Error{Op: "create", Path: "/", Err: backend.ErrBadPath}},
		{"the root deleted", []backend.Op{good, good, backend.Delete("/", 0)},
			&backend.Error{Op: "delete", Path: "/", Index: 2, Err: backend.ErrBadPath}},
		{"the root absent", []backend.Op{good, backend.Absent("/")},
			&backend.Error{Op: "absent", Path: "/", Index: 1, Err: backend.ErrBadPath}},
		{"a bad path", []backend.Op{backend.SetData("/a/", nil, 0)},
			&backend.Error{Op: "set", Path: "/a/", Err: backend.ErrBadPath}},
		{"a mode too high", []backend.Op{backend.Create("/a", nil, backend.Container+1)},
			&backend.Error{Op: "create", Path: "/a", Err: backend.ErrInvalid}},
		{"a mode too low", []backend.Op{backend.Create("/a", nil, -1)},
			&backend.Error{Op: "create", Path: "/a", Err: backend.ErrInvalid}},
		{"a version too low", []backend.Op{good, backend.Check("/a", -2)},
			&backend.Error{Op: "check", Path: "/a", Index: 1, Err: backend.ErrInvalid}},
		{"carried data of a version", []backend.Op{{Kind: backend.OpCarry, Path: "/a"}},
			&backend.Error{Op: "carry", Path: "/a", Err: backend.ErrInvalid}},
		{"no kind", []backend.Op{{Path: "/a"}},
			&backend.Error{Op: "unknown", Path: "/a", Err: backend.ErrInvalid}},
		{"too much data", []backend.Op{good, backend.SetData("/a", make([]byte, backend.MaxRequest), 0), good},
			&backend.Error{Op: "set", Path: "/a", Index: 1, Err: backend.ErrTooLarge}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := backend.CheckOps(tt.ops)
			if tt.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var e *backend.Error
			if !errors.As(err, &e) || !errors.Is(err, tt.want.Err) {
				t.Fatalf("got %v, want one that matches %q", err, tt.want.Err)
			}
			if e.Op != tt.want.Op || e.Path != tt.want.Path || e.Index != tt.want.Index {
				t.Fatalf("got %s %q [%d], want %s %q [%d]", e.Op, e.Path, e.Index, tt.want.Op, tt.want.Path, tt.want.Index)
			}
		})
	}
}

func TestCheckOpsCountsPathsDataAndEachOperation(t *testing.T) {
	data := make([]byte, backend.MaxRequest)
	most := func(rest ...backend.Op) int {
		for n := backend.MaxRequest; n >= 0; n-- {
			if backend.CheckOps(append(rest, backend.SetData("/a", data[:n], 0))) == nil {
				return n
			}
		}
		return -1
	}
	alone := most()
	if overhead := backend.MaxRequest - alone - len("/a"); overhead <= 0 || overhead > 1000 {
		t.Fatalf("one operation has an overhead of %d bytes", overhead)
	}
	if n := most(backend.Create("/b", data[:1000], backend.Persistent)); n != alone-(backend.MaxRequest-alone-len("/a"))-len("/b")-1000 {
		t.Fatalf("%d bytes fit alone and %d beside another operation of 1000", alone, n)
	}
}

func TestModesKindsAndFeatures(t *testing.T) {
	for mode, want := range map[backend.CreateMode][2]bool{
		backend.Persistent:           {false, false},
		backend.Ephemeral:            {true, false},
		backend.PersistentSequential: {false, true},
		backend.EphemeralSequential:  {true, true},
		backend.Container:            {false, false},
	} {
		if got := [2]bool{mode.Ephemeral(), mode.Sequential()}; got != want {
			t.Errorf("mode %d: ephemeral, sequential = %v, want %v", mode, got, want)
		}
	}
	for got, want := range map[string]string{
		backend.OpCreate.String(): "create", backend.OpSetData.String(): "set", backend.OpDelete.String(): "delete",
		backend.OpCheck.String(): "check", backend.OpAbsent.String(): "absent", backend.OpCarry.String(): "carry", backend.OpKind(0).String(): "unknown",
		backend.PhaseConnected.String(): "connected", backend.PhaseSuspended.String(): "suspended", backend.PhaseLost.String(): "lost",
		backend.LookAgain.String(): "look again", backend.Deleted.String(): "deleted", backend.Kind(0).String(): "not fired",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if f := backend.Containers; !f.Has(backend.Containers) || !f.Has(0) || backend.Features(0).Has(backend.Containers) {
		t.Error("Has is wrong")
	}
}

func TestTellReadsWhatTheStatsOfACommitShow(t *testing.T) {
	create := func(path string) backend.Op { return backend.Create(path, nil, backend.Persistent) }
	set := func(path string) backend.Op { return backend.SetData(path, nil, backend.AnyVersion) }
	del := func(path string) backend.Op { return backend.Delete(path, backend.AnyVersion) }
	for name, tt := range map[string]struct {
		ops      []backend.Op
		told     bool
		siblings int32 // of the first creation
	}{
		"the parent is set":               {[]backend.Op{create("/d/n"), set("/d")}, true, 5},
		"the root is set":                 {[]backend.Op{create("/n"), set("/")}, true, 5},
		"a node gives way":                {[]backend.Op{del("/d/m"), create("/d/n"), set("/d"), backend.Check("/d/x", 0)}, true, 5},
		"only another node is set":        {[]backend.Op{create("/d/n"), set("/d/n")}, true, 0},
		"the parent was set before":       {[]backend.Op{set("/d"), create("/d/n")}, true, 0},
		"a sibling is created afterwards": {[]backend.Op{create("/d/n"), set("/d"), create("/d/m")}, true, 0},
		"a sibling is deleted afterwards": {[]backend.Op{create("/d/n"), set("/d"), del("/d/m")}, true, 0},
		"others change afterwards":        {[]backend.Op{create("/d/n"), set("/d"), create("/e/m"), del("/d")}, true, 5},
		"the parent carries its data":     {[]backend.Op{create("/d/n"), backend.Carry("/d", nil)}, true, 5},
		"nothing is set":                  {[]backend.Op{create("/d/n"), del("/e")}, false, 0},
	} {
		results := make([]backend.Result, len(tt.ops))
		first := -1
		for i, op := range tt.ops {
			switch {
			case op.Kind == backend.OpSetData, op.Kind == backend.OpCarry:
				results[i].Stat = backend.Stat{Mzxid: 7, NumChildren: 5}
			case op.Kind == backend.OpCreate && first < 0:
				first = i
			}
		}
		backend.Tell(tt.ops, results)
		czxid := int64(0)
		if tt.told {
			czxid = 7
		}
		if got := results[first]; got.Czxid != czxid || got.Siblings != tt.siblings {
			t.Errorf("%s: czxid %d, %d siblings, want %d, %d", name, got.Czxid, got.Siblings, czxid, tt.siblings)
		}
	}
}
