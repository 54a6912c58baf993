package zookeeper

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
)

// The encoding of the requests that this package sends, and the decoding of their replies.
//
// Each function encode… returns one whole frame, in the memory of buf if it is large enough.
// Its xid is zero; the connection sets it when it writes the frame (setXid), because a frame
// can be sent again on another connection.

// begin begins a request. finish sets its length.
func begin(buf []byte, op int32) []byte {
	return appendInt32(append(buf[:0], 0, 0, 0, 0, 0, 0, 0, 0), op)
}

func finish(frame []byte) []byte {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

func setXid(frame []byte, xid int32) { binary.BigEndian.PutUint32(frame[4:], uint32(xid)) }

func appendInt32(b []byte, n int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(n)) }

func appendInt64(b []byte, n int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(n)) }

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// appendText appends a string or a buffer. No data is encoded as empty data: other clients
// distinguish it from absent data.
func appendText[T string | []byte](b []byte, text T) []byte {
	return append(appendInt32(b, int32(len(text))), text...)
}

// encodeRead encodes opGetData, opExists or opChildren. With watch set it arms a watch.
func encodeRead(buf []byte, op int32, path string, watch bool) []byte {
	return finish(appendBool(appendText(begin(buf, op), path), watch))
}

// setWatch sets whether the read in a frame arms a watch.
func setWatch(frame []byte, watch bool) {
	appendBool(frame[:len(frame)-1], watch)
}

func encodeSync(buf []byte, path string) []byte {
	return finish(appendText(begin(buf, opSync), path))
}

// step is one request of a commit. An operation has one, or several if servers have no such
// request.
type step struct {
	op    int32
	index int  // of the operation
	quiet bool // its result is not one of the operation
}

func appendSteps(steps []step, ops []backend.Op) []step {
	for i := range ops {
		switch ops[i].Kind {
		case backend.OpCreate:
			steps = append(steps, step{op: opCreate, index: i})
		case backend.OpSetData, backend.OpCarry:
			steps = append(steps, step{op: opSetData, index: i})
		case backend.OpDelete:
			steps = append(steps, step{op: opDelete, index: i})
		case backend.OpCheck:
			steps = append(steps, step{op: opCheck, index: i})
		case backend.OpAbsent:
			// A creation is refused if there is a node, and its deletion leaves none.
			steps = append(steps, step{op: opCreate, index: i, quiet: true}, step{op: opDelete, index: i, quiet: true})
		}
	}
	return steps
}

// commitOp returns the opcode of a commit.
func commitOp(ops []backend.Op) int32 {
	if len(ops) > 1 {
		return opMulti
	}
	switch op := &ops[0]; {
	case op.Kind == backend.OpCreate && op.Mode == backend.Container:
		return opContainer
	case op.Kind == backend.OpCreate:
		return opCreate
	case op.Kind == backend.OpSetData, op.Kind == backend.OpCarry:
		return opSetData
	case op.Kind == backend.OpDelete:
		return opDelete
	}
	return opMulti // no server knows a check alone
}

// encodeCommit encodes a commit. aclOf returns the ACL of a new node.
func encodeCommit(buf []byte, ops []backend.Op, steps []step, aclOf func(shared bool) acl) []byte {
	op := commitOp(ops)
	buf = begin(buf, op)
	if op != opMulti {
		return finish(appendStep(buf, &ops[0], steps[0], aclOf))
	}
	for _, st := range steps {
		buf = appendStep(appendMultiHeader(buf, st.op, false), &ops[st.index], st, aclOf)
	}
	return finish(appendMultiHeader(buf, opError, true))
}

// appendMultiHeader appends what stands before each step of a multi and at its end.
func appendMultiHeader(b []byte, op int32, done bool) []byte {
	return appendInt32(appendBool(appendInt32(b, op), done), -1)
}

func appendStep(b []byte, op *backend.Op, st step, aclOf func(shared bool) acl) []byte {
	if st.quiet {
		op = &backend.Op{Path: op.Path} // nothing else of it counts
	}
	b = appendText(b, op.Path)
	switch st.op {
	case opCreate:
		b = appendText(b, op.Data)
		b = append(b, aclOf(op.Shared)...)
		return appendInt32(b, flagsOf(op.Mode))
	case opSetData:
		b = appendText(b, op.Data)
	}
	return appendInt32(b, op.Version)
}

func flagsOf(m backend.CreateMode) int32 {
	switch m {
	case backend.Ephemeral:
		return flagEphemeral
	case backend.PersistentSequential:
		return flagSequence
	case backend.EphemeralSequential:
		return flagEphemeral | flagSequence
	case backend.Container:
		return flagContainer
	}
	return 0
}

// acl is the ACL of a node in its encoding.
type acl []byte

func encodeACL(entries []ACL) acl {
	b := appendInt32(nil, int32(len(entries)))
	for _, a := range entries {
		b = appendText(appendText(appendInt32(b, int32(a.Perms)), a.Scheme), a.ID)
	}
	return b
}

// encodeSetWatches encodes the request that arms watches: since, and the paths to watch for
// data, for creation and for children. It has no result.
func encodeSetWatches(buf []byte, since int64, targets []backend.Target) []byte {
	buf = appendInt64(begin(buf, opWatches), since)
	buf = appendPaths(buf, targets, false)
	buf = appendInt32(buf, 0)
	return finish(appendPaths(buf, targets, true))
}

func appendPaths(b []byte, targets []backend.Target, children bool) []byte {
	at, n := len(b), 0
	b = appendInt32(b, 0)
	for i := range targets {
		if targets[i].Children == children {
			b = appendText(b, targets[i].Path)
			n++
		}
	}
	binary.BigEndian.PutUint32(b[at:], uint32(n))
	return b
}

