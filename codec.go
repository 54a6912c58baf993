package coord

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/internal/usercode"
)

// A Codec converts values to the bytes of a node and back. The nodes of a recipe
// contain exactly these bytes, so other programs can read and write them. Both
// functions must be safe for concurrent use and must not retain their arguments. They
// also run in goroutines of the client, for which Close waits: they must not block, nor
// call Close. The zero Codec means JSON; a Codec with only one of the functions is
// ErrInvalid.
//
// If a codec panics in the goroutine of a caller, the panic reaches that caller. If it
// panics in a goroutine of the client (for Items, Watch, Members, a Picker or a
// Participant), the program and the loop continue. If Decode panics or ends its goroutine,
// the data counts as undecodable (ErrDecode), and the client logs the stack and the type
// of the panic's value. A queue counts an attempt for an item at which Decode panics, and
// gives back the items that were claimed with it; so with MaxAttempts the item becomes a
// dead letter. An item at which Decode returns an error becomes one at once: see
// Consumer.Take.
type Codec[T any] struct {
	Encode func(T) ([]byte, error)
	Decode func([]byte) (T, error)
}

// JSON returns the codec that recipes use by default: encoding/json.
func JSON[T any]() Codec[T] {
	return Codec[T]{
		Encode: func(v T) ([]byte, error) {
			data, err := json.Marshal(v)
			return data, withoutValue(err)
		},
		Decode: func(data []byte) (v T, err error) {
			err = json.Unmarshal(data, &v)
			return v, withoutValue(err)
		},
	}
}

// StrictJSON is JSON, but refuses data that does not fit T: an object with a field that T
// does not have, data after the value, and null for a T that is not a pointer, map, slice
// or interface. JSON ignores such data, so it decodes most values of another type, or of a
// later version, to a nearly empty T; a write by Value.Update or a consumer then erases the
// ignored fields. StrictJSON accepts missing fields, as in {}. A type with a method
// UnmarshalJSON decides itself which data it accepts, also as a part of T: time.Time
// accepts null.
//
// Every reading program must know a new field before a program writes it. In a queue, an
// item with unknown fields cannot be decoded: see Consumer.Take.
func StrictJSON[T any]() Codec[T] {
	return Codec[T]{
		Encode: JSON[T]().Encode,
		Decode: func(data []byte) (v T, err error) {
			d := json.NewDecoder(bytes.NewReader(data))
			d.DisallowUnknownFields()
			if err := d.Decode(&v); err != nil {
				if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
					err = errCutOff
				} else if strings.HasPrefix(err.Error(), "json: unknown field ") {
					err = errUnknownField // without the name, which is data
				} else {
					err = withoutValue(err)
				}
				return v, err
			}
			if _, err := d.Token(); !errors.Is(err, io.EOF) {
				return v, errTrailing
			}
			if string(bytes.TrimSpace(data)) == "null" && !holdsNull(reflect.TypeFor[T]()) {
				return v, errNull
			}
			return v, nil
		},
	}
}

var (
	errCutOff       = errors.New("json: the data is truncated or empty")
	errUnknownField = errors.New("json: the data has a field that the type does not have")
	errTrailing     = errors.New("json: the data continues after the value")
	errNull         = errors.New("json: the data is null, which the type cannot hold")
)

// holdsNull reports whether null is a value of t. A type with a method of its own decides
// that itself.
func holdsNull(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

// withoutValue removes the value from an error of json.Marshal or json.Unmarshal:
// errors are logged, and values must not be. encoding/json itself quotes numbers that
// do not fit. Except for its syntax errors and those of types and values that have no
// JSON, all errors come from methods of the type, such as time.Time's, which may quote
// any part of the value.
func withoutValue(err error) error {
	switch e := err.(type) {
	case nil:
		return nil
	case *json.SyntaxError, *json.UnsupportedTypeError, *json.UnsupportedValueError: // NaN, or a cycle
		return err
	case *json.MarshalerError:
		plain := *e
		plain.Err = &hiddenError{e.Err}
		return &plain
	case *json.UnmarshalTypeError:
		plain := *e
		plain.Value, _, _ = strings.Cut(e.Value, " ")
		return &plain
	}
	return &hiddenError{err}
}

// hiddenError is an error whose text is hidden.
type hiddenError struct{ err error }

func (u *hiddenError) Error() string {
	return fmt.Sprintf("json: %T (its text can quote the value and is not shown)", u.err)
}
func (u *hiddenError) Unwrap() error { return u.err }

// Bytes returns the codec that stores bytes as they are.
func Bytes() Codec[[]byte] {
	return Codec[[]byte]{
		Encode: func(v []byte) ([]byte, error) { return slices.Clone(v), nil },
		Decode: func(data []byte) ([]byte, error) { return slices.Clone(data), nil },
	}
}

// Text returns the codec that stores a string as it is.
func Text() Codec[string] {
	return Codec[string]{
		Encode: func(v string) ([]byte, error) { return []byte(v), nil },
		Decode: func(data []byte) (string, error) { return string(data), nil },
	}
}

// orJSON returns the codec itself, or JSON for the zero one. A codec with one function
// missing refuses everything: another format could not read its data.
func (k Codec[T]) orJSON() Codec[T] {
	switch {
	case k.Encode == nil && k.Decode == nil:
		return JSON[T]()
	case k.Encode == nil || k.Decode == nil:
		return Codec[T]{
			Encode: func(T) ([]byte, error) { return nil, errHalfCodec },
			Decode: func([]byte) (v T, err error) { return v, errHalfCodec },
		}
	}
	return k
}

var errHalfCodec = fmt.Errorf("%w: a Codec needs both Encode and Decode", ErrInvalid)

// encode encodes v, and wraps the codec's error.
func (k Codec[T]) encode(v T) ([]byte, error) {
	data, err := k.Encode(v)
	switch {
	case err == nil:
		return data, nil
	case errors.Is(err, ErrInvalid):
		return nil, fmt.Errorf("cannot encode the value: %w", err)
	}
	return nil, fmt.Errorf("%w: cannot encode the value: %w", ErrInvalid, err)
}

// decode decodes data, and wraps the codec's error.
func (k Codec[T]) decode(data []byte) (T, error) {
	v, err := k.Decode(data)
	if err != nil {
		var zero T
		return zero, fmt.Errorf("%w: %w", ErrDecode, err)
	}
	return v, nil
}

// decodeApart is decode for the goroutines of the client: data at which Decode does not return
// cannot be decoded. path is that of the node.
func (k Codec[T]) decodeApart(c *core.Client, path string, data []byte) (v T, err error) {
	err = c.Call("Decode", []any{"path", path}, func() (err error) {
		v, err = k.decode(data)
		return err
	})
	if usercode.As(err) != nil {
		err = fmt.Errorf("%w: %w", ErrDecode, err)
	}
	return v, err
}
