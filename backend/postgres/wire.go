package postgres

import (
	"encoding/binary"
	"fmt"
)

// The binary formats of the types in statements.

var be = binary.BigEndian

const (
	oidBool  = 16
	oidBytea = 17
	oidInt4  = 23
	oidText  = 25
)

func int4(v int32) []byte { return be.AppendUint32(nil, uint32(v)) }
func int8(v int64) []byte { return be.AppendUint64(nil, uint64(v)) }

// headOfArray is the length of what comes before the elements of an array that is not empty.
const headOfArray = 20

// array encodes a one-dimensional array. put appends an element, or returns nil for NULL.
func array[T any](oid uint32, all []T, put func(b []byte, e T) []byte) []byte {
	dimensions := uint32(1)
	if len(all) == 0 {
		dimensions = 0
	}
	b := be.AppendUint32(nil, dimensions)
	b = be.AppendUint32(b, 1) // there can be NULLs
	b = be.AppendUint32(b, oid)
	if len(all) == 0 {
		return b
	}
	b = be.AppendUint32(b, uint32(len(all)))
	b = be.AppendUint32(b, 1) // the lower bound
	for _, e := range all {
		begin := len(b)
		b = be.AppendUint32(b, ^uint32(0))
		if more := put(b, e); more != nil {
			b = more
			be.PutUint32(b[begin:], uint32(len(b)-begin-4))
		}
	}
	return b
}

// concat returns the array of the elements of several arrays of one type. None of these is empty.
func concat(arrays [][]byte) []byte {
	size, n := headOfArray, 0
	for _, a := range arrays {
		size += len(a) - headOfArray
		n += lengthOf(a)
	}
	b := append(make([]byte, 0, size), arrays[0][:headOfArray]...)
	be.PutUint32(b[headOfArray-8:], uint32(n))
	for _, a := range arrays {
		b = append(b, a[headOfArray:]...)
	}
	return b
}

// lengthOf returns the number of elements of an array that is not empty.
func lengthOf(array []byte) int { return int(be.Uint32(array[headOfArray-8:])) }

func int4s(all []int32) []byte {
	return array(oidInt4, all, func(b []byte, v int32) []byte { return be.AppendUint32(b, uint32(v)) })
}

func texts(all []string) []byte {
	return array(oidText, all, func(b []byte, s string) []byte { return append(b, s...) })
}

func bool1(v bool) []byte {
	if v {
		return []byte{1}
	}
	return []byte{0}
}

func bools(all []bool) []byte {
	return array(oidBool, all, func(b []byte, v bool) []byte { return append(b, bool1(v)...) })
}

// byteas encodes empty data as NULL.
func byteas(all [][]byte) []byte {
	return array(oidBytea, all, func(b, v []byte) []byte {
		if len(v) == 0 {
			return nil
		}
		return append(b, v...)
	})
}

// integer decodes an int2, int4 or int8. NULL is 0.
func integer(b []byte) int64 {
	switch len(b) {
	case 8:
		return int64(be.Uint64(b))
	case 4:
		return int64(int32(be.Uint32(b)))
	case 2:
		return int64(int16(be.Uint16(b)))
	}
	return 0
}

func boolean(b []byte) bool { return len(b) == 1 && b[0] == 1 }

// elements decodes a one-dimensional array; a NULL is nil. If the lower bound is more than 1, the elements
// before it are nil: PL/pgSQL fills arrays from the middle.
func elements(b []byte) ([][]byte, error) {
	bad := func() ([][]byte, error) { return nil, fmt.Errorf("postgres: this is no array: %x", b) }
	rest := b
	next := func() int {
		v := int(int32(be.Uint32(rest)))
		rest = rest[4:]
		return v
	}
	if len(b) < 12 {
		if b == nil {
			return nil, nil
		}
		return bad()
	}
	dimensions := next()
	rest = rest[8:]
	if dimensions == 0 {
		return nil, nil
	}
	if dimensions != 1 || len(rest) < 8 {
		return bad()
	}
	n, low := next(), next()
	if low < 1 || low > 1<<20 || n < 0 || n > len(rest)/4 {
		return bad()
	}
	all := make([][]byte, low-1, n+low-1)
	for range n {
		if len(rest) < 4 {
			return bad()
		}
		size := next()
		if size > len(rest) {
			return bad()
		}
		if size < 0 {
			all = append(all, nil)
			continue
		}
		all = append(all, rest[:size:size])
		rest = rest[size:]
	}
	return all, nil
}
