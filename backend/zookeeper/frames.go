package zookeeper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strconv"

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
	opCreate    = 1
	opDelete    = 2
	opExists    = 3
	opGetData   = 4
	opSetData   = 5
	opSync      = 9
	opChildren  = 12
	opCheck     = 13
	opMulti     = 14
	opContainer = 19
	opAuth      = 100
	opWatches   = 101 // setWatches
	opClose     = -11
	opError     = -1
	opIdle      = -2 // internal: the exists request that replaces a withdrawn commit

	xidEvent = -1
	xidPing  = -2
	xidAuth  = -4

	codeOK             = 0
	codeUnknownSession = -12 // the session ended between the arrival of the request and its turn
	codeNoNode         = -101
	codeSessionExpired = -112
	codeAuthFailed     = -115
	codeClosing        = -116
	codeSessionMoved   = -118
	codeThrottled      = -127

	eventCreated         = 1
	eventDeleted         = 2
	eventDataChanged     = 3
	eventChildrenChanged = 4

	flagContainer = 4

	statSize    = 68
	replySize   = 16 // of the header
	maxFrame    = 64 << 20
	timeoutFrom = 4  // offset in the body of a connect response
	askedFrom   = 12 // offset in the body of a connect request
)

var errMalformed = errors.New("malformed frame")

// Some requests need something that the zk client cannot do. They are marked in their path:
// the path is followed by a zero-width space, which backend.CheckPath allows in no path, and
// by the mark. The mark is removed before the request is sent.
const (
	mark          = "\u200b"
	markCommit    = 'T' // the number of a ticket follows
	markContainer = 'C' // the same, for a create that makes a container
	// any other text is the number of an expectation; numbers are in base 36
)

func markedForWatch(path string, id uint64) string {
	return path + mark + strconv.FormatUint(id, 36)
}

func markedForCommit(path string, kind rune, ticket uint64) string {
	return path + mark + string(kind) + strconv.FormatUint(ticket, 36)
}

// commitMark returns the ticket that a mark names. ok is false for the mark of a watch.
func commitMark(said string) (ticket uint64, container, ok bool) {
	if said == "" || said[0] != markCommit && said[0] != markContainer {
		return 0, false, false
	}
	ticket, err := strconv.ParseUint(said[1:], 36, 64)
	return ticket, said[0] == markContainer, err == nil
}

// unmark returns a request without its mark, appended to dst, and the mark's text. The
// request is a whole frame. If it has no mark, ok is false and unmark returns dst unchanged.
func unmark(dst, frame []byte) (out []byte, said string, ok bool) {
	if len(frame) < 12 {
		return dst, "", false
	}
	lengthFrom := 12 // of the path
	switch int32At(frame, 8) {
	case opExists, opGetData, opChildren, opCreate, opSetData, opDelete, opSync:
	case opMulti:
		lengthFrom += 9 // after the header of the first operation
	default:
		return dst, "", false
	}
	pathFrom := lengthFrom + 4
	if len(frame) < pathFrom {
		return dst, "", false
	}
	n := int(int32At(frame, lengthFrom))
	if n < 0 || n > len(frame)-pathFrom {
		return dst, "", false
	}
	path, rest, ok := bytes.Cut(frame[pathFrom:pathFrom+n], []byte(mark))
	if !ok {
		return dst, "", false
	}
	from := len(dst)
	dst = append(dst, frame[:lengthFrom]...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(path)))
	dst = append(dst, path...)
	dst = append(dst, frame[pathFrom+n:]...)
	binary.BigEndian.PutUint32(dst[from:], uint32(len(dst)-from-4))
	return dst, string(rest), true
}

// setWatchFlag sets the flag of a read, which is its last byte.
func setWatchFlag(frame []byte) { frame[len(frame)-1] = 1 }

// makeContainer turns a create request into one for a container.
func makeContainer(frame []byte) {
	binary.BigEndian.PutUint32(frame[8:], opContainer)
	binary.BigEndian.PutUint32(frame[len(frame)-4:], flagContainer)
}

// idle returns a request that changes nothing, to replace the one in frame, appended to dst.
// The zk client still waits for an answer.
func idle(dst, frame []byte) []byte {
	from := len(dst)
	dst = append(dst, frame[:8]...)
	dst = binary.BigEndian.AppendUint32(dst, opExists)
	dst = append(dst, 0, 0, 0, 1, '/', 0)
	binary.BigEndian.PutUint32(dst[from:], uint32(len(dst)-from-4))
	return dst
}

