package coord

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
)

// ValueOptions may be nil.
type ValueOptions[T any] struct {
	// Codec turns values into the data of the node. The zero Codec is JSON.
	Codec Codec[T]
}

// A Value is one value of type T, such as a configuration, that any number of
// clients read, replace and follow (the configuration of the ZooKeeper recipe
// guide).
//
// Every write is applied exactly once or not at all, also when its reply was
// lost: a blind repetition would undo what somebody else has set since. Only when
// ctx or the session ends before the outcome is known, or somebody has deleted
// the library's own node that would tell, the error matches ErrUncertain. The
// write may have been applied then; read before you write again.
//
// A value is told from every other by its Czxid and Version together: a node
// that was deleted and made again begins with its first version anew. The service
// compares versions only. So CompareAndSet, Update and Delete read the creation
// right before they write, and write under the version. What remains is somebody
// who, between that read and the write, deletes the node, makes it again and
// changes it so often that it has the same version. No commit can exclude that.
// CompareAndSet and Update find it in the reply: the error matches ErrConflict,
// and the Versioned beside it is not zero, since the value was written all the
// same, over one that they have not read. (A lost reply is made up for by a read,
// which comes too late if the node was deleted once more.) Delete cannot tell.
// Where that matters, do not delete a value; set one that means "none".
//
// Reads can be behind other clients, never behind what the session has seen.
//
// Layout: the node at path, persistent, with the bytes of the codec and nothing
// else, so that others can read it and write it by hand. (A node of no bytes that is made
// by hand, and was never written since, is no value for other recipes, which take it for
// a directory that nobody has used yet.) What is missing above it
// is made as containers. Nothing is written to its parent or below it. A path
// under which other recipes stand is no place for a value: it may be a container
// already, which the service removes, with its data, once they are gone.
//
// A Value is safe for concurrent use and holds no resources; there is nothing to
// close. Two of them with one path are one value.
type Value[T any] struct {
	cell
	codec Codec[T]
}

// Versioned is a value as it stood at one time.
type Versioned[T any] struct {
	Value T

	// Czxid is the zxid of the creation of the node: which creation of it this
	// is. 0: there is none. -1, with Version -1: not known. That comes from a Set
	// whose reply was lost and whose value was replaced before it could be read.
	Czxid int64

	// Version is how often the data was changed since the creation, which counts once
	// more for a value of no bytes.
	Version int32

	// Mzxid is the zxid of the latest change. It grows with each change, for
	// one history of the service, also from one creation to the next: the fence
	// for whoever applies values.
	Mzxid int64

	// Err is set in elements of Watch only. ErrNotFound: there is no value, it
	// was deleted or not made yet. ErrDecode: the codec refuses the data. Or it
	// is why the watch has ended; that is the last element.
	Err error
}

// NewValue returns the value at path. It does no I/O; a bad path is reported by
// the first call.
func NewValue[T any](c *Client, path string, o *ValueOptions[T]) *Value[T] {
	v := &Value[T]{cell: cell{c, c.recipePath(path), kindValue}}
	if o != nil {
		v.codec = o.Codec
	}
	v.codec = v.codec.orJSON()
	return v
}

// Get reads the value. Errors: ErrNotFound; ErrDecode, with all but the Value
// filled in, so that CompareAndSet can repair what stands there.
func (v *Value[T]) Get(ctx context.Context) (Versioned[T], error) {
	if err := v.path.check("get"); err != nil {
		return Versioned[T]{}, err
	}
	st, err := onSession(ctx, v.c, func(s *session) (content, error) { return v.read(ctx, s) })
	if err == nil && st.created == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Versioned[T]{}, opError("get", v.path.full, err)
	}
	val, err := v.codec.decode(st.data)
	return versioned(val, st), opError("get", v.path.full, err)
}

// Set makes val the value, whatever stands there.
//
// Errors: ErrInvalid when the codec refuses val, and ErrTooLarge, both before
// anything is sent; ErrNoChildren below an ephemeral node; ErrUncertain.
func (v *Value[T]) Set(ctx context.Context, val T) (Versioned[T], error) {
	if err := v.path.check("set"); err != nil {
		return Versioned[T]{}, err
	}
	data, err := v.encode(val)
	if err != nil {
		return Versioned[T]{}, opError("set", v.path.full, err)
	}
	st, err := onSessionOnce(ctx, v.c, func(s *session) (content, error) { return v.set(ctx, s, data) })
	if err != nil {
		return Versioned[T]{}, opError("set", v.path.full, err)
	}
	return versioned(val, st), nil
}

