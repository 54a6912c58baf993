// Package jute decodes ZooKeeper's encoding, for the test instruments that inspect its frames
// and its log. The backend has a decoder of its own.
package jute

import "encoding/binary"

// A Decoder reads values from the front of Rest. After the first missing value
// Failed is set, and it returns zero values. Take and Bytes return parts of Rest.
type Decoder struct {
	Rest   []byte
	Failed bool
}

// Take reads n bytes.
func (d *Decoder) Take(n int) []byte {
	if d.Failed || n < 0 || n > len(d.Rest) {
		d.Failed = true
		return nil
	}
	b := d.Rest[:n:n]
	d.Rest = d.Rest[n:]
	return b
}

func (d *Decoder) Int32() int32 {
	if b := d.Take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (d *Decoder) Int64() int64 {
	if b := d.Take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (d *Decoder) Bool() bool {
	b := d.Take(1)
	return b != nil && b[0] != 0
}

// Bytes reads a buffer or string; length -1 means null.
func (d *Decoder) Bytes() []byte {
	n := d.Int32()
	if n == -1 {
		return nil
	}
	return d.Take(int(n))
}

// Text reads a string.
func (d *Decoder) Text() string { return string(d.Bytes()) }

// SkipACL reads a list of permissions.
func (d *Decoder) SkipACL() {
	for n := d.Int32(); n > 0 && !d.Failed; n-- {
		d.Int32() // permissions
		d.Bytes() // scheme
		d.Bytes() // id
	}
}
