package zklog

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// Merge returns the transactions that an ensemble has committed, in order. logs are the logs
// of its servers, and starts is what Starts read in their output.
//
// The log of a server can end an epoch, the upper half of a zxid, with proposals that were
// never committed: a leader was stopped or killed before a majority had them. Several servers
// can have such a proposal in their logs, and even in their trees, because a server can be
// elected that has it and that no majority then follows. Up to 3.8.2 at least, ZooKeeper also
// writes some of them after it has decided where to continue (ZOOKEEPER-4712). So the number
// of logs that have a transaction proves nothing. What counts is the tree from which the next
// leader with a majority started: the transactions up to that point are committed, and no
// later one of an earlier epoch is. The last epoch has no next leader; there everything counts
// up to the last transaction that two servers have.
//
// Servers that received a snapshot have holes in their logs, which the logs of others fill:
// within an epoch transactions are numbered from 1 without a hole.
func Merge(logs [][]Txn, starts map[int64]int64) ([]Txn, error) {
	known := make(map[int64]Txn)
	end := int64(0)
	for _, log := range logs {
		for _, x := range log {
			if _, twice := known[x.Zxid]; twice {
				end = max(end, x.Zxid)
			}
			known[x.Zxid] = x
		}
	}
	var all []Txn // the latest first
	for end > 0 {
		epoch := end >> 32
		for z := end; z > epoch<<32; z-- {
			x, ok := known[z]
			if !ok {
				return nil, fmt.Errorf("zklog: no server has the transaction %#x in its log", z)
			}
			all = append(all, x)
		}
		start, ok := starts[epoch]
		if !ok || start>>32 >= epoch {
			return nil, fmt.Errorf("zklog: no leader reported where the epoch %#x began", epoch)
		}
		end = start
	}
	slices.Reverse(all)
	return all, nil
}

// Files names the files of one server.
type Files struct {
	Logs string // a pattern of the names of its transaction logs
	Said string // the file with its output
}

// ReadAll reads the files of the servers of an ensemble. It returns the log of each server, and the
// transactions that the ensemble has committed, see Merge. A server that was killed, or whose disk was
// full, leaves a torn record or an empty file, and continues in another file. ReadAll skips such ends of
// files; Merge fails if no other file, of this server or another one, has the transaction.
func ReadAll(servers []Files) (logs [][]Txn, committed []Txn, err error) {
	starts := make(map[int64]int64)
	for _, s := range servers {
		log, err := readPieces(s.Logs)
		if err != nil {
			return nil, nil, err
		}
		logs = append(logs, log)
		said, err := os.ReadFile(s.Said)
		if err != nil {
			return nil, nil, fmt.Errorf("zklog: %w", err)
		}
		Starts(said, starts)
	}
	committed, err = Merge(logs, starts)
	return logs, committed, err
}

// readPieces returns the transactions in the files that match a pattern, in order, each once.
func readPieces(pattern string) (log []Txn, err error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("zklog: %w", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("zklog: %w", err)
		}
		part, _ := Parse(b)
		log = append(log, part...)
	}
	slices.SortStableFunc(log, func(a, b Txn) int { return cmp.Compare(a.Zxid, b.Zxid) })
	return slices.CompactFunc(log, func(a, b Txn) bool { return a.Zxid == b.Zxid }), nil
}

// Have returns the number of logs whose last transaction is this one or a later one.
func Have(logs [][]Txn, zxid int64) (n int) {
	for _, log := range logs {
		if len(log) > 0 && log[len(log)-1].Zxid >= zxid {
			n++
		}
	}
	return n
}

// leading matches two lines of a leader's output. When a server begins to follow it, the
// leader logs the last transaction in its own tree. When a majority follows, it logs the first
// zxid of its epoch.
var leading = regexp.MustCompile(`Synchronizing with Learner sid: .* lastProcessedZxid=0x([0-9a-f]+) |Have quorum of supporters, .* last processed zxid: 0x([0-9a-f]+)`)

// Starts reads the output of a server, and records for each epoch in which a majority followed
// it the last transaction that its tree had at the beginning. A leader that no majority follows
// begins no epoch.
func Starts(said []byte, starts map[int64]int64) {
	last := int64(-1)
	for _, m := range leading.FindAllSubmatch(said, -1) {
		if z, err := strconv.ParseInt(string(m[1]), 16, 64); err == nil {
			last = z
		} else if z, err := strconv.ParseInt(string(m[2]), 16, 64); err == nil && last >= 0 {
			starts[z>>32] = last
		}
	}
}
