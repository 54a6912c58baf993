package zklog

import (
	"fmt"
	"time"

	"github.com/go-coord/coord/internal/jute"
)

// parseTxn reads one entry: the header, the record, and from ZooKeeper 3.6 on a digest of the
// tree, which is ignored.
func parseTxn(b []byte) (Txn, error) {
	d := &jute.Decoder{Rest: b}
	x := Txn{Session: d.Int64()}
	d.Int32() // the client's number of the request
	x.Zxid = d.Int64()
	x.Time = time.UnixMilli(d.Int64())
	x.Type = d.Int32()
	switch x.Type {
	case Multi:
		n := d.Int32()
		for range n {
			t := d.Int32()
			part := &jute.Decoder{Rest: d.Bytes()}
			if d.Failed {
				break
			}
			if t == Error {
				// In a refused multi, this code replaces the part that failed and all parts
				// after it.
				if code := part.Int32(); x.Err == 0 || x.Err == inconsistency {
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
		x.Err = d.Int32()
	case CloseSession:
		// Older servers do not write the nodes that the session's end deletes; then the
		// record ends here.
		if len(d.Rest) > 0 {
			n := d.Int32()
			for range n {
				if d.Failed {
					break
				}
				x.Ops = append(x.Ops, Op{Type: Delete, Path: d.Text()})
			}
		}
	case Create, Create2, CreateContainer, CreateTTL, Delete, DeleteContainer, SetData, SetACL, Check:
		op, err := parseOp(d, x.Type)
		if err != nil {
			return x, fmt.Errorf("zxid %#x: %w", x.Zxid, err)
		}
		x.Ops = []Op{op}
	}
	if d.Failed {
		return x, fmt.Errorf("zxid %#x, type %d: the record is too short", x.Zxid, x.Type)
	}
	return x, nil
}

// inconsistency is the code of the parts of a refused multi that were not the reason.
const inconsistency = -2

func parseOp(d *jute.Decoder, kind int32) (Op, error) {
	op := Op{Type: kind, Path: d.Text()}
	switch kind {
	case Create, Create2, CreateContainer, CreateTTL:
		op.Data = d.Bytes()
		d.SkipACL()
		if kind == Create || kind == Create2 {
			op.Ephemeral = d.Bool()
		}
		d.Int32() // the number of changes of the parent's children
		if kind == CreateTTL {
			d.Int64()
		}
	case SetData:
		op.Data = d.Bytes()
		op.Version = d.Int32()
	case SetACL:
		d.SkipACL()
		d.Int32()
	case Check:
		d.Int32() // the version is of no use here
	case Delete, DeleteContainer:
	default:
		return op, fmt.Errorf("operation %d is unknown", kind)
	}
	if d.Failed {
		return op, fmt.Errorf("operation %d at %q: the record is too short", kind, op.Path)
	}
	return op, nil
}
