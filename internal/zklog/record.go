package zklog

import (
	"encoding/binary"
	"fmt"
	"time"
)

// parseTxn reads one entry: the header, the record, and from ZooKeeper 3.6 on a digest of the
// tree, which is ignored.
func parseTxn(b []byte) (Txn, error) {
	d := &decoder{b: b}
	x := Txn{Session: d.int64()}
	d.int32() // the client's number of the request
	x.Zxid = d.int64()
	x.Time = time.UnixMilli(d.int64())
	x.Type = d.int32()
	switch x.Type {
	case Multi:
		n := d.int32()
		for range n {
			t := d.int32()
			part := &decoder{b: d.bytes()}
			if d.failed {
				break
			}
			if t == Error {
				// In a refused multi, this code replaces the part that failed and all parts
				// after it.
				if code := part.int32(); x.Err == 0 || x.Err == inconsistency {
					x.Err = code
				}
				continue
			}
			op, err := parseOp(part, t)
			if err != nil {
				return x, fmt.Errorf("zxid %#x: %w", x.Zxid, err)
			}
			x.Ops = append(x.Ops, op)
		}
		if x.Err != 0 {
			x.Ops = nil
		}
	case Error:
		x.Err = d.int32()
	case CloseSession:
		// Older servers do not write the nodes that the session's end deletes; then the
		// record ends here.
		if len(d.b) > 0 {
			n := d.int32()
			for range n {
				if d.failed {
					break
				}
				x.Ops = append(x.Ops, Op{Type: Delete, Path: d.string()})
			}
		}
	case Create, Create2, CreateContainer, CreateTTL, Delete, DeleteContainer, SetData, SetACL, Check:
		op, err := parseOp(d, x.Type)
		if err != nil {
			return x, fmt.Errorf("zxid %#x: %w", x.Zxid, err)
		}
		x.Ops = []Op{op}
	}
	if d.failed {
		return x, fmt.Errorf("zxid %#x, type %d: the record is too short", x.Zxid, x.Type)
	}
	return x, nil
}

// inconsistency is the code of the parts of a refused multi that were not the reason.
const inconsistency = -2

func parseOp(d *decoder, kind int32) (Op, error) {
	op := Op{Type: kind, Path: d.string()}
	switch kind {
	case Create, Create2, CreateContainer, CreateTTL:
		op.Data = d.bytes()
		d.acl()
		if kind == Create || kind == Create2 {
			op.Ephemeral = d.bool()
		}
		d.int32() // the number of changes of the parent's children
		if kind == CreateTTL {
			d.int64()
		}
	case SetData:
		op.Data = d.bytes()
		op.Version = d.int32()
	case SetACL:
		d.acl()
		d.int32()
	case Check:
		d.int32() // the version is of no use here
	case Delete, DeleteContainer:
	default:
		return op, fmt.Errorf("operation %d is unknown", kind)
	}
	if d.failed {
		return op, fmt.Errorf("operation %d at %q: the record is too short", kind, op.Path)
	}
	return op, nil
}

// A decoder reads ZooKeeper's encoding (jute). After the first missing value it returns zero
// values.
type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) take(n int) []byte {
	if d.failed || n < 0 || n > len(d.b) {
		d.failed = true
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
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

func (d *decoder) bool() bool {
	b := d.take(1)
	return b != nil && b[0] != 0
}

// bytes reads a buffer or string; length -1 means null.
func (d *decoder) bytes() []byte {
	n := d.int32()
	if n == -1 {
		return nil
	}
	return d.take(int(n))
}

func (d *decoder) string() string { return string(d.bytes()) }

func (d *decoder) acl() {
	n := d.int32()
	for range n {
		if d.failed {
			return
		}
		d.int32() // permissions
		d.bytes() // scheme
		d.bytes() // id
	}
}
