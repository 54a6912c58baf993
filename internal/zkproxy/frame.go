package zkproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-coord/coord/internal/jute"
)

// The opcodes of requests (ZooDefs.OpCode). OpConnect marks the first frame of each
// direction, which has no header; no request on the wire has this opcode.
const (
	OpEvent           int32 = 0 // a watch event from the server
	OpCreate          int32 = 1
	OpDelete          int32 = 2
	OpExists          int32 = 3
	OpGetData         int32 = 4
	OpSetData         int32 = 5
	OpGetACL          int32 = 6
	OpSetACL          int32 = 7
	OpGetChildren     int32 = 8
	OpSync            int32 = 9
	OpPing            int32 = 11
	OpGetChildren2    int32 = 12
	OpCheck           int32 = 13
	OpMulti           int32 = 14
	OpCreate2         int32 = 15
	OpReconfig        int32 = 16
	OpCheckWatches    int32 = 17
	OpRemoveWatches   int32 = 18
	OpCreateContainer int32 = 19
	OpCreateTTL       int32 = 21
	OpMultiRead       int32 = 22
	OpAuth            int32 = 100
	OpSetWatches      int32 = 101
	OpSetWatches2     int32 = 105
	OpAddWatch        int32 = 106
	OpConnect         int32 = -10
	OpClose           int32 = -11
)

var opNames = map[int32]string{
	OpEvent: "event", OpCreate: "create", OpDelete: "delete", OpExists: "exists", OpGetData: "getData",
	OpSetData: "setData", OpGetACL: "getACL", OpSetACL: "setACL", OpGetChildren: "getChildren", OpSync: "sync",
	OpPing: "ping", OpGetChildren2: "getChildren2", OpCheck: "check", OpMulti: "multi", OpCreate2: "create2",
	OpReconfig: "reconfig", OpCheckWatches: "checkWatches", OpRemoveWatches: "removeWatches",
	OpCreateContainer: "createContainer", OpCreateTTL: "createTTL", OpMultiRead: "multiRead", OpAuth: "auth",
	OpSetWatches: "setWatches", OpSetWatches2: "setWatches2", OpAddWatch: "addWatch", OpConnect: "connect", OpClose: "close",
}

// OpName returns the name of an opcode, or its number.
func OpName(opcode int32) string {
	if name, ok := opNames[opcode]; ok {
		return name
	}
	return strconv.Itoa(int(opcode))
}

// The xids that are not numbers of requests.
const (
	XidEvent      int32 = -1
	XidPing       int32 = -2
	XidAuth       int32 = -4
	XidSetWatches int32 = -8

	// XidLook is that of the reads with which the backend of package zookeeper finds out, in the handshake,
	// whether the servers have gone back. They count as OpAuth, so that no test counts them as requests.
	XidLook int32 = 1<<30 - 1
)

// Dir is the direction of a frame.
type Dir int8

// Up is from the client to the server, Down the other way.
const (
	Up Dir = iota
	Down
)

// String returns "up" or "down".
func (d Dir) String() string {
	if d == Up {
		return "up"
	}
	return "down"
}

// A Frame describes one frame that passes the proxy. Fields of a body that the proxy cannot
// decode are zero.
type Frame struct {
	Conn   int   // the number of the connection, from 1
	Dir    Dir   // Up: a request; Down: a reply or an event
	Opcode int32 // of a reply: that of its request; of an event: OpEvent
	Xid    int32
	Path   string  // of a request; of a reply: that of its request; of a multi or setWatches: the first; of an event: the node
	Ops    []SubOp // of a multi or multiRead, and of its reply
	Size   int     // on the wire, with the four bytes of the length

	Zxid    int64  // of a reply or event
	Err     int32  // of a reply: ZooKeeper's error code, 0 for none
	Event   int32  // of an event: its type, 1 created, 2 deleted, 3 data changed, 4 children changed
	Session int64  // of the two connect frames; 0 in a request for a new session and in the refusal of an old one
	Passwd  string // of the session, in the two connect frames
}

// isEvent reports whether the frame is a watch event, not a reply or request.
func (f Frame) isEvent() bool { return f.Dir == Down && f.Xid == XidEvent }

// SubOp is one operation of a multi.
type SubOp struct {
	Opcode int32
	Path   string
}

// String formats the frame for logs.
func (f Frame) String() string {
	return fmt.Sprintf("%d %v %s xid=%d path=%q err=%d", f.Conn, f.Dir, OpName(f.Opcode), f.Xid, f.Path, f.Err)
}

