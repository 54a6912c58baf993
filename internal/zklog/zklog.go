// Package zklog reads the transaction log that a ZooKeeper server writes. The log holds every
// applied change, in order, whichever client made it and whatever reply it got. Tests use it
// to check the history of a real ensemble.
//
// The format is that of ZooKeeper 3.6 to 3.9 (FileTxnLog, SerializeUtils and the
// records of the package org.apache.zookeeper.txn).
package zklog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The types of transactions and operations (ZooDefs.OpCode) that this package decodes.
const (
	Create          int32 = 1
	Delete          int32 = 2
	SetData         int32 = 5
	SetACL          int32 = 7
	Check           int32 = 13
	Multi           int32 = 14
	Create2         int32 = 15 // a create whose client asked for the stat
	CreateContainer int32 = 19
	DeleteContainer int32 = 20 // by the server
	CreateTTL       int32 = 21
	Error           int32 = -1 // refused
	CreateSession   int32 = -10
	CloseSession    int32 = -11
)

// A Txn is one transaction of the log.
type Txn struct {
	Zxid    int64
	Session int64     // of the client; 0 if it was the server's own
	Time    time.Time // by the leader's clock, in milliseconds
	Type    int32
	Err     int32 // ZooKeeper's error code if it was refused: then nothing was applied
	// Ops are the operations in order: those of a multi, or a single one. The end of a
	// session deletes its ephemeral nodes. Other types, and refused transactions, have none.
	Ops []Op
}

// An Op is one change, or one check, of a node.
type Op struct {
	Type      int32
	Path      string
	Data      []byte    // of the creates and SetData
	Ephemeral bool      // of the creates
	Version   int32     // of SetData: the new one
	Made      time.Time // of a create, by its writer's clock; ZooKeeper does not say it
}

// IsCreate reports whether the operation creates a node of any kind.
func (o Op) IsCreate() bool {
	return o.Type == Create || o.Type == Create2 || o.Type == CreateContainer || o.Type == CreateTTL
}

// IsDelete reports whether the operation deletes a node.
func (o Op) IsDelete() bool { return o.Type == Delete || o.Type == DeleteContainer }

// errTorn is the error of an entry that is still being written, or damaged.
var errTorn = errors.New("incomplete or damaged")

// Read returns all transactions in the logs below a server's data directory, in order. The
// server may be running; a follower's log can lack the latest transactions. An error means
// that the logs could not be read to their end; the transactions before that point are
// returned as well.
func Read(dataDir string) ([]Txn, error) {
	files, err := logs(dataDir)
	if err != nil {
		return nil, err
	}
	var txns []Txn
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return txns, fmt.Errorf("zklog: %w", err)
		}
		more, err := Parse(b)
		for _, x := range more {
			if n := len(txns); n > 0 && x.Zxid <= txns[n-1].Zxid {
				return txns, fmt.Errorf("zklog: %s: zxid %#x after %#x", file, x.Zxid, txns[n-1].Zxid)
			}
			txns = append(txns, x)
		}
		if err != nil {
			return txns, fmt.Errorf("zklog: %s: %w", file, err)
		}
	}
	return txns, nil
}

// logs returns the names of the log files in order.
func logs(dataDir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dataDir, "version-2", "log.*"))
	if err != nil {
		return nil, fmt.Errorf("zklog: %w", err)
	}
	first := make(map[string]int64)
	for _, file := range files {
		_, hex, _ := strings.Cut(filepath.Base(file), ".")
		if first[file], err = strconv.ParseInt(hex, 16, 64); err != nil {
			return nil, fmt.Errorf("zklog: %s: %w", file, err)
		}
	}
	slices.SortFunc(files, func(a, b string) int { return cmp.Compare(first[a], first[b]) })
	return files, nil
}

// logHeader is the magic and the version; the number of a database follows.
const logHeader = "ZKLG\x00\x00\x00\x02"

// Parse reads one log file. A file that was created and not written yet is empty.
func Parse(b []byte) ([]Txn, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) < len(logHeader)+8 || string(b[:len(logHeader)]) != logHeader {
		return nil, errors.New("not a log of ZooKeeper")
	}
	var txns []Txn
	at := len(logHeader) + 8
	for {
		// An entry is a checksum, a length, that many bytes, and a mark. Files are extended
		// with zeros ahead of use.
		if len(b)-at < 12 {
			if len(b) > at {
				return txns, fmt.Errorf("offset %d: %w", at, errTorn)
			}
			return txns, nil
		}
		sum := binary.BigEndian.Uint64(b[at:])
		n := int64(int32(binary.BigEndian.Uint32(b[at+8:])))
		if sum == 0 && n == 0 {
			return txns, nil
		}
		begin := int64(at) + 12
		if n <= 0 || begin+n+1 > int64(len(b)) {
			return txns, fmt.Errorf("offset %d: %w", at, errTorn)
		}
		data := b[begin : begin+n]
		if uint64(adler32.Checksum(data)) != sum || b[begin+n] != 'B' {
			return txns, fmt.Errorf("offset %d: %w", at, errTorn)
		}
		x, err := parseTxn(data)
		if err != nil {
			return txns, fmt.Errorf("offset %d: %w", at, err)
		}
		txns = append(txns, x)
		at = int(begin + n + 1)
	}
}
