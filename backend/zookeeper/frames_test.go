package zookeeper

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
)

var be = binary.BigEndian

func str(b []byte, s string) []byte { return append(be.AppendUint32(b, uint32(len(s))), s...) }

func framed(body []byte) []byte { return append(be.AppendUint32(nil, uint32(len(body))), body...) }

func reply(xid, code int32, body ...byte) []byte {
	b := be.AppendUint32(nil, uint32(xid))
	b = be.AppendUint64(b, 99)
	b = be.AppendUint32(b, uint32(code))
	return append(b, body...)
}

func multiHead(kind int32, done byte) []byte {
	return append(append(be.AppendUint32(nil, uint32(kind)), done), 0, 0, 0, 0)
}

func TestRepliesAreDecoded(t *testing.T) {
	stat := make([]byte, statSize)
	for i := range stat {
		stat[i] = byte(i)
	}
	decoded := backend.Stat{
		Czxid: 0x0001020304050607, Mzxid: 0x08090a0b0c0d0e0f, Pzxid: 0x3c3d3e3f40414243,
		AsOf:  0x3c3d3e3f40414243,
		Ctime: 0x1011121314151617, Mtime: 0x18191a1b1c1d1e1f, Version: 0x20212223, Cversion: 0x24252627,
		EphemeralOwner: 0x2c2d2e2f30313233, DataLength: 0x34353637, NumChildren: 0x38393a3b,
	}
	end := multiHead(-1, 1)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	refusal := func(code int32) []byte {
		return be.AppendUint32(multiHead(opError, 0), uint32(code))
	}
	const c, s, d, k, no, y = backend.OpCreate, backend.OpSetData, backend.OpDelete, backend.OpCheck, backend.OpAbsent, backend.OpCarry
	path := func(p string) backend.Result { return backend.Result{Path: p} }
	for _, test := range []struct {
		name  string
		op    int32
		body  []byte
		kinds []backend.OpKind
		want  *answer // nil for an error
	}{
		{"a path", opCreate, str(nil, "/a"), nil, &answer{results: []backend.Result{path("/a")}}},
		{"a path and a stat", opContainer, join(str(nil, "/a"), stat), nil, &answer{results: []backend.Result{path("/a")}}},
		{"no path", opCreate, nil, nil, nil},
		{"a path of a negative length", opSync, be.AppendUint32(nil, 1<<31), nil, nil},
		{"a path of length -1", opCreate, be.AppendUint32(nil, 1<<32-1), nil, nil},
		{"a stat", opExists, stat, nil, &answer{stat: decoded}},
		{"half a stat", opSetData, stat[:40], nil, nil},
		{"a stat of new data", opSetData, stat, nil, &answer{results: []backend.Result{{Stat: decoded}}}},
		{"data", opGetData, join(str(nil, "data"), stat), nil, &answer{data: []byte("data"), stat: decoded}},
		{"no data", opGetData, join(be.AppendUint32(nil, 1<<32-1), stat), nil, &answer{stat: decoded}},
		{"empty data", opGetData, join(str(nil, ""), stat), nil, &answer{stat: decoded}},
		{"data and no stat", opGetData, str(nil, "data"), nil, nil},
		{"data beyond the frame", opGetData, join(be.AppendUint32(nil, 1<<30), stat), nil, nil},
		{"no children", opChildren, join(be.AppendUint32(nil, 0), stat), nil, &answer{stat: decoded}},
		{"two children", opChildren, join(be.AppendUint32(nil, 2), str(nil, "a"), str(nil, "b"), stat), nil, &answer{names: []string{"a", "b"}, stat: decoded}},
		{"a negative number of children", opChildren, join(be.AppendUint32(nil, 1<<32-1), stat), nil, nil},
		{"a billion children", opChildren, join(be.AppendUint32(nil, 1<<30), stat), nil, nil},
		{"a child beyond the frame", opChildren, join(be.AppendUint32(nil, 2), str(nil, "a"), be.AppendUint32(nil, 1<<30), stat), nil, nil},
		{"a multi of nothing", opMulti, end, []backend.OpKind{k}, nil},
		{"a multi of all", opMulti, join(multiHead(opCreate, 0), str(nil, "/a"), multiHead(opSetData, 0), stat,
			multiHead(opDelete, 0), multiHead(opCheck, 0), end), []backend.OpKind{c, s, d, k}, &answer{results: []backend.Result{path("/a"), {Stat: decoded}, {}, {}}}},
		{"a multi that carries", opMulti, join(multiHead(opCreate, 0), str(nil, "/a"), multiHead(opSetData, 0), stat, end), []backend.OpKind{c, y},
			&answer{results: []backend.Result{path("/a"), {Stat: decoded}}}},
		{"a multi that was refused", opMulti, join(refusal(0), refusal(codeBadVersion), refusal(-2), end), []backend.OpKind{c, k, d},
			&answer{code: codeBadVersion, failed: 1}},
		{"a multi that was refused at once", opMulti, join(refusal(codeNoNode), refusal(-2), end), []backend.OpKind{c, d}, &answer{code: codeNoNode, failed: 0}},
		{"a multi that was throttled in each", opMulti, join(refusal(codeThrottled), refusal(codeThrottled), end), []backend.OpKind{c, d}, &answer{code: codeThrottled, failed: 0}},
		{"a multi that was throttled after a result", opMulti, join(multiHead(opDelete, 0), refusal(codeThrottled), end), []backend.OpKind{d, d}, &answer{code: codeThrottled, failed: 1}},
		{"a code without meaning before the code", opMulti, join(refusal(-2), refusal(codeThrottled), end), []backend.OpKind{d, d}, &answer{code: codeThrottled, failed: 1}},
		{"a multi that was refused without a reason", opMulti, join(refusal(0), refusal(-2), end), []backend.OpKind{d, d}, &answer{code: -2, failed: -1}},
		{"a multi with two steps of one operation", opMulti, join(multiHead(opDelete, 0), multiHead(opCreate, 0), str(nil, "/a"), multiHead(opDelete, 0),
			multiHead(opCreate, 0), str(nil, "/b"), end), []backend.OpKind{d, no, c}, &answer{results: []backend.Result{{}, {}, path("/b")}}},
		{"a multi refused in the first of two steps", opMulti, join(refusal(0), refusal(codeNodeExists), refusal(-2), refusal(-2), end), []backend.OpKind{d, no, c},
			&answer{code: codeNodeExists, failed: 1}},
		{"a multi refused in the second of two steps", opMulti, join(refusal(0), refusal(0), refusal(codeNoAuth), refusal(-2), end), []backend.OpKind{d, no, c},
			&answer{code: codeNoAuth, failed: 1}},
		{"a multi refused after two steps", opMulti, join(refusal(0), refusal(0), refusal(0), refusal(codeNodeExists), end), []backend.OpKind{d, no, c},
			&answer{code: codeNodeExists, failed: 2}},
		{"a multi with the results of another", opMulti, join(multiHead(opCreate, 0), str(nil, "/a"), end), []backend.OpKind{d}, nil},
		{"a multi with fewer results", opMulti, join(multiHead(opDelete, 0), end), []backend.OpKind{d, d}, nil},
		{"a multi with more results", opMulti, join(multiHead(opDelete, 0), multiHead(opDelete, 0), end), []backend.OpKind{d}, nil},
		{"a multi without an end", opMulti, multiHead(opDelete, 0), []backend.OpKind{d}, nil},
		{"a multi that ends in a header", opMulti, multiHead(opDelete, 0)[:4], []backend.OpKind{d}, nil},
		{"a multi that ends in a code", opMulti, refusal(codeNoNode)[:11], []backend.OpKind{d}, nil},
		{"a multi of something else", opMulti, join(multiHead(77, 0), end), []backend.OpKind{d}, nil},
		{"no body where none belongs", opDelete, nil, nil, &answer{results: make([]backend.Result, 1)}},
		{"no body for an Arm", opWatches, []byte{1, 2}, nil, &answer{}},
		{"many reads", opMultiRead, join(multiHead(opGetData, 0), str(nil, "x"), stat, refusal(codeNoNode), multiHead(opNames, 0), be.AppendUint32(nil, 1), str(nil, "n"), end), nil,
			&answer{reads: []nodeAnswer{{data: []byte("x"), stat: decoded}, {code: codeNoNode}, {names: []string{"n"}}}}},
		{"fewer reads", opMultiRead, join(refusal(codeNoNode), end), nil, nil},
		{"more reads", opMultiRead, join(refusal(codeNoNode), refusal(codeNoNode), refusal(codeNoNode), refusal(codeNoNode), end), nil, nil},
		{"reads of something else", opMultiRead, join(multiHead(opCreate, 0), str(nil, "x"), end), nil, nil},
	} {
		for _, shared := range []bool{false, true} {
			got := answer{failed: -1}
			body := bytes.Clone(test.body)
			err := got.decode(test.op, body, stepsOf(test.kinds), 3, shared)
			if shared {
				clear(body) // the next frame is read into this memory
			}
			switch {
			case (err == nil) != (test.want != nil):
				t.Errorf("%s: %v", test.name, err)
			case err == nil:
				if test.want.code == 0 {
					test.want.failed = -1
				}
				if !reflect.DeepEqual(got, *test.want) {
					t.Errorf("%s: got %+v, want %+v", test.name, got, *test.want)
				}
			}
		}
	}
}

