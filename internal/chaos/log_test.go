//go:build linux

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/itemlog"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/zklog"
	"github.com/go-coord/coord/internal/zktest"
)

// otherLog is the file with the changes of a service that is not ZooKeeper.
const otherLog = "log.json"

// keepLogs copies the servers' logs, up to a transaction after all calls of the clients.
func (r *run) keepLogs() error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	e, dir := r.e, r.dir
	if r.other != nil {
		log, err := r.other.Log(ctx)
		if err != nil {
			return err
		}
		text, err := json.Marshal(log)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, otherLog), text, 0o644)
	}
	leader, err := e.Leader(ctx)
	if err != nil {
		return err
	}
	mark, err := ensemble.MarkEnd(ctx, backendAt([]string{leader.Addr()}, 20*tick, 0))
	if err != nil {
		return err
	}
	// The transaction is committed, so a second server has it too, or will have it.
	var files []zklog.Files
	for _, s := range e.Servers() {
		files = append(files, zklog.Files{Logs: filepath.Join(s.DataDir(), "version-2", "log.*"), Said: s.LogFile()})
	}
	err = until("the logs of a majority have the last transaction", limit, func() bool {
		logs, _, _ := zklog.ReadAll(files)
		return zklog.Have(logs, mark) >= 2
	})
	if err != nil {
		return err
	}
	for i, s := range e.Servers() {
		if err := os.CopyFS(filepath.Join(dir, logDir(i)), os.DirFS(filepath.Join(s.DataDir(), "version-2"))); err != nil {
			return err
		}
		text, err := os.ReadFile(s.LogFile())
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, logDir(i), saidFile), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// saidFile is the standard output of a server.
const saidFile = "said"

// empty deletes the data of a stopped server, except its logs.
func (r *run) empty(s *zktest.Server) error {
	r.emptied++
	aside := filepath.Join(r.dir, fmt.Sprintf("%s-before-%d", logDir(s.ID()-1), r.emptied))
	data := filepath.Join(s.DataDir(), "version-2")
	if err := os.CopyFS(aside, os.DirFS(data)); err != nil {
		return err
	}
	return os.RemoveAll(data)
}

func logDir(i int) string { return fmt.Sprintf("server-%d", i) }

// readLogs returns all transactions that the servers have committed, in order.
func readLogs(dir string) ([]zklog.Txn, error) {
	if text, err := os.ReadFile(filepath.Join(dir, otherLog)); err == nil {
		var log []zklog.Txn
		return log, json.Unmarshal(text, &log)
	}
	var files []zklog.Files
	for i := range 3 {
		files = append(files, zklog.Files{Logs: filepath.Join(dir, logDir(i)+"*", "log.*"), Said: filepath.Join(dir, logDir(i), saidFile)})
	}
	_, log, err := zklog.ReadAll(files)
	return log, err
}

// wrongTrees describes how a server's tree contradicts the committed transactions, or returns "".
// A snapshot shows a deleted node or old data (see rested for how a server gets there). Or a cache
// told of a state that no committed transaction left: it has every state from a server. No client
// can compensate for either: what it reads there, and reads later at another server, is not in
// order.
func wrongTrees(dir string, h zklog.History, all []*process) (wrong string, err error) {
	if _, err := os.Stat(filepath.Join(dir, otherLog)); err == nil {
		return "", nil // its reads are linearizable
	}
	for i := range 3 {
		snapshots, err := zklog.ReadSnapshots(filepath.Join(dir, logDir(i)+"*", "snapshot.*"))
		if err != nil {
			return "", err
		}
		for _, s := range snapshots {
			if wrong := h.Outdated(s); wrong != "" {
				return fmt.Sprintf("server %d: %s", i+1, wrong), nil
			}
		}
	}
	for _, p := range all {
		for _, e := range p.events {
			if e.Kind == "older" && !(h.Made(e.ID, e.Since) && h.Had(e.ID, zklog.State{Czxid: e.Num, Mzxid: e.Token})) {
				return fmt.Sprintf("a server had %s as of %#x, or as of %#x, created in %#x: no committed transaction left both", e.ID, e.Since, e.Token, e.Num), nil
			}
		}
	}
	return "", nil
}

// change is one change of a node in the servers' logs.
type change struct {
	zxid    int64
	session int64
	path    string
	data    string
	end     bool // made by the end of the session
	txn     *zklog.Txn
}

// ledger indexes the changes of nodes in the logs.
type ledger struct {
	written  map[string][]change  // by data: creates and sets of unique values
	created  map[string][]change  // by path; also of nodes that are never created twice
	deleted  map[string][]change  // by path
	owned    map[int64][]change   // ephemeral creates, by session
	counter  []change             // of the counter, in order
	proposed map[string][]attempt // transactions, by id
	txns     int
	log      []zklog.Txn
	lengths  []lengthAt // of the queue with a limit
	longest  int
	nexts    int              // commits of Acks that claimed the next items
	books    map[string]*book // of the schedules
}

