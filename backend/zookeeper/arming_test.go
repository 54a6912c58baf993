package zookeeper

import (
	"bytes"
	hexadecimal "encoding/hex"
	"testing"

	"github.com/go-coord/coord/backend"
)

// As in ZooKeeper's protocol: the header, relativeZxid and three vectors of strings,
// the paths to watch for data, for creation and for children.
const setWatchesExample = "00000037" + // length
	"00000000" + "00000065" + // xid, opcode 101
	"0000000100000002" + // relativeZxid
	"00000002" + "00000002" + "2f61" + "00000004" + "2f622f63" + // /a, /b/c
	"00000000" +
	"00000001" + "00000009" + "2f64c3a920e697a5" + "41" // /dé 日A

func manyOf(h *hub, targets ...backend.Target) *armList {
	x := h.newArmList(targets)
	h.announce(x)
	return x
}

func target(path string, children bool) backend.Target {
	return backend.Target{Path: path, Children: children, Watch: backend.NewWatch()}
}

func TestSetWatchesIsEncodedAsTheProtocolSays(t *testing.T) {
	want, err := hexadecimal.DecodeString(setWatchesExample)
	if err != nil {
		t.Fatal(err)
	}
	got := encodeSetWatches(make([]byte, 3), 0x100000002, []backend.Target{target("/a", false), target("/dé 日A", true), target("/b/c", false)})
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

func (h *hub) left() int { return len(h.arming) + len(h.armed) }

func TestAnEventBeforeTheReplyOfAnArmMeansLookAgain(t *testing.T) {
	const none, look, deleted = backend.Kind(0), backend.LookAgain, backend.Deleted
	for _, test := range []struct {
		name        string
		event       int32
		data, child backend.Kind
	}{
		{"deleted", eventDeleted, look, look}, {"data changed", eventDataChanged, look, none},
		{"created", eventCreated, look, none}, {"children changed", eventChildrenChanged, none, look},
	} {
		h := newHub()
		old := armed(h, "/a", dataWatch, true)
		data, child, other := target("/a", false), target("/a", true), target("/b", false)
		x := manyOf(h, data, child, other)
		h.event(event{kind: test.event, path: "/a"})
		for _, w := range []*backend.Watch{data.Watch, child.Watch, other.Watch} {
			if w.Kind() != none {
				t.Errorf("%s: a watch fired before it was armed", test.name)
			}
		}
		h.armMany(x)
		if data.Watch.Kind() != test.data || child.Watch.Kind() != test.child || other.Watch.Kind() != none {
			t.Errorf("%s: %v, %v, %v", test.name, data.Watch.Kind(), child.Watch.Kind(), other.Watch.Kind())
		}
		if test.event == eventDeleted && old.Kind() != deleted {
			t.Errorf("the watch that the event was of: %v", old.Kind())
		}
		h.event(event{kind: eventDeleted, path: "/a"}) // after it
		h.event(event{kind: eventDeleted, path: "/b"})
		if test.data == none && data.Watch.Kind() != deleted || test.child == none && child.Watch.Kind() != deleted || other.Watch.Kind() != deleted {
			t.Errorf("%s, and deleted after the reply: %v, %v, %v", test.name, data.Watch.Kind(), child.Watch.Kind(), other.Watch.Kind())
		}
		if n := h.left(); n != 0 {
			t.Errorf("%s: %d left", test.name, n)
		}
	}
}

func TestAnArmThatIsForgottenLeavesNothing(t *testing.T) {
	h := newHub()
	targets := []backend.Target{target("/a", false), target("/a", true), target("/a", false)}
	x := manyOf(h, targets...)
	again := manyOf(h, target("/a", false))
	if len(h.arming[watchKey{"/a", dataWatch}]) != 3 {
		t.Fatalf("arming %v", h.arming)
	}
	h.event(event{kind: eventDataChanged, path: "/a"})
	h.forget(x)
	h.forget(again)
	h.armMany(x) // the reply comes late
	h.event(event{kind: eventDeleted, path: "/a"})
	for i, w := range targets {
		if w.Watch.Kind() != 0 {
			t.Errorf("watch %d of an Arm that was given up: %v", i, w.Watch.Kind())
		}
	}
	if n := h.left(); n != 0 {
		t.Errorf("%d left", n)
	}
}

func TestAnArmIsOverWithItsReply(t *testing.T) {
	h := newHub()
	kept, stopped, before := target("/a", false), target("/a", false), target("/b", true)
	before.Watch.Stop()
	x := manyOf(h, kept, stopped, before)
	h.reconnected() // fires armed watches; this one is not armed
	h.armMany(x)
	h.armMany(x)
	h.forget(x) // as a call that is made again does
	stopped.Watch.Stop()
	if h.left() != 1 || len(h.armed[watchKey{"/a", dataWatch}]) != 1 || kept.Watch.Kind() != 0 {
		t.Errorf("%d left, %v", h.left(), kept.Watch.Kind())
	}
	// A reconnect fires the watch, and it is armed only once.
	h.reconnected()
	h.armMany(manyOf(h, kept))
	if h.left() != 0 || kept.Watch.Kind() != backend.LookAgain {
		t.Errorf("%d left, %v", h.left(), kept.Watch.Kind())
	}
}

func TestAnArmOfAnEndedSessionFires(t *testing.T) {
	h := newHub()
	during, after := target("/a", false), target("/a", true)
	x := manyOf(h, during)
	h.end()
	if during.Watch.Kind() != 0 {
		t.Error("a watch fired that was not armed")
	}
	h.armMany(x)
	h.armMany(manyOf(h, after))
	if during.Watch.Kind() != backend.LookAgain || after.Watch.Kind() != backend.LookAgain || h.left() != 0 {
		t.Errorf("%v, %v, %d left", during.Watch.Kind(), after.Watch.Kind(), h.left())
	}
}

func TestAWatchReplacesAnother(t *testing.T) {
	key := watchKey{"/a", dataWatch}
	for name, test := range map[string]struct {
		between func(*hub)
		want    backend.Kind // of the watch when it has taken the place
		after   backend.Kind // when the node is deleted then
	}{
		"that is armed":          {func(*hub) {}, 0, backend.Deleted},
		"that has seen an end":   {func(h *hub) { h.event(event{kind: eventDeleted, path: "/a"}) }, backend.Deleted, backend.Deleted},
		"of an old connection":   {func(h *hub) { h.reconnected() }, backend.LookAgain, backend.LookAgain},
		"of a lost session":      {func(h *hub) { h.end() }, backend.LookAgain, backend.LookAgain},
		"whose data has changed": {func(h *hub) { h.event(event{kind: eventDataChanged, path: "/a"}) }, backend.LookAgain, backend.LookAgain},
	} {
		h := newHub()
		from, w := armed(h, "/a", dataWatch, true), backend.NewWatch()
		test.between(h)
		h.hand(key, from, w)
		got := w.Kind()
		h.event(event{kind: eventDeleted, path: "/a"})
		if got != test.want || w.Kind() != test.after || h.left() != 0 {
			t.Errorf("%s: %v, then %v, %d left", name, got, w.Kind(), h.left())
		}
	}
	for _, late := range []bool{false, true} {
		h := newHub()
		from, w := armed(h, "/a", dataWatch, true), backend.NewWatch()
		if !late {
			w.Stop()
		}
		h.hand(key, from, w)
		w.Stop()
		h.event(event{kind: eventDeleted, path: "/a"})
		if w.Kind() != 0 || h.left() != 0 {
			t.Errorf("stopped, late %v: %v, %d left", late, w.Kind(), h.left())
		}
	}
}

// Whatever the paths are, the request is complete.
func FuzzSetWatches(f *testing.F) {
	f.Add("/a", "/dé", int64(5))
	f.Add("", "/a", int64(-1))
	f.Fuzz(func(t *testing.T, data, child string, since int64) {
		out := encodeSetWatches(nil, since, []backend.Target{target(data, false), target(child, true), target(data, false)})
		d := decoder{rest: out}
		size, xid, op, zxid := d.int32(), d.int32(), d.int32(), d.int64()
		if int(size) != len(out)-4 || xid != 0 || op != opWatches || zxid != since {
			t.Errorf("%x", out)
		}
		for _, want := range [][]string{{data, data}, {}, {child}} {
			n := d.int32()
			for _, path := range want {
				if n != int32(len(want)) || d.text() != path {
					t.Errorf("%x", out)
				}
			}
		}
		if d.failed || len(d.rest) != 0 {
			t.Errorf("%x", out)
		}
	})
}
