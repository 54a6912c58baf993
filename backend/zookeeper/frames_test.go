package zookeeper

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
)

var be = binary.BigEndian

func str(b []byte, s string) []byte { return append(be.AppendUint32(b, uint32(len(s))), s...) }

func head(xid, op int32) []byte {
	return be.AppendUint32(be.AppendUint32(nil, uint32(xid)), uint32(op))
}

func framed(body []byte) []byte { return append(be.AppendUint32(nil, uint32(len(body))), body...) }

func readRequest(op int32, path string) []byte {
	return framed(append(str(head(7, op), path), 0))
}

func createRequest(op int32, path string, flags int32) []byte {
	b := str(str(head(7, op), path), "data")
	b = be.AppendUint32(b, 1)
	b = str(str(be.AppendUint32(b, 31), "world"), "anyone")
	return framed(be.AppendUint32(b, uint32(flags)))
}

func TestAMarkIsTakenOutOfARequest(t *testing.T) {
	for _, op := range []int32{opExists, opGetData, opChildren} {
		out, said, ok := unmark(nil, readRequest(op, markedForWatch("/a/b", 1234567)))
		if !ok || said != "qglj" || !bytes.Equal(out, readRequest(op, "/a/b")) {
			t.Errorf("op %d: %v %q %q", op, ok, said, out)
		}
		setWatchFlag(out)
		want := readRequest(op, "/a/b")
		want[len(want)-1] = 1
		if !bytes.Equal(out, want) {
			t.Errorf("op %d with the flag: %q", op, out)
		}
		if _, _, ok := unmark(nil, readRequest(op, "/a/b")); ok {
			t.Errorf("op %d without a mark has one", op)
		}
	}
	for _, frame := range []func(path string) []byte{
		func(path string) []byte { return createRequest(opCreate, path, 0) },
		func(path string) []byte { return framed(str(str(head(7, opSetData), path), "data")) },
		func(path string) []byte { return framed(be.AppendUint32(str(head(7, opDelete), path), 3)) },
		func(path string) []byte {
			return framed(append(str(append(head(7, opMulti), multiHead(opCheck, 0)...), path), multiHead(opError, 1)...))
		},
	} {
		for _, kind := range []rune{markCommit, markContainer} {
			out, said, ok := unmark([]byte("before"), frame(markedForCommit("/c", kind, 1234567)))
			out, found := bytes.CutPrefix(out, []byte("before"))
			if !ok || !found || !bytes.Equal(out, frame("/c")) {
				t.Errorf("%v %q %q", ok, said, out)
			}
			if n, container, ok := commitMark(said); n != 1234567 || container != (kind == markContainer) || !ok {
				t.Errorf("%q: %d, %v, %v", said, n, container, ok)
			}
		}
		if _, _, ok := unmark(nil, frame("/c")); ok {
			t.Errorf("%q without a mark has one", frame("/c"))
		}
	}
	out := createRequest(opCreate, "/c", 0)
	makeContainer(out)
	if !bytes.Equal(out, createRequest(opContainer, "/c", flagContainer)) {
		t.Errorf("container: %q", out)
	}
	// Data may contain bytes that look like a mark.
	if _, _, ok := unmark(nil, framed(append(str(str(head(7, opSetData), "/a"), mark), 0, 0, 0, 0))); ok {
		t.Error("a mark was found in data")
	}
}

func TestNoPathOfAUserBearsAMark(t *testing.T) {
	for _, path := range []string{markedForWatch("/", 1), markedForWatch("/a", 1<<63), markedForCommit("/a", markContainer, 1)} {
		if err := backend.CheckPath(path); err == nil {
			t.Errorf("CheckPath lets %q through", path)
		}
	}
}

func reply(xid, code int32, body ...byte) []byte {
	b := be.AppendUint32(nil, uint32(xid))
	b = be.AppendUint64(b, 99)
	b = be.AppendUint32(b, uint32(code))
	return append(b, body...)
}

func multiHead(kind int32, done byte) []byte {
	return append(append(be.AppendUint32(nil, uint32(kind)), done), 0, 0, 0, 0)
}

