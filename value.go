package coord

import (
	"context"
	"iter"
	"time"

	"github.com/go-coord/coord/internal/cell"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// ValueOptions may be nil.
type ValueOptions[T any] struct {
	// Codec turns values into the data of the node and back. The zero Codec is
	// JSON.
	Codec Codec[T]
}

// A Value is one value of type T, such as a configuration, that any number of clients read,
// replace and follow (the configuration of the ZooKeeper recipe guide). Two Values with the
// same path are the same value. A Value is safe for concurrent use and needs no closing.
//
// Every write is applied exactly once or not at all, even if its reply was lost. The error
// matches ErrUncertain only if ctx or the session ends before the outcome is known, or if
// an outsider has deleted the library's node that records the outcome: read before you
// write again. Reads can lag behind other clients, but never behind a state that the
// session has seen.
//
// Czxid and Version together identify a value, since a node that was deleted and made again
// begins with its first version. The service compares only versions, so CompareAndSet,
// Update and Delete read the Czxid right before they write. One case remains: between that
// read and the write another client deletes the node, creates it again and changes it until
// it has the same version. Then the write replaces a value that the caller has not read.
// CompareAndSet and Update detect this from the reply: the error matches ErrConflict, and the
// Versioned beside it is what they have written. After every other ErrConflict nothing was
// written, and the Versioned is zero. (If the reply is lost they detect the case by a read,
// too late if the node was deleted once more.) Delete cannot detect it. If that matters, set
// a value that means "none" in place of a deletion.
//
// Recipes of every kind can be used below the path of a value. A directory that the library
// has made above them is no value: it reads as ErrNotFound. Delete makes the node a
// directory again if there are nodes below it. The node holds the bytes of the codec and
// nothing else, so other programs can read and write it; layout.md says what they must know
// of a value in a directory.
type Value[T any] struct {
	n        *cell.Node
	codec    Codec[T]
	follower *cell.Follower[T] // of the Watches, for Load
}

// Versioned is a value as it was at one time.
type Versioned[T any] struct {
	Value T

	// Czxid is the zxid of the creation of the node, and identifies that creation.
	// 0 means that there is no value. -1, with Version -1, means that it is not
	// known: a Set returns that if its reply was lost and its value was replaced
	// before it could be read.
	Czxid int64

	// Version is the number of changes of the data since the creation. A value
	// without bytes counts one more, for its creation.
	Version int32

	// Mzxid is the zxid of the latest change. It grows with each change, in one
	// history of the service, also across deletions and creations. A consumer that
	// applies values can use it as a fencing token.
	Mzxid int64

	// Err is set only by Watch, Load and a CacheView. ErrNotFound: there is no value; it was
	// deleted or not made yet. ErrDecode: the codec cannot decode the data. Any
	// other error is the reason why the watch has ended, in its last element. See
	// Load for the other fields of what it returns with an error.
	Err error
}

// NewValue returns the value at path. It does no I/O; a bad path is reported by the
// first call.
func NewValue[T any](c *Client, path string, o *ValueOptions[T]) *Value[T] {
	var codec Codec[T]
	if o != nil {
		codec = o.Codec
	}
	codec = codec.orJSON()
	n := cell.New(c.core(), path, layout.KindValue)
	decode := func(data []byte) (T, error) { return codec.decodeApart(c.core(), n.FullPath(), data) }
	return &Value[T]{n, codec, cell.NewFollower(n, decode)}
}

// Get reads the value. Errors: ErrNotFound; ErrDecode, with all fields but the
// Value set, so that CompareAndSet can repair the data.
func (v *Value[T]) Get(ctx context.Context) (Versioned[T], error) {
	x, err := v.n.Get(ctx)
	if err != nil {
		return Versioned[T]{}, err
	}
	val, err := v.codec.decode(x.Data)
	return versioned(val, x), errs.Op("get", v.n.FullPath(), err)
}

// Set sets the value to val, whatever the value was before.
//
// Errors: ErrInvalid if the codec refuses val, and ErrTooLarge, both before a
// request is sent; ErrNoChildren below an ephemeral node; ErrUncertain.
func (v *Value[T]) Set(ctx context.Context, val T) (Versioned[T], error) {
	data, err := v.encode("set", val)
	if err != nil {
		return Versioned[T]{}, err
	}
	x, err := v.n.Set(ctx, data)
	return written(val, x, err)
}

// CompareAndSet replaces old with val. It returns ErrConflict if old is not the
// current value, that is, if its Czxid or Version differs. If there is no value any
// more, the error matches ErrNotFound too. If old.Czxid is 0, it creates the value,
// which must not exist. The other fields of old are ignored.
//
// The other errors are those of Set, and ErrLimit if other programs have driven the
// version beyond the largest int32; that lasts until the node is deleted by hand.
// If the Versioned beside an ErrConflict is not zero, val was written: see Value.
func (v *Value[T]) CompareAndSet(ctx context.Context, old Versioned[T], val T) (Versioned[T], error) {
	data, err := v.encode("compareandset", val)
	if err != nil {
		return Versioned[T]{}, err
	}
	x, err := v.n.CompareAndSet(ctx, cell.Content{Czxid: old.Czxid, Version: old.Version}, data)
	return written(val, x, err)
}

// Update reads the value, calls fn, and replaces the value with the result of fn. If
// another client changed the value first, Update repeats this after a short pause that
// grows. If there is no value, fn gets the zero T. Each successful update has seen the
// result of the update before it.
//
// Update writes what the codec makes of T. So an older version of a program erases the
// fields that its T does not have. If versions run together, keep unknown fields in T (a
// json.RawMessage), give each new field a path of its own, or refuse unknown fields with
// StrictJSON.
//
// fn may be called several times, runs without locks held, and should be quick. If fn
// returns an error for the current value, Update ends with an error that wraps it, and
// writes nothing; if fn saw a stale value, it is called again. Other errors: ErrDecode, and
// those of CompareAndSet. Since Update repeats after a conflict, an ErrConflict of Update means
// that the value was written: see Value.
func (v *Value[T]) Update(ctx context.Context, fn func(old T) (T, error)) (Versioned[T], error) {
	if err := v.n.Check("update"); err != nil {
		return Versioned[T]{}, err
	}
	if fn == nil {
		return Versioned[T]{}, errs.Op("update", v.n.FullPath(), errs.ErrNoFunction)
	}
	var val T
	x, err := v.n.Update(ctx, func(old cell.Content) (data []byte, err error) {
		var was T
		if old.Czxid != 0 {
			was, err = v.codec.decode(old.Data)
		}
		if err == nil {
			val, err = fn(was)
		}
		if err != nil {
			return nil, err
		}
		return v.codec.encode(val)
	})
	return written(val, x, err)
}

// Delete removes the value if it is still old. If not, it returns ErrConflict, as
// CompareAndSet does. If old.Czxid is 0, it removes nothing: it returns nil if
// there is no value, and ErrConflict if there is one. So the result of a Get that
// found nothing can be passed, and the result of a Get that failed deletes nothing.
//
// Nodes below the value stay. Other errors: ErrLimit as for CompareAndSet; ErrUncertain.
func (v *Value[T]) Delete(ctx context.Context, old Versioned[T]) error {
	return v.n.Delete(ctx, cell.Content{Czxid: old.Czxid, Version: old.Version})
}

// encode returns the data of val for op. It checks the path first.
func (v *Value[T]) encode(op string, val T) ([]byte, error) {
	if err := v.n.Check(op); err != nil {
		return nil, err
	}
	data, err := v.codec.encode(val)
	return data, errs.Op(op, v.n.FullPath(), err)
}

// written returns the result of a write. With an error x is zero, unless the value was written all the
// same.
func written[T any](val T, x cell.Content, err error) (Versioned[T], error) {
	if x.Czxid == 0 {
		return Versioned[T]{}, err
	}
	return versioned(val, x), err
}

func versioned[T any](val T, x cell.Content) Versioned[T] {
	return Versioned[T]{Value: val, Czxid: x.Czxid, Version: x.Version, Mzxid: x.Mzxid}
}

// SetOp is a Set as a part of a Txn: the value is set to val if and only if the
// transaction is applied.
func (v *Value[T]) SetOp(val T) TxnOp {
	data, err := v.encode("set", val)
	return TxnOp{v.n.SetOp(data, err)}
}

// Watch returns a channel that receives the current value and then every change. It is
// latest-wins: a slow reader misses intermediate values but never the newest, and receives
// no value twice. A Watch also keeps Load current, whether or not its elements are
// received.
//
// If there is no value, the element has ErrNotFound in Err; if the codec cannot decode the
// data, it has ErrDecode. Both do not end the watch, and neither does a lost session: the
// state that the next session finds is sent if it is new. A value that was deleted and made
// again always counts as a change. Elements never go back to an older state.
//
// The channel is closed when ctx ends. If the watch cannot continue (ErrClosed, ErrDenied,
// ErrBadPath), the last element has that error in Err. Decode runs in a goroutine of the
// client. A change costs the event and one read.
func (v *Value[T]) Watch(ctx context.Context) <-chan Versioned[T] {
	return cell.Watch(ctx, v.follower, func(e cell.Versioned[T]) Versioned[T] { return Versioned[T](e) })
}

// Changes is Watch as a loop: it yields the elements of Watch until ctx ends, the watch fails
// for good, or the body breaks off. The end of the loop ends the watch, and waits for that. A
// slow body misses intermediate values, never the newest.
func (v *Value[T]) Changes(ctx context.Context) iter.Seq[Versioned[T]] {
	return each(ctx, v.Watch)
}

// Load returns the latest value that a Watch of this Value has seen, and its age. It sends
// no request, waits for nothing and allocates nothing. Without a running Watch of this
// Value, Load follows no changes; nothing has to receive from the channel of the Watch.
//
// If the value was deleted or cannot be decoded, Load still returns the last good value,
// with ErrNotFound or ErrDecode in Err. A Czxid of 0 means that no good value was seen yet.
// Before the first read of a Watch, Err is ErrNotFound (ErrBadPath for a bad path) and the
// age is the greatest Duration. States never go back, except with a restored snapshot of
// the service.
//
// The age is the time since the reported state was last known to be current, as a read of
// this session is. It is 0 while a Watch has contact and knows of no change. It can be too
// low until the client notices a loss of contact, for less than the session timeout, and
// after a pause of the process. All callers share what Value refers to: do not change it.
func (v *Value[T]) Load() (now Versioned[T], age time.Duration) {
	latest, age := v.follower.Load()
	return Versioned[T](latest), age
}
