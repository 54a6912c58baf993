//go:build linux

package faulttest

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/go-coord/coord/internal/itemlog"
	"github.com/go-coord/coord/internal/zklog"
)

// window is a time from one moment to another.
type window[T any] struct{ from, to T }

// compareItems compares what the log tells of the items of queues with the reports of the processes,
// after the end of all work.
func compareItems(h *itemlog.Log, p *passage) {
	errorf := func(format string, args ...any) { h.Wrong = append(h.Wrong, fmt.Sprintf(format, args...)) }
	for id, it := range h.Items {
		if it.Place == itemlog.InQueue {
			errorf("%v is left", it)
		}
		if it.Removed > 0 {
			errorf("%v was deleted without a claim", it)
		}
		if put := p.puts[it.Value]; put == nil {
			errorf("%v was put by no process", it)
		} else if put.id != "" && put.id != id {
			errorf("%v was put as %s", it, put.id)
		}
		if _, dead := p.dead[id]; it.Moves > 0 && !dead {
			errorf("%v was moved to the dead letters and is not there", it)
		}
	}
	for value, put := range p.puts {
		if it := h.Items[put.id]; put.ended != 0 && (it == nil || it.Value != value) {
			errorf("%s was put as %s and is not in the log", value, put.id)
		}
	}
	for _, d := range p.deliveries {
		var c *itemlog.Claim
		if it := h.Items[d.ID]; it != nil {
			c = it.ClaimAt(d.token)
		}
		if c == nil || c.Session != d.session {
			errorf("there is no such claim in the log: %v", d)
			continue
		}
		switch acked, session := c.End == itemlog.Acked, c.End == itemlog.Session || c.End == ""; {
		case d.ack == "ok" && !acked, d.ack == "lost" && acked, d.nack == "ok" && (acked || session):
			errorf("the log says %q: %v", c.End, d)
		case acked && d.ack == "":
			errorf("acknowledged by no handler: %v", d)
		}
	}
	for id, value := range p.dead {
		if it := h.Items[id]; it == nil || it.Moves == 0 || it.Value != value {
			errorf("%s (%s) is in the dead letters, and not in the log", value, id)
		}
	}
}

// allLogs returns what the servers of an ensemble have committed from its beginning, in order, and
// the zxids of the transactions that stand in a log and are not committed: at the end of an epoch.
// The servers must run with wholeLogs.
func allLogs(t *testing.T, e servers) (txns []zklog.Txn, dropped map[int64]bool) {
	t.Helper()
	end := endLog(t, e)
	var files []zklog.Files
	for _, s := range e.ZooKeeper.Servers() {
		files = append(files, zklog.Files{Logs: filepath.Join(s.DataDir(), "version-2", "log.*"), Said: s.LogFile()})
	}
	var logs [][]zklog.Txn
	eventually(t, "two servers have the last transaction in their logs", func() bool {
		var err error
		if logs, txns, err = zklog.ReadAll(files); err != nil {
			t.Logf("not yet: %v", err)
		}
		return err == nil && zklog.Have(logs, end) >= 2
	})
	dropped = make(map[int64]bool)
	for _, log := range logs {
		for _, x := range log {
			dropped[x.Zxid] = x.Zxid < end
		}
	}
	for _, x := range txns {
		delete(dropped, x.Zxid)
	}
	return txns, dropped
}

// takenBack returns an error if servers have dropped a transaction that they had acknowledged:
// the claim of an item that was delivered, or a write of the control.
func takenBack(p *passage, acked []int64, dropped map[int64]bool) error {
	n := 0
	for _, d := range p.deliveries {
		if dropped[d.token] {
			n++
		}
	}
	m := 0
	for _, zxid := range acked {
		if dropped[zxid] {
			m++
		}
	}
	if n+m == 0 {
		return nil
	}
	return fmt.Errorf("of %d transactions that are in a log and were dropped, the claims of %d deliveries and %d writes of the control were acknowledged", len(dropped), n, m)
}

// wholeLogs makes a server that was away receive the missing changes one by one, so that its log
// is complete.
const wholeLogs = "-Dzookeeper.commitLogCount=50000"
