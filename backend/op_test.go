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
			backend.Delete("/a", 1<<31-1), backend.Check("/", backend.AnyVersion), backend.Absent("/a")}, nil},
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
		backend.OpCheck.String(): "check", backend.OpKind(0).String(): "unknown",
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