// CompareAndSet replaces old with val, and returns ErrConflict if old does not
// stand any more: if its Czxid and Version are not those of the value. If there
// is none any more the error matches ErrNotFound too. If old.Czxid is 0 it
// creates the value, which must not exist. The other fields of old do not matter.
//
// The other errors are those of Set; and ErrLimit for a version that others have
// driven beyond the largest int32, until the node is deleted by hand. See
// Value for the one case in which the value was written beside ErrConflict.
func (v *Value[T]) CompareAndSet(ctx context.Context, old Versioned[T], val T) (Versioned[T], error) {
	const op = "compareandset"
	if err := v.path.check(op); err != nil {
		return Versioned[T]{}, err
	}
	data, err := v.encode(val)
	if err != nil {
		return Versioned[T]{}, opError(op, v.path.full, err)
	}
	want := content{created: old.Czxid, version: old.Version}
	st, err := onSessionOnce(ctx, v.c, func(s *session) (content, error) {
		if want.created != 0 { // a creation is refused by the service itself
			if err := v.expect(ctx, s, want); err != nil {
				return content{}, err
			}
		}
		return v.replace(ctx, s, want, data)
	})
	return v.written(op, val, st, err)
}

// Update reads the value, calls fn, and replaces what was read with what fn
// returns; if somebody else was faster, again, after a short pause that grows.
// With no value there, fn gets the zero T and the value is created. Update is
// for changes that depend on what stands there: of all the updates that succeed,
// each has seen the one before it.
//
// fn may be called several times, runs with nothing locked, and should be quick.
// An error of fn ends Update, is found by errors.Is, and nothing is written. It
// counts only for the value that stands: if what fn saw was behind, it is called
// again. Errors beside fn's: ErrDecode; and those of CompareAndSet, with
// ErrConflict only in the case where the value was written, see Value.
func (v *Value[T]) Update(ctx context.Context, fn func(old T) (T, error)) (Versioned[T], error) {
	if err := v.path.check("update"); err != nil {
		return Versioned[T]{}, err
	}
	var val T
	st, err := v.update(ctx, func(old content) (data []byte, err error) {
		var was T
		if old.created != 0 {
			was, err = v.codec.decode(old.data)
		}
		if err == nil {
			val, err = fn(was)
		}
		if err != nil {
			return nil, err
		}
		return v.encode(val)
	})
	return v.written("update", val, st, err)
}

// Delete removes the value if old still stands, and returns ErrConflict if not,
// as CompareAndSet does. If old.Czxid is 0 it removes nothing: it returns nil if
// there is no value, and ErrConflict if there is one. So the result of a Get that
// found nothing can be passed, and one that failed deletes nothing.
//
// Other errors: ErrNotEmpty if others have made nodes below it; ErrLimit as for
// CompareAndSet; ErrUncertain.
func (v *Value[T]) Delete(ctx context.Context, old Versioned[T]) error {
	if err := v.path.check("delete"); err != nil {
		return err
	}
	want := content{created: old.Czxid, version: old.Version}
	_, err := onSessionOnce(ctx, v.c, func(s *session) (struct{}, error) { return struct{}{}, v.remove(ctx, s, want) })
	return opError("delete", v.path.full, err)
}

// encode returns the data for val, if it can be written at all.
func (v *Value[T]) encode(val T) ([]byte, error) {
	data, err := v.codec.encode(val)
	if err != nil {
		return nil, err
	}
	return data, v.fits(data)
}

// written is what a write reports. Beside an error st is zero, unless the value
// was written all the same.
func (v *Value[T]) written(op string, val T, st content, err error) (Versioned[T], error) {
	if st.created == 0 {
		return Versioned[T]{}, opError(op, v.path.full, err)
	}
	return versioned(val, st), opError(op, v.path.full, err)
}

func versioned[T any](val T, st content) Versioned[T] {
	return Versioned[T]{Value: val, Czxid: st.created, Version: st.version, Mzxid: st.changed}
}

// SetOp is a Set as a part of a Txn: val is the value if the transaction was
// applied.
func (v *Value[T]) SetOp(val T) TxnOp {
	op := TxnOp{op: "set", path: v.path.full, err: v.path.check("set")}
	data, err := v.encode(val)
	if op.err == nil {
		op.err = opError("set", v.path.full, err)
	}
	create, _ := v.creation(data)
	op.expand = func(ctx context.Context, s *session, before []backend.Op) ([]backend.Op, error) {
		// What the transaction itself has left there by then counts.
		for _, o := range slices.Backward(before) {
			if o.Path == v.path.full && o.Kind == backend.OpDelete {
				return create, nil
			} else if o.Path == v.path.full {
				return []backend.Op{backend.SetData(v.path.full, data, backend.AnyVersion)}, nil
			}
		}
		switch st, err := v.read(ctx, s); {
		case err != nil:
			return nil, err
		case st.created != 0:
			return []backend.Op{backend.SetData(v.path.full, data, backend.AnyVersion)}, nil
		}
		if dir := v.path.full[:strings.LastIndexByte(v.path.full, '/')]; dir != "" {
			if err := s.ensure(ctx, dir); err != nil {
				return nil, err
			}
		}
		return create, nil
	}
	op.again = func(err error) bool { return isNotFound(err) || errors.Is(err, backend.ErrExists) }
	return op
}