func stepsOf(kinds []backend.OpKind) []step {
	var ops []backend.Op
	for _, kind := range kinds {
		ops = append(ops, backend.Op{Kind: kind})
	}
	return appendSteps(nil, ops)
}

func TestFramesAreParsed(t *testing.T) {
	c := be.AppendUint32(be.AppendUint32(nil, 0), 4000)
	c = str(be.AppendUint64(c, 0x1234), strings.Repeat("p", 16))
	if r, err := parseConnectResponse(append(c, 0)); err != nil || r.timeout != 4000 || r.session != 0x1234 {
		t.Errorf("connect: %+v, %v", r, err)
	}
	if int32At(c, timeoutFrom) != 4000 {
		t.Error("the timeout is at another offset")
	}
	if _, err := parseConnectResponse(c[:18]); err == nil {
		t.Error("half a connect response was accepted")
	}
	ev := str(be.AppendUint32(be.AppendUint32(nil, eventDeleted), 3), "/gone")
	if e, err := parseEvent(ev); err != nil || e != (event{kind: eventDeleted, path: "/gone"}) {
		t.Errorf("event: %+v, %v", e, err)
	}
}

// No body makes a decoder panic, or allocate much more than its own size.
func FuzzFrames(f *testing.F) {
	stat := make([]byte, statSize)
	f.Add(int32(opCreate), str(nil, "/a"), 1)
	f.Add(int32(opGetData), append(str(nil, "data"), stat...), 0)
	f.Add(int32(opChildren), append(str(be.AppendUint32(nil, 1), "a"), stat...), 0)
	f.Add(int32(opChildren), be.AppendUint32(nil, 1<<31-1), 0)
	f.Add(int32(opMulti), append(append(multiHead(opCreate, 0), str(nil, "/a")...), multiHead(opError, 1)...), 1)
	f.Add(int32(opMulti), append(append(multiHead(opError, 0), 255, 255, 255, 155), multiHead(opError, 1)...), 1)
	f.Add(int32(opMultiRead), append(append(append(multiHead(opGetData, 0), str(nil, "x")...), stat...), multiHead(opError, 1)...), 1)
	f.Add(int32(xidEvent), str(be.AppendUint32(be.AppendUint32(nil, eventCreated), 3), "/a"), 0)
	f.Add(int32(0), []byte{}, 0)
	f.Fuzz(func(t *testing.T, op int32, body []byte, count int) {
		count = max(1, min(count, 100))
		kinds := make([]backend.OpKind, count)
		for i := range kinds {
			kinds[i] = backend.OpKind(i%5 + 1)
		}
		parseConnectResponse(bytes.Clone(body))
		parseEvent(body)
		a := answer{failed: -1}
		if err := a.decode(op, body, stepsOf(kinds), count, true); err != nil {
			return
		}
		size := len(a.data)
		for _, name := range a.names {
			size += 4 + len(name)
		}
		for _, r := range a.results {
			size += len(r.Path)
		}
		for _, r := range a.reads {
			size += len(r.data)
			for _, name := range r.names {
				size += 4 + len(name)
			}
		}
		if size > len(body) {
			t.Errorf("%d bytes out of %d", size, len(body))
		}
		switch {
		case op == opMulti && a.code == codeOK && len(a.results) != count,
			op == opMulti && a.code != codeOK && (a.results != nil || a.failed >= count),
			op == opMultiRead && len(a.reads) != count:
			t.Errorf("%d operations: %+v", count, a)
		}
	})
}