func newLedger(log []zklog.Txn) *ledger {
	l := &ledger{
		written: make(map[string][]change), created: make(map[string][]change), deleted: make(map[string][]change),
		owned: make(map[int64][]change), proposed: make(map[string][]attempt), txns: len(log), log: log,
		books: make(map[string]*book),
	}
	for work, p := range plans {
		l.books[work] = bookOf(log, p)
	}
	length := 0
	for i := range log {
		x := &log[i]
		if itemlog.AcksAndClaims(x) {
			l.nexts++
		}
		for _, op := range x.Ops {
			c := change{zxid: x.Zxid, session: x.Session, path: op.Path, data: string(op.Data), end: x.Type == zklog.CloseSession, txn: x}
			switch {
			case op.IsCreate():
				l.created[op.Path] = append(l.created[op.Path], c)
				if isItem("priority", op.Path) {
					length++
					l.longest = max(l.longest, length)
					l.lengths = append(l.lengths, lengthAt{x.Zxid, length})
				}
				if op.Ephemeral {
					l.owned[x.Session] = append(l.owned[x.Session], c)
				}
				if !c.isRedrive() {
					l.write(c)
				}
			case op.Type == zklog.SetData:
				l.write(c)
			case op.IsDelete():
				l.deleted[op.Path] = append(l.deleted[op.Path], c)
				if isItem("priority", op.Path) {
					length--
					l.lengths = append(l.lengths, lengthAt{x.Zxid, length})
				}
			}
		}
	}
	return l
}

// isOfQueue reports whether a path is below the items of a queue.
func (*ledger) isOfQueue(path string) bool {
	for _, at := range queuePaths {
		if strings.HasPrefix(path, at+"/items/") {
			return true
		}
	}
	return false
}

// write records a create or a set.
func (l *ledger) write(c change) {
	rest, isTx := strings.CutPrefix(c.path, txnPath+"/tx/")
	switch {
	case c.path == counterPath:
		l.counter = append(l.counter, c)
	case c.path == valuePath, strings.HasPrefix(c.path, treePath+"/"), l.isOfQueue(c.path) && c.data != "":
		l.written[c.data] = append(l.written[c.data], c)
	case isTx:
		id, child, below := strings.Cut(rest, "/")
		list := l.proposed[id]
		if !below {
			l.proposed[id] = append(list, attempt{zxid: c.zxid})
		} else if strings.HasPrefix(child, "decision-") && len(list) > 0 {
			var d struct{ Commit bool }
			what := "nonsense"
			if json.Unmarshal([]byte(c.data), &d) == nil {
				what = decided(d.Commit)
			}
			last := &list[len(list)-1]
			last.outcomes = append(last.outcomes, what)
		}
	}
}

// additions returns, by delta, the changes of the counter that added it.
func (l *ledger) additions() (map[int64][]change, error) {
	deltas := make(map[int64][]change)
	last := int64(0)
	for _, c := range l.counter {
		n, err := strconv.ParseInt(c.data, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the counter was set to %q", c.data)
		}
		deltas[n-last] = append(deltas[n-last], c)
		last = n
	}
	return deltas, nil
}

// deletes returns the change that deleted a node in a transaction of a client, not by the end
// of its session.
func (l *ledger) deletes(path string) *change {
	for i, c := range l.deleted[path] {
		if !c.end {
			return &l.deleted[path][i]
		}
	}
	return nil
}

// alsoDeletes reports whether the transaction of a change also deletes a node whose path
// contains part.
func (c *change) alsoDeletes(part string) bool {
	for _, op := range c.txn.Ops {
		if op.IsDelete() && strings.Contains(op.Path, part) {
			return true
		}
	}
	return false
}

// alsoCreates reports whether the transaction of a change also creates a node whose path contains
// part.
func (c *change) alsoCreates(part string) bool {
	for _, op := range c.txn.Ops {
		if op.IsCreate() && strings.Contains(op.Path, part) {
			return true
		}
	}
	return false
}

// isRedrive reports whether a change creates an item that the same transaction takes out of the
// dead letters.
func (c *change) isRedrive() bool {
	_, name, _ := strings.Cut(c.path, "/i-")
	id, _, ok := layout.CutID("i-"+name, layout.ItemPrefix)
	return ok && !strings.Contains(c.path, "/dead/items/") && c.alsoDeletes("/dead/items/") && c.alsoDeletes("/i-"+id)
}
