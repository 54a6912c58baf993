package zookeeper

import (
	"errors"
	"fmt"
	"testing"

	"github.com/go-coord/coord/backend"
)

// armed returns a watch that was armed by a read of path.
func armed(h *hub, path string, kind watchKind, exists bool) *backend.Watch {
	w := backend.NewWatch()
	h.arm(watchKey{path, kind}, w, exists, nil)
	return w
}

func TestAnEventFiresTheWatchesThatItAffects(t *testing.T) {
	const none, look, deleted = backend.Kind(0), backend.LookAgain, backend.Deleted
	for _, test := range []struct {
		name                                string
		event                               int32
		data, child, missing, other, other2 backend.Kind
	}{
		{"created", eventCreated, look, none, look, none, none},
		{"deleted", eventDeleted, deleted, deleted, look, none, none},
		{"data changed", eventDataChanged, look, none, look, none, none},
		{"children changed", eventChildrenChanged, none, look, none, none, none},
		{"an event of a later version", 9, look, look, look, none, none},
	} {
		h := newHub()
		watches := []*backend.Watch{
			armed(h, "/a", dataWatch, true), armed(h, "/a", childWatch, true), armed(h, "/a", dataWatch, false),
			armed(h, "/b", dataWatch, true), armed(h, "/a/b", childWatch, true),
		}
		h.event(event{kind: test.event, path: "/a"})
		h.event(event{kind: test.event, path: "/a"}) // once is enough
		for i, want := range []backend.Kind{test.data, test.child, test.missing, test.other, test.other2} {
			if got := watches[i].Kind(); got != want {
				t.Errorf("%s: watch %d: %v, want %v", test.name, i, got, want)
			}
		}
	}
}

func TestAWatchIsArmedByItsReplyOnly(t *testing.T) {
	h := newHub()
	w := backend.NewWatch()
	h.event(event{kind: eventDeleted, path: "/a"}) // from before the read
	w.Stop()                                       // the read is given up
	h.arm(watchKey{"/a", dataWatch}, w, true, nil)
	h.event(event{kind: eventDeleted, path: "/a"})
	if w.Kind() != 0 || len(h.armed) != 0 {
		t.Errorf("the watch of a read that was given up: %v, %d armed", w.Kind(), len(h.armed))
	}
}

func TestTheWatchesThatReadsArm(t *testing.T) {
	for _, test := range []struct {
		op, code   int32
		kind       watchKind
		exists, ok bool
	}{
		{opGetData, codeOK, dataWatch, true, true},
		{opGetData, codeNoNode, 0, false, false},
		{opExists, codeOK, dataWatch, true, true},
		{opExists, codeNoNode, dataWatch, false, true},
		{opExists, -102, 0, false, false},
		{opChildren, codeOK, childWatch, true, true},
		{opChildren, codeNoNode, 0, false, false},
		{opCreate, codeOK, 0, false, false},
	} {
		kind, exists, ok := watchedBy(test.op, test.code)
		if kind != test.kind || exists != test.exists || ok != test.ok {
			t.Errorf("op %d, code %d: %v %v %v", test.op, test.code, kind, exists, ok)
		}
	}
}

func TestReconnectAndEndFireEverything(t *testing.T) {
	h := newHub()
	first := armed(h, "/a", dataWatch, true)
	h.reconnected()
	second := armed(h, "/a", childWatch, true)
	h.end()
	third := armed(h, "/a", dataWatch, true) // its reply was under way
	for i, w := range []*backend.Watch{first, second, third} {
		if w.Kind() != backend.LookAgain {
			t.Errorf("watch %d: %v", i, w.Kind())
		}
	}
	if len(h.armed) != 0 {
		t.Errorf("left: %d", len(h.armed))
	}
}

func TestTheHubForgetsStoppedWatches(t *testing.T) {
	h := newHub()
	keep := armed(h, "/n5000", dataWatch, true)
	for i := range 10_000 {
		armed(h, fmt.Sprint("/n", i), dataWatch, true).Stop()
	}
	if len(h.armed) != 1 || len(h.armed[watchKey{"/n5000", dataWatch}]) != 1 {
		t.Errorf("%d paths", len(h.armed))
	}
	h.event(event{kind: eventDeleted, path: "/n5000"})
	if keep.Kind() != backend.Deleted || len(h.armed) != 0 {
		t.Errorf("%v, %d paths", keep.Kind(), len(h.armed))
	}
	stopped := backend.NewWatch()
	stopped.Stop()
	h.arm(watchKey{"/a", dataWatch}, stopped, true, nil)
	if len(h.armed) != 0 {
		t.Error("a watch that was stopped before is armed")
	}
}

func TestOnlyKnownCodesAreDefinite(t *testing.T) {
	for _, test := range []struct {
		code    int32
		verdict verdict
		is      error
	}{
		{codeOK, granted, nil},
		{-101, refused, backend.ErrNotFound},
		{-110, refused, backend.ErrExists},
		{-103, refused, backend.ErrBadVersion},
		{-111, refused, backend.ErrNotEmpty},
		{-108, refused, backend.ErrNoChildren},
		{-102, refused, backend.ErrDenied},
		{-115, refused, backend.ErrDenied},
		{-114, refused, backend.ErrInvalid},
		{-8, refused, backend.ErrInvalid},
		{-6, refused, backend.ErrUnsupported},
		{-120, refused, backend.ErrUnsupported},
		{-119, refused, backend.ErrDenied},
		{-124, refused, backend.ErrDenied},
		{-125, refused, backend.ErrDenied},
		{-112, expired, nil},
		{-12, expired, nil},
		{-127, throttled, nil},
		{-1, unknown, nil},
		{-2, unknown, nil},
		{-4, unknown, nil},
		{-5, unknown, nil}, // a server gives it also when it has applied
		{-100, unknown, nil},
		{-116, unknown, nil},
		{-118, unknown, nil},
		{17, unknown, nil},
	} {
		v, err := judge(test.code)
		if v != test.verdict || test.is != nil && !errors.Is(err, test.is) || (err != nil) != (v == refused || v == unknown) {
			t.Errorf("%d: %v, %v", test.code, v, err)
		}
	}
}

// The root is the parent of /n, and the node that refuses to create it.
func TestTheRootCanRefuse(t *testing.T) {
	var e *backend.DeniedError
	if err := withNode(codeNoAuth, backend.ErrDenied, "create", "/n"); !errors.As(err, &e) || e.Path != "/" || e.Perm != "create" {
		t.Errorf("create /n: %v", err)
	}
	if err := withNode(codeAuthFailed, backend.ErrDenied, "create", "/n"); err != backend.ErrDenied {
		t.Errorf("a refused login: %v", err)
	}
}
