package backend

import "fmt"

// Limits are the most that a service takes in one Commit, and the end of its sequence
// numbers.
type Limits struct {
	// Ops is the number of operations, or zero if the service does not limit it.
	Ops int
	// Checks is the number of operations that change nothing, Check and Absent, or zero likewise. Ops counts
	// them too.
	Checks int
	// Bytes is the sum of the paths and data, with 128 more for each operation. It is at
	// least 1 and at most MaxRequest.
	Bytes int
	// Sequence is the highest sequence number that is not used twice, at least 2^31-1, which
	// is ZooKeeper's.
	Sequence int64
}

// Refuse is for backends: it is CheckOps, and also refuses operations that exceed the limits
// with ErrTooLarge. The error names the first operation that does not fit. A zero limits
// nothing.
func (l Limits) Refuse(ops []Op) error {
	if err := CheckOps(ops); err != nil {
		return err
	}
	checks, size := 0, 0
	for i := range ops {
		op := &ops[i]
		if op.Kind == OpCheck || op.Kind == OpAbsent {
			checks++
		}
		size += opOverhead + len(op.Path) + len(op.Data)
		var err error
		switch {
		case l.Ops > 0 && i >= l.Ops:
			err = fmt.Errorf("%w: the commit has %d operations, limit %d", ErrTooLarge, len(ops), l.Ops)
		case l.Checks > 0 && checks > l.Checks:
			err = fmt.Errorf("%w: the commit has at least %d conditions, limit %d", ErrTooLarge, checks, l.Checks)
		case l.Bytes > 0 && size > l.Bytes:
			err = fmt.Errorf("%w: the request has at least %d bytes, limit %d", ErrTooLarge, size, l.Bytes)
		}
		if err != nil {
			return &Error{Op: op.Kind.String(), Path: op.Path, Index: i, Err: err}
		}
	}
	return nil
}
