package zookeeper

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/go-coord/coord/backend"
)

// The parts of ZooKeeper's protocol that this package decodes itself. A frame is a length of
// four bytes and a body; all numbers are big endian.
//
//	connect request   proto 4, last zxid 8, timeout 4, session 8, password, read-only 1
//	connect response  proto 4, timeout 4, session 8, password, read-only 1
//	request           xid 4, opcode 4, by opcode
//	reply             xid 4, zxid 8, error 4, by opcode when the error is 0
//	event             xid -1, zxid 8, error 4, type 4, state 4, path
//
// Strings and buffers have a length of four bytes before them.
const (
	opCreate        = 1
	opDelete        = 2
	opExists        = 3
	opGetData       = 4
	opSetData       = 5
	opNames         = 8 // getChildren, in a multiRead only
	opSync          = 9
	opPing          = 11
	opChildren      = 12 // getChildren2
	opCheck         = 13
	opMulti         = 14
	opRemoveWatches = 18
	opContainer     = 19
	opMultiRead     = 22
	opAuth          = 100
	opWatches       = 101 // setWatches
	opAddWatch      = 106
	opClose         = -11
	opError         = -1

	xidEvent = -1
	xidPing  = -2
	xidAuth  = -4

	codeOK             = 0
	codeTooLong        = 1  // no server's: of a read whose reply was skipped
	codeAfterFailure   = -2 // of an operation of a multi, after the one that failed
	codeUnimplemented  = -6
	codeBadArguments   = -8
	codeUnknownSession = -12 // the session ended between the arrival of the request and its turn
	codeNoNode         = -101
	codeNoAuth         = -102
	codeBadVersion     = -103
	codeNoChildren     = -108
	codeNodeExists     = -110
	codeNotEmpty       = -111
	codeSessionExpired = -112
	codeInvalidACL     = -114
	codeAuthFailed     = -115
	codeClosing        = -116
	codeSessionMoved   = -118
	codeNotReadOnly    = -119
	codeLocalSession   = -120
	codeNeedsSASL      = -124
	codeQuotaExceeded  = -125
	codeThrottled      = -127

	eventCreated         = 1
	eventDeleted         = 2
	eventDataChanged     = 3
	eventChildrenChanged = 4

	modeTree = 1 // of opAddWatch: persistent and recursive
	kindAny  = 3 // of opRemoveWatches

	flagEphemeral = 1
	flagSequence  = 2
	flagContainer = 4

	statSize    = 68
	replySize   = 16 // of the header
	maxFrame    = 64 << 20
	mostEvent   = 1 << 20 // after the header: servers refuse longer requests, and so longer paths
	mostResult  = 256     // of a step of a commit, beside the path in the request
	timeoutFrom = 4       // offset in the body of a connect response
	seenFrom    = 4       // offset in the body of a connect request
	askedFrom   = 12      // likewise
)

var errMalformed = errors.New("the server sent a malformed frame")

type connectResponse struct {
	timeout  int32 // in milliseconds
	session  int64
	password string
}

func parseConnectResponse(body []byte) (connectResponse, error) {
	d := decoder{rest: body}
	d.int32()
	r := connectResponse{timeout: d.int32(), session: d.int64()}
	r.password = string(d.buffer())
	if d.failed || r.timeout < 0 {
		return connectResponse{}, errMalformed
	}
	return r, nil
}

type replyHeader struct {
	xid  int32
	zxid int64 // the latest commit that the server had applied
	code int32
}

func parseReplyHeader(b []byte) replyHeader {
	d := decoder{rest: b}
	return replyHeader{xid: d.int32(), zxid: d.int64(), code: d.int32()}
}

type event struct {
	kind int32
	path string
	zxid int64 // zero before version 3.9
}

// parseEvent decodes what follows the header of an event.
func parseEvent(body []byte) (event, error) {
	d := decoder{rest: body}
	e := event{kind: d.int32()}
	d.int32() // the state of the session
	e.path = string(d.buffer())
	if d.failed || watched(e.kind) && (e.path == "" || e.path[0] != '/') {
		return event{}, errMalformed
	}
	return e, nil
}

// watchedBy returns the kind of watch that a read arms with its reply, and whether the node
// exists. ok is false if the read arms no watch.
func watchedBy(op, code int32) (kind watchKind, exists, ok bool) {
	switch {
	case op == opExists && code == codeNoNode:
		return dataWatch, false, true
	case op == opExists && code == codeOK, op == opGetData && code == codeOK:
		return dataWatch, true, true
	case op == opChildren && code == codeOK:
		return childWatch, true, true
	}
	return 0, false, false
}

// watched reports whether an event of a kind is about a node.
func watched(kind int32) bool { return kind >= eventCreated && kind <= eventChildrenChanged }

// firedBy returns the meaning of an event for the armed watches of its path.
func firedBy(kind int32) (data, child bool, as backend.Kind) {
	switch kind {
	case eventDeleted:
		return true, true, backend.Deleted
	case eventCreated, eventDataChanged:
		return true, false, backend.LookAgain
	case eventChildrenChanged:
		return false, true, backend.LookAgain
	}
	return true, true, backend.LookAgain
}

func int32At(b []byte, i int) int32 { return int32(binary.BigEndian.Uint32(b[i:])) }

// decoder reads the fields of a body. After the first missing field it has failed and returns
// zeros.
type decoder struct {
	rest   []byte
	failed bool
}

func (d *decoder) take(n int) []byte {
	if d.failed || n < 0 || n > len(d.rest) {
		d.failed = true
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) bool() bool {
	b := d.take(1)
	return b != nil && b[0] != 0
}

func (d *decoder) int32() int32 {
	if b := d.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (d *decoder) int64() int64 {
	if b := d.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// buffer reads a buffer; length -1 means none.
func (d *decoder) buffer() []byte {
	n := d.int32()
	if n == -1 {
		return nil
	}
	return d.take(int(n))
}

// field reads a string, which unlike a buffer is always there.
func (d *decoder) field() []byte { return d.take(int(d.int32())) }

func (d *decoder) text() string { return string(d.field()) }

// data reads the data of a node, nil if it is empty. With shared set it is a copy.
func (d *decoder) data(shared bool) []byte {
	b := d.buffer()
	switch {
	case len(b) == 0:
		return nil
	case shared:
		return bytes.Clone(b)
	}
	return b[:len(b):len(b)]
}

// names reads a list of strings. The memory that it allocates is bounded by the bytes that
// are there, whatever the list says of its length. Each name has memory of its own: a caller
// that keeps one of many does not keep them all.
func (d *decoder) names() []string {
	n := d.int32()
	if d.failed || n < 0 || int(n) > len(d.rest)/4 {
		d.failed = true
		return nil
	}
	if n == 0 {
		return nil
	}
	names := make([]string, n)
	for i := range names {
		names[i] = d.text()
	}
	return names
}

func (d *decoder) stat(s *backend.Stat) {
	b := d.take(statSize)
	if b == nil {
		return
	}
	long := func(i int) int64 { return int64(binary.BigEndian.Uint64(b[i:])) }
	*s = backend.Stat{
		Czxid:          long(0),
		Mzxid:          long(8),
		Ctime:          long(16),
		Mtime:          long(24),
		Version:        int32At(b, 32),
		Cversion:       int32At(b, 36),
		EphemeralOwner: long(44), // after the version of the ACL
		DataLength:     int32At(b, 52),
		NumChildren:    int32At(b, 56),
		Pzxid:          long(60),
	}
	// The latest change of this node: it was as the reply shows it from there on.
	s.AsOf = max(s.Mzxid, s.Pzxid)
}
