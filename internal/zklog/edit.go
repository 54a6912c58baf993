package zklog

import (
	"encoding/binary"
	"fmt"
	"hash/adler32"
	"maps"
	"os"
	"path"
	"slices"

	"github.com/go-coord/coord/internal/jute"
)

// SetSequences changes the log of a stopped server, so that the next sequential children of
// some directories get the given numbers when the server runs again. No test could create two
// billion nodes to get there.
//
// The number is part of each creation in the log: the number of changes of the parent's
// children. The latest creation of a child of each directory is changed. It must be an
// operation of its own, made after the server was started: at its start a server writes a
// snapshot, and no longer reads the part of the log that the snapshot contains. The numbers
// of a directory only grow. All servers of an ensemble need the same change. They must run
// with -Dzookeeper.digest.enabled=false, or they detect the change.
func SetSequences(dataDir string, next map[string]int32) error {
	files, err := logs(dataDir)
	if err != nil {
		return err
	}
	left := maps.Clone(next)
	for _, file := range slices.Backward(files) {
		b, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("zklog: %w", err)
		}
		if !setSequences(b, left) {
			continue
		}
		if err := os.WriteFile(file, b, 0o644); err != nil {
			return fmt.Errorf("zklog: %w", err)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("zklog: no creation of a child of %q", slices.Sorted(maps.Keys(left))[0])
	}
	return nil
}

// setSequences changes the latest creation below each directory in one file, and removes the
// directories that it found from next.
func setSequences(b []byte, next map[string]int32) bool {
	type place struct{ sum, data, field []byte }
	latest := make(map[string]place)
	for at := len(logHeader) + 8; len(b)-at >= 12; {
		n := int64(int32(binary.BigEndian.Uint32(b[at+8:])))
		begin := int64(at) + 12
		if n <= 0 || begin+n+1 > int64(len(b)) {
			break
		}
		entry := b[begin : begin+n]
		if dir, field := sequenceField(entry); field != nil {
			latest[dir] = place{b[at : at+8], entry, field}
		}
		at = int(begin + n + 1)
	}
	changed := false
	for dir, p := range latest {
		if number, ok := next[dir]; ok {
			binary.BigEndian.PutUint32(p.field, uint32(number))
			binary.BigEndian.PutUint64(p.sum, uint64(adler32.Checksum(p.data)))
			delete(next, dir)
			changed = true
		}
	}
	return changed
}

// sequenceField returns the parent of the node that an entry creates, and the field that
// holds the number of changes of its children. Both are empty if the entry creates no node.
func sequenceField(entry []byte) (dir string, field []byte) {
	d := &jute.Decoder{Rest: entry}
	d.Take(8 + 4 + 8 + 8) // session, number, zxid, time
	kind := d.Int32()
	if kind != Create && kind != Create2 && kind != CreateContainer {
		return "", nil
	}
	node := d.Text()
	d.Bytes()
	d.SkipACL()
	if kind != CreateContainer {
		d.Bool()
	}
	field = d.Take(4)
	if d.Failed {
		return "", nil
	}
	return path.Dir(node), field
}