// encodeAddWatch encodes the request for a persistent watch. It has no result.
func encodeAddWatch(buf []byte, path string, mode int32) []byte {
	return finish(appendInt32(appendText(begin(buf, opAddWatch), path), mode))
}

// encodeRemoveWatches encodes the request that removes this session's watches of a kind from
// a node. It has no result.
func encodeRemoveWatches(buf []byte, path string, kind int32) []byte {
	return finish(appendInt32(appendText(begin(buf, opRemoveWatches), path), kind))
}

func encodeMultiRead(buf []byte, reads []backend.Read) []byte {
	buf = begin(buf, opMultiRead)
	for _, r := range reads {
		op := int32(opGetData)
		if r.Children {
			op = opNames
		}
		buf = appendBool(appendText(appendMultiHeader(buf, op, false), r.Path), false)
	}
	return finish(appendMultiHeader(buf, opError, true))
}

// encodeAuth encodes the request that presents credentials. Unlike the others it has an xid
// of its own.
func encodeAuth(digest string) []byte {
	b := appendInt32(begin(nil, opAuth), 0)
	b = finish(appendText(appendText(b, "digest"), digest))
	setXid(b, xidAuth)
	return b
}

// encodeConnect encodes the request that begins or continues a session.
func encodeConnect(seen int64, timeout time.Duration, id int64, password string) []byte {
	if id == 0 {
		password = strings.Repeat("\x00", 16)
	}
	const protocol = 0
	b := appendInt32(appendInt32(nil, 0), protocol)
	b = appendInt64(appendInt32(appendInt64(b, seen), int32(timeout/time.Millisecond)), id)
	return finish(appendBool(appendText(b, password), false))
}

// encodeClose encodes the request that ends a session.
func encodeClose(xid int32) []byte {
	b := finish(begin(nil, opClose))
	setXid(b, xid)
	return b
}

// answer is the decoded reply to a request. Which fields are set depends on the request.
type answer struct {
	code    int32 // of the reply, or of the operation of a multi that failed
	failed  int   // the index of that operation, -1 if there is none
	stat    backend.Stat
	data    []byte
	names   []string
	results []backend.Result
	reads   []nodeAnswer
	size    int  // of the reply
	skipped bool // the reply was too long, and was not read
}

// nodeAnswer is the answer to one read of a multiRead.
type nodeAnswer struct {
	code  int32
	data  []byte
	stat  backend.Stat // of a node whose data was read
	names []string
}

// decode decodes the body of a reply with code 0. steps are those of a commit, and
// count is the number of reads of a multiRead. shared says that the memory of body is used
// again after the call, so that data has to be copied. A body that is longer than expected is
// accepted: later versions of the protocol may add fields.
func (a *answer) decode(op int32, body []byte, steps []step, count int, shared bool) error {
	d := decoder{rest: body}
	switch op {
	case opGetData:
		a.data = d.data(shared)
		d.stat(&a.stat)
	case opExists:
		d.stat(&a.stat)
	case opChildren:
		a.names = d.names()
		d.stat(&a.stat)
	case opSync:
		d.field()
	case opCreate, opContainer:
		a.results = make([]backend.Result, 1)
		a.results[0].Path = d.text()
	case opSetData:
		a.results = make([]backend.Result, 1)
		d.stat(&a.results[0].Stat)
	case opDelete:
		a.results = make([]backend.Result, 1)
	case opMulti:
		a.multi(&d, steps)
	case opMultiRead:
		a.multiRead(&d, count, shared)
	}
	if d.failed {
		return errMalformed
	}
	return nil
}

// multi decodes the results of a commit. If it was refused, the results before that of the
// step at fault have no error, and those after it have a code without meaning.
func (a *answer) multi(d *decoder, steps []step) {
	results := make([]backend.Result, steps[len(steps)-1].index+1)
	errors, n := 0, 0
	for !d.failed {
		op, done := d.int32(), d.bool()
		d.int32()
		switch {
		case d.failed:
			return
		case done:
			d.failed = n != len(steps)
			if errors == 0 {
				a.results = results
			} else if a.failed < 0 {
				a.code = codeAfterFailure // refused, and the reply does not say why
			}
			return
		case n == len(steps):
			d.failed = true
			return
		}
		result := &results[steps[n].index]
		switch {
		case op == opError:
			errors++
			if code := d.int32(); a.failed < 0 && code != codeOK && code != codeAfterFailure {
				a.code, a.failed = code, steps[n].index
			}
		case op != steps[n].op:
			d.failed = true
		case op == opCreate && steps[n].quiet:
			d.field()
		case op == opCreate:
			result.Path = d.text()
		case op == opSetData:
			d.stat(&result.Stat)
		}
		n++
	}
}

func (a *answer) multiRead(d *decoder, count int, shared bool) {
	a.reads = make([]nodeAnswer, 0, count)
	for !d.failed {
		op, done := d.int32(), d.bool()
		d.int32()
		switch {
		case d.failed:
			return
		case done:
			d.failed = len(a.reads) != count
			return
		case len(a.reads) == count:
			d.failed = true
			return
		}
		var r nodeAnswer
		switch op {
		case opError:
			if r.code = d.int32(); a.code == codeOK && aboutSession(r.code) {
				a.code = r.code
			}
		case opGetData:
			r.data = d.data(shared)
			d.stat(&r.stat)
		case opNames:
			r.names = d.names()
		default:
			d.failed = true
		}
		a.reads = append(a.reads, r)
	}
}