// maxFrame is the largest valid length. ZooKeeper's own limit is 1 MiB by default for
// requests; replies may be larger.
const maxFrame = 64 << 20

var errMalformed = errors.New("malformed frame")

// readFrame reads one frame, length included, and fails on a length below zero or above
// maxFrame. It allocates memory as bytes arrive, not by the announced length.
func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int32(binary.BigEndian.Uint32(head[:]))
	if n < 0 || n > maxFrame {
		return nil, fmt.Errorf("%w: length %d", errMalformed, n)
	}
	var b bytes.Buffer
	b.Grow(min(int(n), 64<<10) + len(head))
	b.Write(head[:])
	if _, err := io.CopyN(&b, r, int64(n)); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return b.Bytes(), nil
}

// parseConnect parses the body of the first frame of a direction.
func parseConnect(body []byte, dir Dir) (Frame, error) {
	f := Frame{Dir: dir, Opcode: OpConnect, Size: len(body) + 4}
	d := jute.Decoder{Rest: body}
	d.Int32() // protocol version
	if dir == Up {
		d.Int64() // the last zxid that the client has seen
	}
	timeout := d.Int32()
	f.Session = d.Int64()
	if d.Failed {
		return f, fmt.Errorf("%w: connect of %d bytes", errMalformed, len(body))
	}
	f.Passwd = d.Text()
	if dir == Down && (timeout <= 0 || f.Session == 0) {
		f.Err = -112 // SESSIONEXPIRED; this reply has no error code of its own
	}
	return f, nil
}

// parseRequest parses the body of a request.
func parseRequest(body []byte) (Frame, error) {
	d := jute.Decoder{Rest: body}
	f := Frame{Dir: Up, Xid: d.Int32(), Opcode: d.Int32(), Size: len(body) + 4}
	if d.Failed {
		return f, fmt.Errorf("%w: request of %d bytes", errMalformed, len(body))
	}
	switch f.Opcode {
	case OpCreate, OpDelete, OpExists, OpGetData, OpSetData, OpGetACL, OpSetACL, OpGetChildren, OpSync,
		OpGetChildren2, OpCheck, OpCreate2, OpCheckWatches, OpRemoveWatches, OpCreateContainer, OpCreateTTL, OpAddWatch:
		f.Path = d.Text()
	case OpMulti, OpMultiRead:
		f.Ops = subOps(&d)
		if len(f.Ops) > 0 {
			f.Path = f.Ops[0].Path
		}
	case OpSetWatches:
		f.Path = firstWatched(&d)
	}
	if f.Xid == XidLook && f.Opcode == OpExists {
		f.Opcode = OpAuth
	}
	return f, nil
}

// parseReply parses the body of a reply or an event. Opcode and path of a reply are those of
// its request, which parseReply does not know.
func parseReply(body []byte) (Frame, error) {
	d := jute.Decoder{Rest: body}
	f := Frame{Dir: Down, Xid: d.Int32(), Zxid: d.Int64(), Err: d.Int32(), Size: len(body) + 4}
	if d.Failed {
		return f, fmt.Errorf("%w: reply of %d bytes", errMalformed, len(body))
	}
	if f.Xid == XidEvent {
		f.Opcode, f.Event = OpEvent, d.Int32()
		d.Int32() // the state of the session
		f.Path = d.Text()
	}
	return f, nil
}

// firstWatched reads a setWatches up to its first path, which is in one of three vectors.
func firstWatched(d *jute.Decoder) string {
	d.Int64() // the last zxid that the client has seen
	for range 3 {
		if d.Int32() > 0 {
			return d.Text()
		}
	}
	return ""
}

// subOps reads the operations of a multi as far as it can decode them.
func subOps(d *jute.Decoder) []SubOp {
	var ops []SubOp
	for {
		opcode, done := d.Int32(), d.Bool()
		d.Int32() // error, unused in requests
		if done || d.Failed {
			return ops
		}
		op := SubOp{Opcode: opcode, Path: d.Text()}
		switch opcode {
		case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
			d.Bytes() // data
			d.SkipACL()
			d.Int32() // flags
			if opcode == OpCreateTTL {
				d.Int64()
			}
		case OpSetData:
			d.Bytes()
			d.Int32() // version
		case OpDelete, OpCheck:
			d.Int32()
		case OpGetData, OpGetChildren:
			d.Bool() // watch
		default:
			return ops
		}
		if d.Failed {
			return ops
		}
		ops = append(ops, op)
	}
}
