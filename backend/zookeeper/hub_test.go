package zookeeper

import (
	"errors"
	"fmt"
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-zookeeper/zk"
)

// armed returns a watch that was armed by a read of path.
func armed(h *hub, path string, kind watchKind, exists bool) *backend.Watch {
	w := backend.NewWatch()
	i := h.expect(path, w)
	h.arm(i, kind, exists)
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
		h.event(event{test.event, "/a"})
		h.event(event{test.event, "/a"}) // once is enough
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
	i := h.expect("/a", w)
	h.event(event{eventDeleted, "/a"}) // from before the read
	if w.Kind() != 0 {
		t.Error("a watch fired before it was armed")
	}
	if h.sent(markedForWatch("", i.id)[len(mark):]) != i {
		t.Error("the mark does not lead to the read")
	}
	h.forget(i)
	h.arm(i, dataWatch, true) // the reply comes late
	h.event(event{eventDeleted, "/a"})
	if w.Kind() != 0 {
		t.Error("the watch of a read that was given up fired")
	}
	if h.sent("") != nil || h.sent("zz") != nil || h.sent("C") != nil {
		t.Error("an unknown mark leads to a read")
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
	if len(h.armed) != 0 || len(h.expected) != 0 {
		t.Errorf("left: %d, %d", len(h.armed), len(h.expected))
	}
}

func TestTheHubForgetsStoppedWatches(t *testing.T) {
	h := newHub()
	keep := armed(h, "/n5000", dataWatch, true)
	for i := range 10_000 {
		armed(h, fmt.Sprint("/n", i), dataWatch, true).Stop()
	}
	if len(h.armed) != 1 || len(h.armed[watchKey{"/n5000", dataWatch}]) != 1 || len(h.expected) != 0 {
		t.Errorf("%d paths, %d expected", len(h.armed), len(h.expected))
	}
	h.event(event{eventDeleted, "/n5000"})
	if keep.Kind() != backend.Deleted || len(h.armed) != 0 {
		t.Errorf("%v, %d paths", keep.Kind(), len(h.armed))
	}
	stopped := backend.NewWatch()
	stopped.Stop()
	h.arm(h.expect("/a", stopped), dataWatch, true)
	if len(h.armed) != 0 {
		t.Error("a watch that was stopped before is armed")
	}
}

func TestOnlyKnownCodesAreDefinite(t *testing.T) {
	unmapped := func(code int) error { return fmt.Errorf("unknown error: %d", code) }
	for _, test := range []struct {
		err     error
		verdict verdict
		is      error
	}{
		{zk.ErrNoNode, refused, backend.ErrNotFound},
		{zk.ErrNodeExists, refused, backend.ErrExists},
		{zk.ErrBadVersion, refused, backend.ErrBadVersion},
		{zk.ErrNotEmpty, refused, backend.ErrNotEmpty},
		{zk.ErrNoChildrenForEphemerals, refused, backend.ErrNoChildren},
		{zk.ErrNoAuth, refused, backend.ErrDenied},
		{zk.ErrAuthFailed, refused, backend.ErrDenied},
		{zk.ErrInvalidACL, refused, backend.ErrInvalid},
		{zk.ErrInvalidPath, refused, backend.ErrBadPath},
		{unmapped(-6), refused, backend.ErrUnsupported},
		{unmapped(-120), refused, backend.ErrUnsupported},
		{unmapped(-119), refused, backend.ErrDenied},
		{unmapped(-125), refused, backend.ErrDenied},
		{zk.ErrSessionExpired, expired, nil},
		{unmapped(-12), expired, nil},
		{unmapped(-127), throttled, nil},
		{zk.ErrConnectionClosed, broken, zk.ErrConnectionClosed},
		{zk.ErrClosing, broken, zk.ErrClosing},
		{zk.ErrNoServer, broken, zk.ErrNoServer},
		{zk.ErrSessionMoved, broken, zk.ErrSessionMoved},
		{zk.ErrAPIError, broken, zk.ErrAPIError},
		{zk.ErrShortBuffer, broken, zk.ErrShortBuffer},
		{unmapped(-1), broken, nil},
		{unmapped(-5), broken, nil}, // a server gives it also when it has applied
		{errors.New("write tcp: broken pipe"), broken, nil},
	} {
		v, err := judge(test.err)
		if v != test.verdict || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%v: %v, %v", test.err, v, err)
		}
	}
}

// The root is the parent of /n, and the node that refuses to create it.
func TestTheRootCanRefuse(t *testing.T) {
	var e *backend.DeniedError
	if err := withNode(zk.ErrNoAuth, backend.ErrDenied, "create", "/n"); !errors.As(err, &e) || e.Path != "/" || e.Perm != "create" {
		t.Errorf("create /n: %v", err)
	}
	if err := withNode(zk.ErrAuthFailed, backend.ErrDenied, "create", "/n"); err != backend.ErrDenied {
		t.Errorf("a refused login: %v", err)
	}
}