// Whatever the operations are, the requests are complete, and the same in used memory.
func FuzzRequests(f *testing.F) {
	f.Add("/a", "/b", []byte("data"), int32(3), []byte{0})
	f.Add("/a", "/b", []byte("data"), int32(-1), []byte{0, 1, 2, 3, 4, 5, 20, 21, 22, 23, 24})
	f.Add("", "/\x00dé", []byte{}, int32(0), []byte{4})
	f.Add("/c", "/", []byte(nil), int32(0), []byte{20})
	all := encodeACL([]ACL{{"world", "anyone", PermAll}})
	aclOf := func(bool) acl { return all }
	f.Fuzz(func(t *testing.T, path, other string, data []byte, version int32, kinds []byte) {
		if len(kinds) == 0 || len(kinds) > 100 {
			return
		}
		var ops []backend.Op
		var reads []backend.Read
		for i, b := range kinds {
			p := path
			if i%2 == 1 {
				p = other
			}
			ops = append(ops, backend.Op{Kind: backend.OpKind(b%5 + 1), Path: p, Data: data, Version: version, Mode: backend.CreateMode(b / 5 % 5)})
			reads = append(reads, backend.Read{Path: p, Children: b%2 == 1})
		}
		steps := appendSteps(nil, ops)

		// begun checks that a request is whole, and decodes it after its head.
		begun := func(encode func(buf []byte) []byte, op int32) decoder {
			frame := encode(nil)
			if used := encode(bytes.Repeat([]byte{0xee}, 200)); !bytes.Equal(used, frame) {
				t.Errorf("%x, and in used memory %x", frame, used)
			}
			d := decoder{rest: frame}
			if size, xid, got := d.int32(), d.int32(), d.int32(); int(size) != len(frame)-4 || xid != 0 || got != op {
				t.Errorf("the head of %x, want operation %d", frame, op)
			}
			return d
		}
		ended := func(d decoder) {
			if d.failed || len(d.rest) != 0 {
				t.Errorf("%x is left, failed %t", d.rest, d.failed)
			}
		}
		same := func(got, want any) {
			if got != want {
				t.Errorf("%v, want %v", got, want)
			}
		}
		head := func(d *decoder, op int32, done bool) {
			same(d.int32(), op)
			same(d.bool(), done)
			same(d.int32(), int32(-1))
		}

		op := commitOp(ops)
		d := begun(func(buf []byte) []byte { return encodeCommit(buf, ops, steps, aclOf) }, op)
		for _, st := range steps {
			o := ops[st.index]
			if st.quiet {
				o = backend.Op{Path: o.Path}
			}
			if op == opMulti {
				head(&d, st.op, false)
			}
			same(d.text(), o.Path)
			if st.op == opCreate || st.op == opSetData {
				same(d.text(), string(o.Data))
			}
			if st.op == opCreate {
				same(string(d.take(len(all))), string(all))
				same(d.int32(), flagsOf(o.Mode))
			} else {
				same(d.int32(), o.Version)
			}
		}
		if op == opMulti {
			head(&d, opError, true)
		}
		ended(d)

		d = begun(func(buf []byte) []byte { return encodeMultiRead(buf, reads) }, opMultiRead)
		for _, r := range reads {
			if r.Children {
				head(&d, opNames, false)
			} else {
				head(&d, opGetData, false)
			}
			same(d.text(), r.Path)
			same(d.bool(), false)
		}
		head(&d, opError, true)
		ended(d)

		d = begun(func(buf []byte) []byte { return encodeRead(buf, opGetData, path, true) }, opGetData)
		same(d.text(), path)
		same(d.bool(), true)
		ended(d)
		d = begun(func(buf []byte) []byte { return encodeSync(buf, path) }, opSync)
		same(d.text(), path)
		ended(d)
		d = begun(func(buf []byte) []byte { return encodeAddWatch(buf, path, modeTree) }, opAddWatch)
		same(d.text(), path)
		same(d.int32(), int32(modeTree))
		ended(d)
		d = begun(func(buf []byte) []byte { return encodeRemoveWatches(buf, path, kindAny) }, opRemoveWatches)
		same(d.text(), path)
		same(d.int32(), int32(kindAny))
		ended(d)
	})
}