// asRefusal turns the reply to an idle request, a whole frame, into an error. Only the zk
// client still waits for it, and it would decode the reply as one to another operation.
func asRefusal(frame []byte) []byte {
	frame = frame[:4+replySize]
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	code := int32(codeThrottled)
	binary.BigEndian.PutUint32(frame[4+12:], uint32(code))
	return frame
}

// setWatches returns the request that arms the watches of Arm, to replace the request in
// frame, appended to dst: since in 8 bytes, and the paths to watch for data, for creation and
// for children. It has no result.
func setWatches(dst, frame []byte, since int64, all []*interest) []byte {
	from := len(dst)
	dst = append(dst, frame[:8]...)
	dst = binary.BigEndian.AppendUint32(dst, opWatches)
	dst = binary.BigEndian.AppendUint64(dst, uint64(since))
	dst = appendPaths(dst, all, dataWatch)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = appendPaths(dst, all, childWatch)
	binary.BigEndian.PutUint32(dst[from:], uint32(len(dst)-from-4))
	return dst
}

func appendPaths(dst []byte, all []*interest, kind watchKind) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	n := uint32(0)
	for _, i := range all {
		if i.key.kind == kind {
			dst = binary.BigEndian.AppendUint32(dst, uint32(len(i.key.path)))
			dst = append(dst, i.key.path...)
			n++
		}
	}
	binary.BigEndian.PutUint32(dst[at:], n)
	return dst
}

// asSync turns the reply to a setWatches, a whole frame, into a reply to the sync that the zk
// client believes it sent: with an empty path, which is not read after an error.
func asSync(frame []byte) []byte {
	frame = append(frame[:4+replySize], 0, 0, 0, 0)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

// authRequest returns the request that presents credentials.
func authRequest(digest string) []byte {
	const scheme = "digest"
	frame := make([]byte, 4, 4+4+4+4+4+len(scheme)+4+len(digest))
	for _, n := range []int32{xidAuth, opAuth, 0} {
		frame = binary.BigEndian.AppendUint32(frame, uint32(n))
	}
	for _, text := range []string{scheme, digest} {
		frame = binary.BigEndian.AppendUint32(frame, uint32(len(text)))
		frame = append(frame, text...)
	}
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

type connectResponse struct {
	timeout int32 // in milliseconds
	session int64
}

func parseConnectResponse(body []byte) (connectResponse, error) {
	d := decoder{rest: body}
	d.int32()
	r := connectResponse{timeout: d.int32(), session: d.int64()}
	d.buffer()
	if d.failed || r.timeout < 0 {
		return connectResponse{}, errMalformed
	}
	return r, nil
}

type replyHeader struct {
	xid  int32
	zxid int64
	code int32
}

func parseReplyHeader(body []byte) (replyHeader, error) {
	d := decoder{rest: body}
	r := replyHeader{xid: d.int32(), zxid: d.int64(), code: d.int32()}
	if d.failed {
		return replyHeader{}, errMalformed
	}
	return r, nil
}

type event struct {
	kind int32
	path string
}

func parseEvent(body []byte) (event, error) {
	d := decoder{rest: body}
	d.skip(replySize)
	e := event{kind: d.int32()}
	d.int32() // the state of the session
	e.path = string(d.buffer())
	if d.failed {
		return event{}, errMalformed
	}
	return e, nil
}

// checkReply reports whether the zk client can decode the body of the successful reply to a
// request. A malformed body would make it panic, or allocate any amount of memory.
func checkReply(op int32, body []byte) error {
	d := decoder{rest: body}
	d.skip(replySize)
	switch op {
	case opCreate, opContainer, opSync:
		d.skipString()
	case opExists, opSetData:
		d.skip(statSize)
	case opGetData:
		d.buffer()
		d.skip(statSize)
	case opChildren:
		n := d.int32()
		d.failed = d.failed || n < 0
		for ; n > 0 && !d.failed; n-- {
			d.skipString()
		}
		d.skip(statSize)
	case opMulti:
		d.multi()
	}
	if d.failed {
		return errMalformed
	}
	return nil
}

func (d *decoder) multi() {
	for !d.failed {
		kind, done := d.int32(), d.byte() != 0
		d.int32()
		if done {
			return
		}
		switch kind {
		case opCreate:
			d.skipString()
		case opSetData:
			d.skip(statSize)
		case opError:
			d.int32()
		case opDelete, opCheck:
		default:
			d.failed = true
		}
	}
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

func (d *decoder) skip(n int) { d.take(n) }

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
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

// skipString skips a field in which, unlike in a buffer, the zk client knows no -1.
func (d *decoder) skipString() { d.take(int(d.int32())) }
