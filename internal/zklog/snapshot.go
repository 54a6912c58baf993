package zklog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/go-coord/coord/internal/jute"
)

// A Snapshot is the tree that a server has written to a file. The server continues while it writes the file:
// the tree has all transactions up to Zxid, and some later ones.
type Snapshot struct {
	Zxid  int64
	Nodes map[string]State
}

// A State is a node between two transactions that changed it.
type State struct{ Czxid, Mzxid int64 }

const snapshotHeader = "ZKSN\x00\x00\x00\x02"

// ReadSnapshots reads the snapshots whose names match a pattern. It skips incomplete files, which a killed
// server leaves.
func ReadSnapshots(pattern string) (list []Snapshot, err error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("zklog: %w", err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".tmp") {
			continue // a server renames the file when it is complete
		}
		_, hex, _ := strings.Cut(filepath.Base(file), ".")
		zxid, err := strconv.ParseInt(hex, 16, 64)
		if err != nil {
			return nil, fmt.Errorf("zklog: %s: %w", file, err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("zklog: %w", err)
		}
		if nodes, err := parseSnapshot(b); err == nil {
			list = append(list, Snapshot{zxid, nodes})
		} else if !errors.Is(err, errTorn) {
			return nil, fmt.Errorf("zklog: %s: %w", file, err)
		}
	}
	return list, nil
}

// parseSnapshot reads the nodes of one file. The sessions and permissions before them and the
// checksums after them are ignored.
func parseSnapshot(b []byte) (map[string]State, error) {
	if len(b) < len(snapshotHeader)+8 {
		return nil, errTorn
	}
	if string(b[:len(snapshotHeader)]) != snapshotHeader {
		return nil, errors.New("not a snapshot of ZooKeeper")
	}
	d := &jute.Decoder{Rest: b[len(snapshotHeader)+8:]} // the number of the database is left out
	for n := d.Int32(); n > 0 && !d.Failed; n-- {
		d.Int64() // the session
		d.Int32() // its timeout
	}
	for n := d.Int32(); n > 0 && !d.Failed; n-- {
		d.Int64() // the number of the permissions
		d.SkipACL()
	}
	nodes := make(map[string]State)
	for !d.Failed {
		path := d.Text() // of the root: ""
		if path == "/" {
			return nodes, nil
		}
		d.Bytes() // the data
		d.Int64() // the permissions
		nodes[path] = State{Czxid: d.Int64(), Mzxid: d.Int64()}
		d.Take(8 + 8 + 4 + 4 + 4 + 8 + 8) // times, versions, owner, pzxid
	}
	return nil, errTorn
}
