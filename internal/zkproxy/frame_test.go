package zkproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var be = binary.BigEndian

func frameOf(body []byte) []byte {
	return append(be.AppendUint32(nil, uint32(len(body))), body...)
}

func i32(b []byte, v int32) []byte { return be.AppendUint32(b, uint32(v)) }
func str(b []byte, s string) []byte {
	return append(i32(b, int32(len(s))), s...)
}

// multiOf encodes a multi as a client does.
func multiOf() []byte {
	b := i32(i32(nil, 7), OpMulti)
	op := func(opcode int32) { b = i32(append(i32(b, opcode), 0), -1) }
	op(OpCreate2)
	b = str(b, "/a")
	b = i32(b, -1) // null data
	b = i32(b, 1)  // one ACL
	b = str(str(i32(b, 31), "world"), "anyone")
	b = i32(b, 3)
	op(OpCreateTTL)
	b = str(str(b, "/b"), "data")
	b = i32(b, 0)
	b = i32(b, 5)
	b = be.AppendUint64(b, 1000)
	op(OpDelete)
	b = i32(str(b, "/c"), -1)
	return i32(append(i32(b, -1), 1), -1)
}

func TestAMultiIsParsed(t *testing.T) {
	f, err := parseRequest(multiOf())
	want := []SubOp{{OpCreate2, "/a"}, {OpCreateTTL, "/b"}, {OpDelete, "/c"}}
	if err != nil || f.Xid != 7 || f.Path != "/a" || !slices.Equal(f.Ops, want) {
		t.Errorf("%v, ops %v, %v, want ops %v", f, f.Ops, err, want)
	}
}

// setWatchesOf encodes a setWatches as a client does.
func setWatchesOf(vectors ...[]string) []byte {
	b := be.AppendUint64(i32(i32(nil, 7), OpSetWatches), 1<<40)
	for _, v := range vectors {
		b = i32(b, int32(len(v)))
		for _, path := range v {
			b = str(b, path)
		}
	}
	return b
}

func TestTheFirstPathOfASetWatchesIsFound(t *testing.T) {
	for want, vectors := range map[string][][]string{
		"/data":  {{"/data", "/b"}, {"/exist"}, {"/child"}},
		"/exist": {{}, {"/exist", "/b"}, {"/child"}},
		"/child": {{}, {}, {"/child"}},
		"":       {{}, {}, {}},
	} {
		body := setWatchesOf(vectors...)
		f, err := parseRequest(body)
		if err != nil || f.Xid != 7 || f.Opcode != OpSetWatches || f.Path != want {
			t.Errorf("%v, %v, want %q", f, err, want)
		}
		for n := 8; n < len(body); n++ {
			if f, err := parseRequest(body[:n]); err != nil || f.Path != want && f.Path != "" {
				t.Errorf("%d of %d bytes: %v, %v", n, len(body), f, err)
			}
		}
	}
}

func TestABrokenBodyStillHasItsHeader(t *testing.T) {
	full := multiOf()
	for n := range full {
		f, err := parseRequest(full[:n])
		if n < 8 {
			if !errors.Is(err, errMalformed) {
				t.Errorf("%d bytes: %v, want %v", n, err, errMalformed)
			}
		} else if err != nil || f.Xid != 7 || f.Opcode != OpMulti || f.Size != n+4 {
			t.Errorf("%d bytes: %v, %v", n, f, err)
		}
	}
}

func TestALengthIsNotTrusted(t *testing.T) {
	// An announced length of 64 MiB without the bytes does not allocate 64 MiB.
	head := be.AppendUint32(nil, maxFrame)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := readFrame(bytes.NewReader(head)); err != io.ErrUnexpectedEOF {
		t.Errorf("error %v, want %v", err, io.ErrUnexpectedEOF)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}

func FuzzFrames(f *testing.F) {
	reply := i32(be.AppendUint64(i32(nil, 7), 9), -101)
	event := str(i32(i32(i32(be.AppendUint64(i32(nil, XidEvent), ^uint64(0)), 0), 2), 3), "/gone")
	for _, seed := range [][]byte{
		nil,
		frameOf(nil),
		frameOf(make([]byte, 45)), // a connect request without its last field
		frameOf(str(i32(i32(nil, 1), OpGetData), "/a")),
		frameOf(multiOf()),
		frameOf(setWatchesOf(nil, []string{"/a"}, nil)),
		frameOf(setWatchesOf([]string{"/a"})[:21]),
		frameOf(reply),
		append(frameOf(reply), frameOf(event)...),
		[]byte("srvr"),
		{0xff, 0xff, 0xff, 0xff, 0},
		frameOf(str(i32(i32(nil, 1), OpCreate), "/a")[:11]),
		frameOf(append(i32(i32(nil, 1), OpCreate), 0x7f, 0xff, 0xff, 0xff)),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := bytes.NewReader(stream)
		for consumed := 0; ; {
			data, err := readFrame(r)
			if err != nil {
				return
			}
			// Frames are forwarded unchanged.
			if !bytes.Equal(data, stream[consumed:consumed+len(data)]) {
				t.Fatalf("frame %x at %d of %x", data, consumed, stream)
			}
			consumed += len(data)
			body := data[4:]
			for _, dir := range []Dir{Up, Down} {
				frame, err := parseConnect(body, dir)
				check(t, frame, err, body, 24-8*int(dir))
			}
			frame, err := parseRequest(body)
			check(t, frame, err, body, 8)
			frame, err = parseReply(body)
			check(t, frame, err, body, 16)
		}
	})
}

// check fails if a frame is refused that is long enough, or if it reports values that are not
// in its body.
func check(t *testing.T, f Frame, err error, body []byte, header int) {
	t.Helper()
	if (err != nil) != (len(body) < header) || err != nil && !errors.Is(err, errMalformed) {
		t.Fatalf("%d bytes of at least %d: %v", len(body), header, err)
	}
	if f.Size != len(body)+4 {
		t.Fatalf("size %d of %d", f.Size, len(body)+4)
	}
	paths := []string{f.Path}
	for _, op := range f.Ops {
		paths = append(paths, op.Path)
	}
	if all := strings.Join(paths[1:], ""); len(all) > len(body) {
		t.Fatalf("paths of %d bytes in %d", len(all), len(body))
	}
	for _, p := range paths {
		if !bytes.Contains(body, []byte(p)) {
			t.Fatalf("path %q is not in %x", p, body)
		}
	}
}