func TestRepliesAreChecked(t *testing.T) {
	stat := make([]byte, statSize)
	end := multiHead(-1, 1)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, test := range []struct {
		name string
		op   int32
		body []byte
		ok   bool
	}{
		{"a path", opCreate, str(nil, "/a"), true},
		{"a path and a stat", opContainer, join(str(nil, "/a"), stat), true},
		{"no path", opCreate, nil, false},
		{"a path of a negative length", opSync, be.AppendUint32(nil, 1<<31), false},
		{"a stat", opExists, stat, true},
		{"half a stat", opSetData, stat[:40], false},
		{"data", opGetData, join(str(nil, "data"), stat), true},
		{"no data", opGetData, join(be.AppendUint32(nil, 1<<32-1), stat), true},
		{"data and no stat", opGetData, str(nil, "data"), false},
		{"data beyond the frame", opGetData, join(be.AppendUint32(nil, 1<<30), stat), false},
		{"no children", opChildren, join(be.AppendUint32(nil, 0), stat), true},
		{"two children", opChildren, join(be.AppendUint32(nil, 2), str(nil, "a"), str(nil, "b"), stat), true},
		{"a negative number of children", opChildren, join(be.AppendUint32(nil, 1<<32-1), stat), false},
		{"a billion children", opChildren, join(be.AppendUint32(nil, 1<<30), stat), false},
		{"an empty multi", opMulti, end, true},
		{"a multi of all", opMulti, join(multiHead(opCreate, 0), str(nil, "/a"), multiHead(opSetData, 0), stat,
			multiHead(opDelete, 0), multiHead(opCheck, 0), multiHead(opError, 0), make([]byte, 4), end), true},
		{"a multi without an end", opMulti, multiHead(opDelete, 0), false},
		{"a multi that ends in a header", opMulti, multiHead(opDelete, 0)[:4], false},
		{"a multi of something else", opMulti, join(multiHead(77, 0), end), false},
		{"no body where none belongs", opDelete, nil, true},
	} {
		if err := checkReply(test.op, reply(1, 0, test.body...)); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestFramesAreParsed(t *testing.T) {
	c := be.AppendUint32(be.AppendUint32(nil, 0), 4000)
	c = str(be.AppendUint64(c, 0x1234), strings.Repeat("p", 16))
	if r, err := parseConnectResponse(append(c, 0)); err != nil || r != (connectResponse{4000, 0x1234}) {
		t.Errorf("connect: %+v, %v", r, err)
	}
	if int32At(c, timeoutFrom) != 4000 {
		t.Error("the timeout is at another offset")
	}
	if _, err := parseConnectResponse(c[:18]); err == nil {
		t.Error("half a connect response was accepted")
	}
	if h, err := parseReplyHeader(reply(5, -101)); err != nil || h != (replyHeader{5, 99, -101}) {
		t.Errorf("reply: %+v, %v", h, err)
	}
	if _, err := parseReplyHeader(reply(5, 0)[:15]); err == nil {
		t.Error("half a header was accepted")
	}
	ev := str(be.AppendUint32(be.AppendUint32(reply(xidEvent, 0), eventDeleted), 3), "/gone")
	if e, err := parseEvent(ev); err != nil || e != (event{eventDeleted, "/gone"}) {
		t.Errorf("event: %+v, %v", e, err)
	}
}

// No frame makes a parser panic, and removing the mark from a request leaves a complete
// frame.
func FuzzFrames(f *testing.F) {
	f.Add(readRequest(opGetData, markedForWatch("/a", 1)))
	f.Add(createRequest(opCreate, markedForCommit("/a", markContainer, 1), 0))
	f.Add(framed(append(str(append(head(7, opMulti), multiHead(opCheck, 0)...), markedForCommit("/a", markCommit, 1)), multiHead(opError, 1)...)))
	f.Add(framed(reply(1, 0, str(nil, "/a")...)))
	f.Add(framed(str(be.AppendUint32(be.AppendUint32(reply(xidEvent, 0), eventCreated), 3), "/a")))
	f.Add(framed(reply(1, 0, append(multiHead(opCreate, 0), str(nil, "/a")...)...)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if out, _, ok := unmark(nil, frame); ok {
			if int(int32At(out, 0)) != len(out)-4 {
				t.Errorf("length %d of %d bytes", int32At(out, 0), len(out))
			}
			length := 12
			if int32At(out, 8) == opMulti {
				length = 21
			}
			if bytes.Contains(out[length+4:][:int32At(out, length)], []byte(mark)) && bytes.Count(frame, []byte(mark)) == 1 {
				t.Error("the mark is still there")
			}
		}
		body := frame[min(4, len(frame)):]
		parseConnectResponse(body)
		parseReplyHeader(body)
		parseEvent(body)
		for _, op := range []int32{opCreate, opExists, opGetData, opChildren, opMulti, opSync} {
			checkReply(op, body)
		}
	})
}
