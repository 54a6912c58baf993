package zklog

import (
	"encoding/binary"
	"hash/adler32"
	"testing"
)

// entry is a log with one entry.
func entry(data []byte) []byte {
	b := append([]byte(logHeader), make([]byte, 8)...)
	b = binary.BigEndian.AppendUint64(b, uint64(adler32.Checksum(data)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(append(b, data...), 'B')
}

// record is a transaction: session, number, zxid, time, type, and the rest.
func record(kind int32, rest ...byte) []byte {
	b := binary.BigEndian.AppendUint64(nil, 0x77)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint64(b, 5)
	b = binary.BigEndian.AppendUint64(b, 1000)
	return append(binary.BigEndian.AppendUint32(b, uint32(kind)), rest...)
}

// Any bytes are parsed without a panic and without more memory than their length, and a
// changed log can be parsed again.
func FuzzParse(f *testing.F) {
	path := []byte{0, 0, 0, 4, '/', 'd', '/', 'x', 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 9}
	for _, data := range [][]byte{
		nil, record(Create, path...), record(Create2, path...), record(CreateContainer, path...), record(Delete, path[:8]...),
		record(SetData, path...), record(Error, 0, 0, 0, 1), record(CloseSession), record(CloseSession, 0x7f, 0xff, 0xff, 0xff),
		record(Multi, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, 4, '/', 'd', '/', 'x'), record(Multi, 0x7f, 0xff, 0xff, 0xff),
		record(Create, 0, 0, 0, 1, '/', 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff), record(99), record(Create, 0x7f, 0xff, 0xff, 0xff),
	} {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		Parse(data) // most inputs are not a log
		log := entry(data)
		txns, err := Parse(log)
		if len(txns) > 1 || err == nil && len(txns) == 0 && len(data) > 0 {
			t.Errorf("%d transactions, %v", len(txns), err)
		}
		ops := 0
		for _, x := range txns {
			ops += len(x.Ops)
		}
		if ops > len(data) {
			t.Errorf("%d operations in %d bytes", ops, len(data))
		}
		if dir, field := sequenceField(data); field != nil {
			if !setSequences(log, map[string]int32{dir: 12345}) {
				t.Fatalf("no creation below %q", dir)
			}
			if _, now := sequenceField(log[len(logHeader)+8+12 : len(log)-1]); binary.BigEndian.Uint32(now) != 12345 {
				t.Error("the number was not changed")
			}
			again, err2 := Parse(log)
			if len(again) != len(txns) || (err == nil) != (err2 == nil) {
				t.Errorf("%d transactions and %v, after the change %d and %v", len(txns), err, len(again), err2)
			}
		}
	})
}
